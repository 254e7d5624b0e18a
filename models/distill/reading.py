"""Text that exists, as shards like those that the target writes: one batched pass instead of a step for each token.

Owns the cutting of files into sequences and the record of which files these were. Knows nothing of training.

Shape suffixes: N sequences, T tokens, R rows of a chunk.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from models.checkpoint import Checkpoint, open_checkpoint
from models.distill.batched_target import BatchedTarget
from models.distill.shard import Shard, shard_path, shard_paths, write_shard
from models.distill.snippets import read_text_file
from models.distill.text_kind import TextKind
from models.errors import CheckpointError
from models.json_file import read_json_object
from models.user_cache import write_atomically

RECORD_FILE = "reading.json"
FIRST_SHARD = 50_000
"""Shards of text that was read are numbered from here on, far above those of written waves."""

_SEQUENCES_PER_SHARD = 64
READ_AT_ONCE = 4
"""Sequences."""
_CHUNK_ROWS = 256


def read_text(
    folder: Path,
    source: str | os.PathLike[str],
    files: Sequence[Path],
    *,
    sequence_length: int,
    device: torch.device,
    dtype: torch.dtype,
    report: Callable[[int, int], None] = lambda done, wanted: None,
) -> None:
    """Have the target read what it has not read yet.

    Args:
        folder: of the shards; made if need be.
        source: the target, as `models.open_checkpoint` takes it.
        files: UTF-8 text.
        sequence_length: tokens of each sequence; what is left at a file's end is dropped.
        device: where to compute.
        dtype: of matrix products.
        report: told how many tokens of how many lie on disk.

    Raises:
        CheckpointError: if the target cannot be read or a shard cannot be written; all earlier ones are kept.
        ValueError: if a file cannot be used, all of them are too short, or the folder holds other files' text.
    """
    with open_checkpoint(source) as checkpoint:
        sequences = _sequences(checkpoint, files, sequence_length)
        _check_record(folder, sequences, checkpoint.fingerprint)
        starts = range(0, len(sequences), _SEQUENCES_PER_SHARD)
        paths = {start: shard_path(folder, FIRST_SHARD + start // _SEQUENCES_PER_SHARD) for start in starts}
        num_wanted = len(sequences) * sequence_length
        target: BatchedTarget | None = None
        for start, path in paths.items():
            chosen = sequences[start : start + _SEQUENCES_PER_SHARD]
            report(start * sequence_length, num_wanted)
            if not path.exists():
                target = target or BatchedTarget(checkpoint, dtype=dtype, device=device, num_positions=sequence_length)
                write_shard(path, read_sequences(target, torch.tensor(chosen, dtype=torch.int32)))
        report(num_wanted, num_wanted)


def read_shard_paths(folder: Path) -> list[Path]:
    """Shards of text that was read, by number."""
    first = shard_path(folder, FIRST_SHARD)
    return [path for path in shard_paths(folder) if path >= first]


@torch.inference_mode()
def read_sequences(target: BatchedTarget, token_ids_NT: torch.Tensor) -> Shard:
    """What the target makes of sequences that it did not write."""
    features, log_totals = [], []
    for token_ids_RT in torch.split(token_ids_NT, READ_AT_ONCE):
        features_RTE = target.features(token_ids_RT.long().to(target.device))
        totals = [
            target.logits(rows).logsumexp(-1).cpu() for rows in torch.split(features_RTE.flatten(0, 1), _CHUNK_ROWS)
        ]
        features.append(features_RTE.half().cpu())
        log_totals.append(torch.cat(totals).view(token_ids_RT.shape))
    return Shard(
        token_ids_NT=token_ids_NT,
        features_NTE=torch.cat(features),
        log_totals_NT=torch.cat(log_totals),
        asked_NT=torch.ones(token_ids_NT.shape, dtype=torch.bool),
        kinds=(TextKind.TEXT,) * len(token_ids_NT),
    )


def _sequences(checkpoint: Checkpoint, files: Sequence[Path], sequence_length: int) -> list[list[int]]:
    tokenizer = checkpoint.tokenizer()
    sequences = []
    for path in files:
        ids = tokenizer.encode(read_text_file(path))
        sequences += [
            ids[start : start + sequence_length] for start in range(0, len(ids) - sequence_length + 1, sequence_length)
        ]
    if not sequences:
        raise ValueError(
            f"no text file has {sequence_length} tokens, so that there is nothing to read; "
            "give longer files, or ask for a smaller sequence_length"
        )
    return sequences


def _check_record(folder: Path, sequences: Sequence[Sequence[int]], fingerprint: str) -> None:
    content = json.dumps([len(sequences[0]), sequences]).encode()
    record: dict[str, object] = {
        "fingerprint": fingerprint,
        "num_sequences": len(sequences),
        "sequences_blake2b": hashlib.blake2b(content, digest_size=16).hexdigest(),
    }
    path = folder / RECORD_FILE
    if path.exists():
        if read_json_object(path) != record:
            raise ValueError(
                f"{folder} holds text read from other files, at another sequence_length or by another target; "
                "use another folder, or the same files"
            )
        return
    try:
        write_atomically(path, json.dumps(record, indent=2).encode() + b"\n")
    except OSError as error:
        raise CheckpointError(f"cannot write {path}: {error.strerror or error}") from error
