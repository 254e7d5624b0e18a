"""A cheap, stable identity for weight files.

Owns `fingerprint_files`. Knows nothing of what the files hold. It tells checkpoints apart, so
that a cache entry of one is never taken for another's; it is no protection against a forger, since
only samples of the data are read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from models.errors import CheckpointError

SAMPLE_BYTES = 4096
SAMPLES_PER_FILE = 64


@dataclass(frozen=True)
class WeightFile:
    """A file, and how many of its first bytes, at most, are hashed as a whole."""

    path: Path
    header_bytes: int


def fingerprint_files(files: Sequence[WeightFile]) -> str:
    """32 hexadecimal digits over each file's size, header and evenly spaced samples of the rest.

    Args:
        files: in an order that does not depend on the machine; their paths do not count.

    Raises:
        CheckpointError: if a file cannot be read.
    """
    digest = hashlib.sha256()
    for weight_file in files:
        try:
            with weight_file.path.open("rb") as file:
                file_bytes = file.seek(0, 2)
                _add(digest, file_bytes.to_bytes(8, "little"))
                _add(digest, _read_at(file, 0, weight_file.header_bytes))
                for offset in _sample_offsets(weight_file.header_bytes, file_bytes):
                    _add(digest, _read_at(file, offset, SAMPLE_BYTES))
        except OSError as error:
            raise CheckpointError(f"cannot read {weight_file.path}: {error.strerror or error}") from error
    return digest.hexdigest()[:32]


def _sample_offsets(begin: int, end: int) -> list[int]:
    if begin >= end:
        return []
    last = max(begin, end - SAMPLE_BYTES)
    return [begin + (last - begin) * index // (SAMPLES_PER_FILE - 1) for index in range(SAMPLES_PER_FILE)]


def _read_at(file: BinaryIO, offset: int, num_bytes: int) -> bytes:
    file.seek(offset)
    return file.read(num_bytes)


def _add(digest: hashlib._Hash, part: bytes) -> None:
    # The length keeps neighbouring parts apart.
    digest.update(len(part).to_bytes(8, "little"))
    digest.update(part)
