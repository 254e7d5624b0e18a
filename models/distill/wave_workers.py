"""The processes that write waves, and how they end.

Owns the workers: their threads, their counts of written tokens, and that none outlives whoever started it. Knows
nothing of which waves are missing.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Event
from pathlib import Path

import torch

from models.distill.shard import shard_path, write_shard
from models.distill.writer import Writer
from models.errors import DistillationError

_REPORT_EVERY_S = 2.0

WaveReport = Callable[[int, int], None]
"""Told the number of tokens written so far and the number of waves that lie on disk."""


@dataclass(frozen=True, kw_only=True)
class WaveJob:
    """What to write; can be sent to another process."""

    folder: Path
    new_writer: Callable[[], Writer]
    """Reads the weights."""

    def write(self, writer: Writer, wave: int, on_tokens: Callable[[int], None]) -> None:
        """One wave onto disk."""
        write_shard(shard_path(self.folder, wave), writer.write(wave, on_tokens=on_tokens))


def write_here(job: WaveJob, waves: Sequence[int], report: WaveReport) -> None:
    """Write in this process, with one thread as a worker has, so that no bit depends on how many workers there are."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    num_tokens, num_kept = 0, 0

    def on_tokens(number: int) -> None:
        nonlocal num_tokens
        num_tokens += number
        report(num_tokens, num_kept)

    try:
        writer = job.new_writer()
        for wave in waves:
            job.write(writer, wave, on_tokens)
            num_kept += 1
            report(num_tokens, num_kept)
    finally:
        torch.set_num_threads(num_threads)


def write_in_processes(job: WaveJob, waves: Sequence[int], report: WaveReport, *, num_workers: int) -> None:
    """Write with so many processes of one thread each.

    At these shapes two cores write twice as fast so as by sharing every operation, or one interpreter.

    Raises:
        DistillationError: if a worker was killed.
        CheckpointError: if a shard cannot be written; those that can be are kept.
    """
    # Not forked: a child must not inherit half of torch's threads.
    context = multiprocessing.get_context("spawn")
    num_tokens: Synchronized[int] = context.Value("q", 0)
    stop = context.Event()
    pool = ProcessPoolExecutor(
        num_workers, mp_context=context, initializer=_begin_worker, initargs=(job, num_tokens, stop)
    )
    try:
        pending = {pool.submit(_write_wave, wave) for wave in waves}
        while pending:
            finished, pending = wait(pending, timeout=_REPORT_EVERY_S, return_when=FIRST_COMPLETED)
            for future in finished:
                future.result()
            report(num_tokens.value, len(waves) - len(pending))
    except BrokenProcessPool as error:
        raise DistillationError(
            f"one of {num_workers} writing processes was ended from outside, most likely for want of memory; all whole "
            "waves are kept: run the same command again with fewer --workers"
        ) from error
    finally:
        stop.set()
        pool.shutdown(cancel_futures=True)


class _StoppedError(Exception):
    """Nobody wants this wave any more."""


@dataclass(frozen=True, kw_only=True)
class _Worker:
    job: WaveJob
    writer: Writer
    num_tokens: Synchronized[int]
    stop: Event

    def write(self, wave: int) -> None:
        self.job.write(self.writer, wave, self._on_tokens)

    def _on_tokens(self, number: int) -> None:
        if self.stop.is_set():
            raise _StoppedError
        with self.num_tokens.get_lock():
            self.num_tokens.value += number


_worker: _Worker | None = None
"""A worker process's own."""


def _begin_worker(job: WaveJob, num_tokens: Synchronized[int], stop: Event) -> None:
    global _worker
    # Ctrl-C reaches every process of the group; the parent says what was interrupted.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    _worker = _Worker(job=job, writer=job.new_writer(), num_tokens=num_tokens, stop=stop)


def _end_with_parent() -> None:
    """A parent that was killed cannot say so."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _write_wave(wave: int) -> None:
    if _worker is None:
        raise RuntimeError("the worker has not begun")
    _worker.write(wave)
