"""The header of a GGUF file: metadata, and where each tensor lies.

Owns `GgufFile`, a reader that trusts nothing: every count, length and offset is checked against
the file before it is used. Knows nothing of models. The format:
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from models.errors import CheckpointError, UnsupportedModelError
from models.ggml_type import GgmlType
from models.gguf_values import GgufCursor

MAX_TENSORS = 1 << 16
MAX_METADATA_KEYS = 1 << 16
MAX_DIMENSIONS = 4
MAX_ALIGNMENT = 1 << 20

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
_NAME_BYTES = 1024


@dataclass(frozen=True, kw_only=True)
class GgufTensor:
    """One entry of the tensor table."""

    name: str
    shape: tuple[int, ...]
    """Slowest dimension first, `(out, in)` for a matrix: the reverse of the file's order."""
    ggml_type: GgmlType
    offset: int
    """From the start of the file."""
    num_bytes: int

    @property
    def num_rows(self) -> int:
        """Rows of the last dimension; each takes a whole number of blocks."""
        return math.prod(self.shape[:-1])


class GgufFile:
    """A memory-mapped GGUF file of version 2 or 3, little-endian."""

    def __init__(self, path: Path) -> None:
        """Map a file and read its header.

        Raises:
            CheckpointError: if the file cannot be read, is truncated or malformed; says where.
            UnsupportedModelError: if a tensor has a type that cannot be dequantised, or the file
                is one part of several.
        """
        self.path = path
        try:
            with path.open("rb") as file:
                self._map: mmap.mmap | None = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:  # ValueError: an empty file
            raise CheckpointError(f"cannot read {path}: {error}") from error
        cursor = GgufCursor(self._map, str(path))
        num_tensors, num_keys = _read_counts(cursor)
        self.metadata: dict[str, object] = _read_metadata(cursor, num_keys)
        """Values by key: int, float, bool, str, or lists of them."""
        alignment = _read_alignment(self.metadata, cursor)
        self.tensors, self.data_start = _read_tensors(cursor, num_tensors, alignment)
        """Tensors by name, in the file's order, and the offset at which their data begins."""

    def rows(self, tensor: GgufTensor) -> npt.NDArray[np.uint8]:
        """A tensor's stored bytes, `(num_rows, bytes of a row)`: a view of the file.

        Raises:
            CheckpointError: if the file was closed.
        """
        if self._map is None:
            raise CheckpointError(f"{self.path} was closed")
        stored = np.frombuffer(self._map, dtype=np.uint8, count=tensor.num_bytes, offset=tensor.offset)
        return stored.reshape(tensor.num_rows, -1)

    def close(self) -> None:
        """Let go of the file, once the last view of it is gone. Idempotent."""
        self._map = None


def _read_counts(cursor: GgufCursor) -> tuple[int, int]:
    if cursor.take(len(_MAGIC), "the magic number") != _MAGIC:
        raise CheckpointError(f"{cursor.origin} is not a GGUF file")
    version = cursor.u32("the version")
    if version not in _VERSIONS:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big") in _VERSIONS
        kind = "a big-endian file" if swapped else f"of GGUF version {version}"
        raise CheckpointError(f"{cursor.origin} is {kind}; convert it again, to a little-endian file of version 2 or 3")
    num_tensors, num_keys = cursor.u64("the number of tensors"), cursor.u64("the number of metadata keys")
    if num_tensors > MAX_TENSORS:
        raise cursor.error(f"{num_tensors} tensors are more than {MAX_TENSORS}")
    if num_keys > MAX_METADATA_KEYS:
        raise cursor.error(f"{num_keys} metadata keys are more than {MAX_METADATA_KEYS}")
    return num_tensors, num_keys


def _read_metadata(cursor: GgufCursor, num_keys: int) -> dict[str, object]:
    metadata: dict[str, object] = {}
    for _ in range(num_keys):
        key = cursor.text("a metadata key", max_bytes=1 << 16)
        if key in metadata:
            raise cursor.error(f"the metadata key {key[:200]!r} appears twice")
        metadata[key] = cursor.value(cursor.u32(f"the type of {key[:200]}"), key[:200])
    if metadata.get("split.count", 1) not in (0, 1):
        raise UnsupportedModelError(
            f"{cursor.origin} is one part of a split model; join the parts first with `llama-gguf-split --merge`"
        )
    return metadata


def _read_alignment(metadata: dict[str, object], cursor: GgufCursor) -> int:
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if type(alignment) is not int or not 1 <= alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
        raise cursor.error(
            f"general.alignment is {str(alignment)[:40]}, but must be a power of two up to {MAX_ALIGNMENT}"
        )
    return alignment


def _read_tensors(cursor: GgufCursor, num_tensors: int, alignment: int) -> tuple[dict[str, GgufTensor], int]:
    entries = [_read_entry(cursor) for _ in range(num_tensors)]
    data_start = -(-cursor.position // alignment) * alignment
    tensors: dict[str, GgufTensor] = {}
    for name, shape, ggml_type, offset in entries:
        if name in tensors:
            raise cursor.error(f"the tensor {name!r} appears twice")
        if offset % alignment:
            raise cursor.error(f"the tensor {name!r} begins at {offset}, which is not a multiple of {alignment}")
        num_bytes = math.prod(shape) // ggml_type.block_elements * ggml_type.block_bytes
        if data_start + offset + num_bytes > cursor.size:
            raise cursor.error(
                f"the tensor {name!r} ends at byte {data_start + offset + num_bytes} of {cursor.size}: "
                "the file is truncated; download it again"
            )
        tensors[name] = GgufTensor(
            name=name, shape=shape, ggml_type=ggml_type, offset=data_start + offset, num_bytes=num_bytes
        )
    _check_overlap(cursor, tensors)
    return tensors, data_start


def _read_entry(cursor: GgufCursor) -> tuple[str, tuple[int, ...], GgmlType, int]:
    name = cursor.text("a tensor's name", max_bytes=_NAME_BYTES)
    where = f"{cursor.origin}: the tensor {name!r}"
    num_dimensions = cursor.u32(f"the dimensions of {name}")
    if not 1 <= num_dimensions <= MAX_DIMENSIONS:
        raise CheckpointError(f"{where} has {num_dimensions} dimensions; allowed are 1 to {MAX_DIMENSIONS}")
    shape = struct.unpack(f"<{num_dimensions}Q", cursor.take(8 * num_dimensions, f"the shape of {name}"))[::-1]
    ggml_type = GgmlType.from_code(cursor.u32(f"the type of {name}"), where)
    if 0 in shape or shape[-1] % ggml_type.block_elements:
        raise CheckpointError(f"{where} has shape {shape}, whose rows are not whole blocks of {ggml_type.name}")
    return name, shape, ggml_type, cursor.u64(f"the offset of {name}")


def _check_overlap(cursor: GgufCursor, tensors: dict[str, GgufTensor]) -> None:
    end = 0
    for tensor in sorted(tensors.values(), key=lambda tensor: tensor.offset):
        if tensor.offset < end:
            raise cursor.error(f"the tensor {tensor.name!r} overlaps the one before it")
        end = tensor.offset + tensor.num_bytes
