"""The element types of GGUF tensors that can be turned into float32.

Owns `GgmlType` and `dequantize`. Knows nothing of files or models. Block layouts:
https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h; the arithmetic is the `gguf` package's.
"""

from __future__ import annotations

from enum import Enum

import numpy as np
import numpy.typing as npt
import torch

from models.errors import UnsupportedModelError

_CHUNK_ELEMENTS = 1 << 17
"""Elements dequantised at once: enough to hide the cost of a call, few enough for the processor's cache."""


class GgmlType(Enum):
    """A type's code in a file, the elements of one block, and the bytes that the block takes."""

    F32 = (0, 1, 4)
    F16 = (1, 1, 2)
    Q4_0 = (2, 32, 18)
    Q4_1 = (3, 32, 20)
    Q5_0 = (6, 32, 22)
    Q5_1 = (7, 32, 24)
    Q8_0 = (8, 32, 34)
    Q4_K = (12, 256, 144)
    Q5_K = (13, 256, 176)
    Q6_K = (14, 256, 210)
    BF16 = (30, 1, 2)

    def __init__(self, code: int, block_elements: int, block_bytes: int) -> None:
        self.code = code
        self.block_elements = block_elements
        self.block_bytes = block_bytes

    @classmethod
    def from_code(cls, code: int, where: str) -> GgmlType:
        """The type with this code.

        Raises:
            UnsupportedModelError: if it cannot be dequantised; names it, and `where` it was met.
        """
        for member in cls:
            if member.code == code:
                return member
        supported = ", ".join(member.name for member in cls)
        raise UnsupportedModelError(f"{where} has the type {_foreign_name(code)}; supported are {supported}")


def dequantize(blocks: npt.NDArray[np.uint8], ggml_type: GgmlType) -> torch.Tensor:
    """Turn stored blocks into numbers.

    Args:
        blocks: one-dimensional, whole blocks of `ggml_type`.

    Returns:
        float32, one-dimensional, `block_elements` for each block; shares no memory with `blocks`.
    """
    from gguf import GGMLQuantizationType, quants

    gguf_type = GGMLQuantizationType(ggml_type.code)
    num_blocks = len(blocks) // ggml_type.block_bytes
    values = np.empty(num_blocks * ggml_type.block_elements, dtype=np.float32)
    chunk_blocks = _CHUNK_ELEMENTS // ggml_type.block_elements
    with np.errstate(all="ignore"):  # a malformed scale may overflow; the numbers are the file's own
        for first in range(0, num_blocks, chunk_blocks):
            last = first + chunk_blocks
            stored = blocks[first * ggml_type.block_bytes : last * ggml_type.block_bytes]
            # One long row: the package works through rows in groups of 16, which is slow for short ones.
            values[first * ggml_type.block_elements : last * ggml_type.block_elements] = quants.dequantize(
                stored.reshape(1, -1), gguf_type
            )[0]
    return torch.from_numpy(values)


def _foreign_name(code: int) -> str:
    from gguf import GGMLQuantizationType

    try:
        return GGMLQuantizationType(code).name
    except ValueError:
        return f"number {code}, which is unknown"
