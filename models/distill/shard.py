"""Written text with the target's features, in files that are whole or absent.

Owns the layout of one file and the list of a folder. Knows nothing of who writes the text.

Shape suffixes: N sequences, T tokens, E hidden width.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from models.distill.text_kind import TextKind
from models.errors import CheckpointError

HELD_OUT_ONE_IN = 32
"""Share of sequences that training never sees, chosen by content, so that it stays the same however often text is
written again."""

_KINDS = tuple(TextKind)
_PREFIX_TOKENS = 96
"""Sequences that agree so far are taken for copies."""


@dataclass(frozen=True, kw_only=True)
class Shard:
    """Sequences of equal length."""

    token_ids_NT: torch.Tensor
    """int32."""
    features_NTE: torch.Tensor
    """float16: the target's residual stream after its last layer over its root mean square, at each token."""
    log_totals_NT: torch.Tensor
    """float32: the logarithm of the sum of exponentials of each token's whole logit row."""
    asked_NT: torch.Tensor
    """bool: whether a draft would be asked for the token after this one: whether it is part of an answer, or of text
    outside of conversations, and not of a question or of what a template puts in between."""
    kinds: tuple[TextKind, ...]

    def __len__(self) -> int:
        return self.token_ids_NT.shape[0]


def shard_path(folder: Path, number: int) -> Path:
    """Where the shard of that number lies."""
    return folder / f"text-{number:05d}.safetensors"


def write_shard(path: Path, shard: Shard) -> None:
    """Write beside `path`, then rename: nobody ever sees half a file.

    Raises:
        CheckpointError: if it cannot be written, a full disk among others; what was half-written is removed.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    tensors = {
        "token_ids": shard.token_ids_NT.contiguous(),
        "features": shard.features_NTE.contiguous(),
        "log_totals": shard.log_totals_NT.contiguous(),
        "asked": shard.asked_NT.contiguous(),
        "kinds": torch.tensor([_KINDS.index(kind) for kind in shard.kinds], dtype=torch.uint8),
    }
    try:
        save_file(tensors, temporary)
        temporary.replace(path)
    except (OSError, SafetensorError) as error:
        temporary.unlink(missing_ok=True)
        raise CheckpointError(
            f"cannot write {path}: {error}; all earlier text is kept: make room and run the same command again"
        ) from error


def read_shard(path: Path) -> Shard:
    """Map a shard into memory.

    Raises:
        CheckpointError: if it is missing or damaged; says to delete it.
    """
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # no mapping
        return Shard(
            token_ids_NT=tensors["token_ids"],
            features_NTE=tensors["features"],
            log_totals_NT=tensors["log_totals"],
            asked_NT=tensors["asked"],
            kinds=tuple(_KINDS[index] for index in tensors["kinds"].tolist()),
        )
    except (OSError, SafetensorError, KeyError, IndexError) as error:
        raise CheckpointError(f"{path} is damaged ({error}); delete it, and it is written again") from error


def shard_paths(folder: Path) -> list[Path]:
    """All shards of a folder by number."""
    return sorted(folder.glob("text-*.safetensors"))


def remove_abandoned_files(folder: Path) -> None:
    """Clear what a killed process had half-written; one day is longer than any file takes."""
    for path in folder.glob(".text-*"):
        with suppress(FileNotFoundError):  # another process may clear it first
            if time.time() - path.stat().st_mtime > 86_400:
                path.unlink()


def sequence_keys(shard: Shard) -> Iterator[bytes]:
    """For each sequence, a digest of its first tokens: equal ones are copies of each other."""
    for row in shard.token_ids_NT[:, :_PREFIX_TOKENS].contiguous().numpy():
        yield hashlib.blake2b(row.tobytes(), digest_size=16).digest()


def is_held_out(key: bytes) -> bool:
    """Whether training must not see the sequence."""
    return int.from_bytes(key[:4], "little") % HELD_OUT_ONE_IN == 0
