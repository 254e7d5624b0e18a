"""A folder of written text: what is missing is written.

Owns which waves are missing and the record of the settings that the text was written with. Knows nothing of processes
or training.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch

from models.checkpoint import Checkpoint, open_checkpoint
from models.distill.batched_target import BatchedTarget
from models.distill.seeds import SeedSource
from models.distill.settings import WritingSettings
from models.distill.shard import remove_abandoned_files, shard_path
from models.distill.snippets import Snippets, file_snippets, standard_library_snippets
from models.distill.wave_workers import WaveJob, write_here, write_in_processes
from models.distill.writer import Writer
from models.errors import CheckpointError
from models.json_file import read_json_object
from models.user_cache import write_atomically

RECORD_FILE = "text.json"
TIME_FILE = "time.json"
"""How many waves were written in how many seconds, all calls together; absent where some were written without it."""

_SNIPPETS_DIGEST = "snippets_blake2b"


@dataclass(frozen=True, kw_only=True)
class WritingProgress:
    """How far the writing is."""

    num_done: int
    """Tokens written, those of waves that are not finished included."""
    num_kept: int
    """Tokens that lie on disk."""
    num_wanted: int
    tokens_per_s: float | None
    """Of what was written by this call; None before the first token."""


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

    Args:
        folder: of the shards; made if need be.
        source: the target, as `models.open_checkpoint` takes it.
        settings: of the text.
        device: where to write.
        dtype: of matrix products.
        num_workers: waves written at a time, each by a process of its own with one thread.
        report: told every few seconds.

    Raises:
        CheckpointError: if the target cannot be read or a shard cannot be written; all earlier ones are kept.
        DistillationError: if a worker was killed.
        ValueError: if the folder holds text of other settings or another target, a text file cannot be used, or the
            target has no usable chat template.
    """
    with open_checkpoint(source) as checkpoint:
        # Whatever is wrong with the seeds shall be said here and not by a worker.
        snippets = _snippets(settings)
        _seed_source(checkpoint, settings, snippets)
        _check_record(folder, settings, checkpoint.fingerprint, snippets)
    remove_abandoned_files(folder)
    missing = [wave for wave in range(settings.num_waves) if not shard_path(folder, wave).exists()]
    wave_tokens = settings.sequences_per_wave * settings.sequence_length
    num_before = (settings.num_waves - len(missing)) * wave_tokens
    started_s = time.monotonic()
    stopwatch = _Stopwatch(folder, begins=len(missing) == settings.num_waves)

    def tell(num_tokens: int, num_waves: int) -> None:
        stopwatch.note(num_waves)
        report(
            WritingProgress(
                num_done=num_before + num_tokens,
                num_kept=num_before + num_waves * wave_tokens,
                num_wanted=settings.num_waves * wave_tokens,
                tokens_per_s=num_tokens / (time.monotonic() - started_s) if num_tokens else None,
            )
        )

    tell(0, 0)
    job = WaveJob(folder=folder, new_writer=partial(_new_writer, source, settings, device, dtype))
    num_workers = min(num_workers, len(missing))
    if num_workers > 1:
        write_in_processes(job, missing, tell, num_workers=num_workers)
    elif missing:
        write_here(job, missing, tell)


def written_s(folder: Path, num_waves: int) -> float | None:
    """What so many waves of the folder's text took to write; None where it is not known."""
    found = _read_time(folder / TIME_FILE)
    return None if found is None else found.seconds * num_waves / found.num_waves


@dataclass(frozen=True, kw_only=True)
class _WritingTime:
    num_waves: int
    seconds: float


def _read_time(path: Path) -> _WritingTime | None:
    """Only a card says it, so a damaged record is as good as none."""
    try:
        found = read_json_object(path)
    except CheckpointError:
        return None
    num_waves, seconds = found.get("num_waves"), found.get("seconds")
    if not isinstance(num_waves, int) or not isinstance(seconds, (int, float)) or num_waves < 1:
        return None
    return _WritingTime(num_waves=num_waves, seconds=seconds)


class _Stopwatch:
    """Adds up what waves take, over any number of calls."""

    def __init__(self, folder: Path, *, begins: bool) -> None:
        """Go on from the record, or begin one where no wave was written yet."""
        self._path = folder / TIME_FILE
        before = _WritingTime(num_waves=0, seconds=0.0) if begins else _read_time(self._path)
        self._before = before
        self._started_s = time.monotonic()
        self._num_noted = 0

    def note(self, num_waves: int) -> None:
        """So many waves were written by this call."""
        if self._before is None or num_waves == self._num_noted:
            return
        self._num_noted = num_waves
        record = _WritingTime(
            num_waves=self._before.num_waves + num_waves,
            seconds=round(self._before.seconds + time.monotonic() - self._started_s, 1),
        )
        # No text is lost for a figure on a card.
        with suppress(OSError):
            write_atomically(self._path, json.dumps(asdict(record)).encode() + b"\n")


def _new_writer(
    source: str | os.PathLike[str], settings: WritingSettings, device: torch.device, dtype: torch.dtype
) -> Writer:
    with open_checkpoint(source) as checkpoint:
        target = BatchedTarget(checkpoint, dtype=dtype, device=device, num_positions=settings.sequence_length)
        return Writer(
            target,
            _seed_source(checkpoint, settings, _snippets(settings)),
            num_sequences=settings.sequences_per_wave,
            sequence_length=settings.sequence_length,
            seed=settings.seed,
        )


def _snippets(settings: WritingSettings) -> Snippets:
    return file_snippets(settings.text_files) if settings.text_files else standard_library_snippets()


def _seed_source(checkpoint: Checkpoint, settings: WritingSettings, snippets: Snippets) -> SeedSource:
    return SeedSource(
        checkpoint.tokenizer(),
        kinds=settings.kinds,
        snippets=snippets,
        temperatures=settings.temperatures,
        seed=settings.seed,
    )


def _check_record(folder: Path, settings: WritingSettings, fingerprint: str, snippets: Snippets) -> None:
    """Text of other settings or with other snippets must not be mixed with this."""
    record = json.loads(json.dumps({**asdict(settings), "fingerprint": fingerprint}, default=str))
    record[_SNIPPETS_DIGEST] = snippets.digest
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
    # Earlier records have none, and nobody can say now what their snippets were.
    found.setdefault(_SNIPPETS_DIGEST, record[_SNIPPETS_DIGEST])
    for name, value in record.items():
        if found.get(name) != value and name == _SNIPPETS_DIGEST:
            source = "the --text files" if settings.text_files else "this Python's standard library"
            raise ValueError(
                f"{folder} holds text written with {name} {found.get(name)!r}, and what {source} give to quote is "
                f"{value!r} now; use another folder, or "
                + ("the same files" if settings.text_files else "the Python version that it was begun with")
            )
        if found.get(name) != value:
            raise ValueError(
                f"{folder} holds text written with {name} {found.get(name)!r}, and this run asks for {value!r}; "
                "use another folder, or the same settings"
            )
