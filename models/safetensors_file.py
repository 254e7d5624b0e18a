"""The header of a safetensors file, checked before anything relies on it.

Owns `read_safetensors_header`. Knows nothing of models; the tensors themselves are read with the
`safetensors` library. The format: https://huggingface.co/docs/safetensors (8 bytes of length,
little-endian, a JSON object, then the data, without holes).
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

from models.errors import CheckpointError, UnsupportedModelError
from models.json_file import parse_json_object

MAX_HEADER_BYTES = 16 << 20
"""Far above what a decoder needs, about 150 bytes a tensor; low enough to parse a hostile header in little memory."""
MAX_DIMENSIONS = 8
FLOAT_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
"""Element sizes of the types that weights may have."""

_LENGTH_BYTES = 8


@dataclass(frozen=True, kw_only=True)
class SafetensorsHeader:
    """What a file says about itself."""

    path: Path
    shapes: dict[str, tuple[int, ...]]
    dtypes: dict[str, str]
    """By tensor, as the format spells them: F16, I32 and so on."""
    header_bytes: int
    """Where the data starts."""
    data_bytes: int


def read_safetensors_header(path: Path, *, element_bytes: Mapping[str, int] = FLOAT_BYTES) -> SafetensorsHeader:
    """Read and check a header; the data is not touched.

    Args:
        path: the file.
        element_bytes: the types that tensors may have, and the size of an element of each.

    Raises:
        CheckpointError: if the file cannot be read, is truncated, or its header is not JSON, has
            entries of another form, or byte ranges that overlap, leave holes or leave the file.
        UnsupportedModelError: if a tensor is of another type; names it.
    """
    try:
        with path.open("rb") as file:
            file_bytes = os.fstat(file.fileno()).st_size
            length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
            if file_bytes < _LENGTH_BYTES or length > min(file_bytes - _LENGTH_BYTES, MAX_HEADER_BYTES):
                raise CheckpointError(
                    f"{path} is truncated or not a safetensors file: its header of {length} bytes does not fit "
                    f"into {file_bytes} bytes; download it again"
                )
            text = file.read(length)
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror or error}") from error
    entries = parse_json_object(text, f"{path}: the header")
    entries.pop("__metadata__", None)
    header_bytes = _LENGTH_BYTES + length
    found = {name: _check_entry(path, name, entry, element_bytes) for name, entry in entries.items()}
    _check_layout(path, [(begin, end, name) for name, (_, _, begin, end) in found.items()], file_bytes - header_bytes)
    return SafetensorsHeader(
        path=path,
        shapes={name: shape for name, (_, shape, _, _) in found.items()},
        dtypes={name: dtype for name, (dtype, _, _, _) in found.items()},
        header_bytes=header_bytes,
        data_bytes=file_bytes - header_bytes,
    )


def _check_entry(
    path: Path, name: str, entry: object, element_bytes: Mapping[str, int]
) -> tuple[str, tuple[int, ...], int, int]:
    """Its dtype, shape, first byte and the byte behind its last."""
    where = f"{path}: the tensor {name[:200]!r}"
    if not isinstance(entry, dict):
        raise CheckpointError(f"{where} is described by a {type(entry).__name__}, not an object")
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str):
        raise CheckpointError(f"{where} has no dtype")
    if not _are_sizes(shape) or len(shape) > MAX_DIMENSIONS:
        raise CheckpointError(f"{where} has no valid shape")
    if not _are_sizes(offsets) or len(offsets) != 2:
        raise CheckpointError(f"{where} has no valid data_offsets")
    if dtype not in element_bytes:
        raise UnsupportedModelError(f"{where} has dtype {dtype[:40]!r}; supported are {', '.join(element_bytes)}")
    begin, end = offsets
    num_bytes = math.prod(shape) * element_bytes[dtype]
    if end - begin != num_bytes:
        raise CheckpointError(f"{where} takes {num_bytes} bytes, but its data_offsets span {end - begin}")
    return dtype, tuple(shape), begin, end


def _are_sizes(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 1 << 63 for item in value)


def _check_layout(path: Path, ranges: list[tuple[int, int, str]], data_bytes: int) -> None:
    position = 0
    for begin, end, name in sorted(ranges):
        if begin != position:
            problem = "overlaps the tensor before it" if begin < position else "leaves a hole before it"
            raise CheckpointError(f"{path}: the tensor {name[:200]!r} {problem}")
        position = end
    if position != data_bytes:
        raise CheckpointError(
            f"{path}: its tensors take {position} bytes, but {data_bytes} follow the header; download it again"
        )
