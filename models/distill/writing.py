"""A folder of written text: what is missing is written, by one worker a core.

Owns the workers, the order of waves and the record of the settings that the text was written with. Knows nothing of
training.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from models.checkpoint import Checkpoint, open_checkpoint
from models.distill.batched_target import BatchedTarget
from models.distill.seeds import SeedSource
from models.distill.settings import WritingSettings
from models.distill.shard import shard_path, write_shard
from models.distill.snippets import file_snippets, standard_library_snippets
from models.distill.writer import Writer
from models.errors import CheckpointError
from models.json_file import read_json_object

RECORD_FILE = "text.json"


@dataclass(frozen=True, kw_only=True)
class WritingProgress:
    """How far the writing is."""

    num_done: int
    """Tokens that lie on disk."""
    num_wanted: int
    tokens_per_s: float | None
    """Of what was written by this call; None before the first wave."""


def write_text(
    folder: Path,
    source: str | os.PathLike[str],
    settings: WritingSettings,
    *,
    device: torch.device,
    dtype: torch.dtype,
    num_workers: int,
    report: Callable[[WritingProgress], None] = lambda _: None,
) -> None:
    """Write the waves that are not there yet.

    Workers are processes with one intra-op thread each: at these shapes two cores write twice as fast so as by sharing
    every operation, or one interpreter.

    Args:
        folder: of the shards; made if need be.
        source: the target, as `models.open_checkpoint` takes it.
        settings: of the text.
        device: where to write.
        dtype: of matrix products.
        num_workers: waves written at a time.
        report: told after each wave.

    Raises:
        CheckpointError: if the target cannot be read or a shard cannot be written; all earlier ones are kept.
        ValueError: if the folder holds text of other settings or another target, a text file cannot be used, or the
            target has no usable chat template.
    """
    with open_checkpoint(source) as checkpoint:
        _check_record(folder, settings, checkpoint.fingerprint)
        # Whatever is wrong with the seeds shall be said here and not by a worker.
        _seed_source(checkpoint, settings)
    missing = [wave for wave in range(settings.num_waves) if not shard_path(folder, wave).exists()]
    wave_tokens = settings.sequences_per_wave * settings.sequence_length
    num_done = (settings.num_waves - len(missing)) * wave_tokens
    num_wanted = settings.num_waves * wave_tokens
    report(WritingProgress(num_done=num_done, num_wanted=num_wanted, tokens_per_s=None))
    started_s = time.monotonic()
    num_written = 0
    for _ in _written_waves(folder, source, settings, missing, device=device, dtype=dtype, num_workers=num_workers):
        num_written += wave_tokens
        tokens_per_s = num_written / (time.monotonic() - started_s)
        report(WritingProgress(num_done=num_done + num_written, num_wanted=num_wanted, tokens_per_s=tokens_per_s))


def _written_waves(
    folder: Path,
    source: str | os.PathLike[str],
    settings: WritingSettings,
    waves: Sequence[int],
    *,
    device: torch.device,
    dtype: torch.dtype,
    num_workers: int,
) -> Iterator[int]:
    """Write waves; yields the number of each as it is on disk."""
    num_workers = min(num_workers, len(waves))
    if num_workers <= 1:
        if waves:
            writer = _new_writer(source, settings, device, dtype)
        for wave in waves:
            write_shard(shard_path(folder, wave), writer.write(wave))
            yield wave
        return
    # Not forked: a child must not inherit half of torch's threads.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        num_workers, mp_context=context, initializer=_begin_worker, initargs=(source, settings, device, dtype)
    ) as pool:
        pending = {pool.submit(_write_wave, folder, wave) for wave in waves}
        try:
            for finished in as_completed(pending):
                yield finished.result()
        finally:
            for future in pending:
                future.cancel()


_writer: Writer | None = None
"""A worker process's own."""


def _begin_worker(
    source: str | os.PathLike[str], settings: WritingSettings, device: torch.device, dtype: torch.dtype
) -> None:
    global _writer
    # Ctrl-C reaches every process of the group; the parent says what was interrupted.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    _writer = _new_writer(source, settings, device, dtype)


def _write_wave(folder: Path, wave: int) -> int:
    if _writer is None:
        raise RuntimeError("the worker has not begun")
    write_shard(shard_path(folder, wave), _writer.write(wave))
    return wave


def _new_writer(
    source: str | os.PathLike[str], settings: WritingSettings, device: torch.device, dtype: torch.dtype
) -> Writer:
    with open_checkpoint(source) as checkpoint:
        target = BatchedTarget(checkpoint, dtype=dtype, device=device, num_positions=settings.sequence_length)
        return Writer(
            target,
            _seed_source(checkpoint, settings),
            num_sequences=settings.sequences_per_wave,
            sequence_length=settings.sequence_length,
            seed=settings.seed,
        )


def _seed_source(checkpoint: Checkpoint, settings: WritingSettings) -> SeedSource:
    return SeedSource(
        checkpoint.tokenizer(),
        kinds=settings.kinds,
        snippets=file_snippets(settings.text_files) if settings.text_files else standard_library_snippets(),
        temperatures=settings.temperatures,
        seed=settings.seed,
    )


def _check_record(folder: Path, settings: WritingSettings, fingerprint: str) -> None:
    """Text of other settings must not be mixed with this."""
    record = json.loads(json.dumps({**asdict(settings), "fingerprint": fingerprint}, default=str))
    # More of the same text may be wanted later.
    del record["num_tokens"]
    path = folder / RECORD_FILE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            temporary = path.with_name(f".{path.name}.{os.getpid()}")
            temporary.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
            temporary.replace(path)
            return
    except OSError as error:
        raise CheckpointError(f"cannot write {path}: {error.strerror or error}") from error
    found = read_json_object(path)
    for name, value in record.items():
        if found.get(name) != value:
            raise ValueError(
                f"{folder} holds text written with {name} {found.get(name)!r}, and this run asks for {value!r}; "
                "use another folder, or the same settings"
            )
