"""The values of GGUF metadata, read one after the other.

Owns `GgufCursor`, which moves through a mapped file and never past its end. Knows nothing of
what keys mean or where tensors lie. Value types: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import mmap
import struct
from typing import Any

import numpy as np

from models.errors import CheckpointError

MAX_ARRAY_ELEMENTS = 1 << 23
"""Most array elements in one header; the largest vocabularies with their merges hold under a million."""
MAX_ARRAY_DEPTH = 4

_STRING, _ARRAY, _BOOL = 8, 9, 7
_NUMBERS: dict[int, np.dtype[Any]] = {
    0: np.dtype("<u1"),
    1: np.dtype("<i1"),
    2: np.dtype("<u2"),
    3: np.dtype("<i2"),
    4: np.dtype("<u4"),
    5: np.dtype("<i4"),
    6: np.dtype("<f4"),
    10: np.dtype("<u8"),
    11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}
_KNOWN_TYPES = {*_NUMBERS, _STRING, _ARRAY, _BOOL}
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")


class GgufCursor:
    """A position in a mapped file. Every read raises `CheckpointError` rather than pass the end."""

    def __init__(self, data: mmap.mmap, origin: str) -> None:
        self.origin = origin
        """The file's name, for messages."""
        self.size = len(data)
        self.position = 0
        self._data = data
        self._elements_left = MAX_ARRAY_ELEMENTS

    def error(self, problem: str) -> CheckpointError:
        """The error for a malformed file, with the position reached."""
        return CheckpointError(f"{self.origin} is malformed near byte {self.position}: {problem}")

    def take(self, num_bytes: int, what: str) -> bytes:
        """The next `num_bytes` bytes; `what` they are, for the message."""
        if num_bytes > self.size - self.position:
            raise CheckpointError(
                f"{self.origin} is truncated or malformed: {what} needs {num_bytes} bytes at byte {self.position} "
                f"of {self.size}"
            )
        begin = self.position
        self.position += num_bytes
        return self._data[begin : self.position]

    def u32(self, what: str) -> int:
        """The next unsigned 32-bit integer."""
        return int(_U32.unpack(self.take(4, what))[0])

    def u64(self, what: str) -> int:
        """The next unsigned 64-bit integer."""
        return int(_U64.unpack(self.take(8, what))[0])

    def text(self, what: str, *, max_bytes: int | None = None) -> str:
        """The next length-prefixed UTF-8 string."""
        length = self.u64(what)
        if max_bytes is not None and length > max_bytes:
            raise self.error(f"{what} of {length} bytes is longer than {max_bytes}")
        try:
            return self.take(length, what).decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.error(f"{what} is not UTF-8") from error

    def value(self, type_code: int, what: str, depth: int = 0) -> object:
        """The next value of a metadata type: int, float, bool, str, or a list."""
        if type_code in _NUMBERS:
            return self._numbers(type_code, 1, what)[0]
        if type_code == _STRING:
            return self.text(what)
        if type_code == _BOOL:
            return self._bools(1, what)[0]
        if type_code == _ARRAY:
            return self._array(what, depth + 1)
        raise self.error(f"{what} has the value type {type_code}, which does not exist")

    def _array(self, what: str, depth: int) -> list[object]:
        if depth > MAX_ARRAY_DEPTH:
            raise self.error(f"{what} nests arrays more than {MAX_ARRAY_DEPTH} deep")
        type_code, count = self.u32(what), self.u64(what)
        if type_code not in _KNOWN_TYPES:
            raise self.error(f"{what} is an array of the value type {type_code}, which does not exist")
        if count > self._elements_left:
            raise self.error(f"{what} has {count} elements; a header may hold {MAX_ARRAY_ELEMENTS} in all")
        self._elements_left -= count
        if type_code in _NUMBERS:
            return self._numbers(type_code, count, what)
        if type_code == _STRING:
            return self._strings(count, what)
        if type_code == _BOOL:
            return self._bools(count, what)
        return [self.value(type_code, what, depth) for _ in range(count)]

    def _numbers(self, type_code: int, count: int, what: str) -> list[object]:
        dtype = _NUMBERS[type_code]
        numbers: list[object] = np.frombuffer(self.take(count * dtype.itemsize, what), dtype=dtype).tolist()
        return numbers

    def _bools(self, count: int, what: str) -> list[object]:
        stored = self.take(count, what)
        if stored.strip(b"\0\1"):
            raise self.error(f"{what} is a bool that is neither 0 nor 1")
        return [byte == 1 for byte in stored]

    def _strings(self, count: int, what: str) -> list[object]:
        """`count` times `text`, with the loop's costs held down: vocabularies are long."""
        data, position, size = self._data, self.position, self.size
        unpack_from, width = _U64.unpack_from, _U64.size
        strings: list[object] = []
        try:
            for _ in range(count):
                begin = position + width
                if begin > size:
                    break
                position = begin + unpack_from(data, position)[0]
                if position > size:
                    break
                strings.append(data[begin:position].decode("utf-8"))
        except UnicodeDecodeError as error:
            raise self.error(f"string {len(strings)} of {what} is not UTF-8") from error
        if len(strings) < count:
            raise CheckpointError(
                f"{self.origin} is truncated or malformed: string {len(strings)} of {what}, which has {count}, "
                "passes the end of the file"
            )
        self.position = position
        return strings
