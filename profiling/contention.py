"""What target and draft cost each other when both run: alone, beside a thread, beside a process.

Owns the measurement of one verify and one draft step, each on one thread, in each kind of company, and for several
switch intervals of the interpreter. Beside a process the two share memory bandwidth, caches and the clock of the
cores; beside a thread they share the interpreter's lock and the allocator as well. The difference is what these cost.
Knows nothing of rounds.

A thread that wants the interpreter's lock asks the holder to give it up after the switch interval, and torch gives it
up inside of most operations without being asked. Time in which a thread waited, for the lock or for a core, is the
call's time less the processor time of its thread.
"""

from __future__ import annotations

import multiprocessing
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from multiprocessing.connection import Connection

import torch

from models import Decoder, WeightKind, open_checkpoint
from profiling.planted_draft import shallow_decoder
from scheduler import ThreadStream

DEFAULT_INTERVALS_MS = (5.0, 1.0, 0.5, 0.1)
_POSITION = 128
"""Tokens in the caches before each call."""
_START_TIMEOUT_S = 300.0


class Work(StrEnum):
    """What is timed."""

    VERIFY = "verify"
    STEP = "draft step"


class Beside(StrEnum):
    """What runs meanwhile: the other kind of work, over and over."""

    NOTHING = "nothing"
    THREAD = "thread"
    PROCESS = "process"


@dataclass(frozen=True, kw_only=True)
class ContentionRow:
    """One kind of work in one kind of company: medians over all calls, where nothing else is said."""

    weights: str
    work: Work
    beside: Beside
    switch_interval_ms: float
    call_ms: float
    waited_ms: float
    """Part of a call in which its thread did not run."""
    sleeps: float | None
    """How often its thread gave up its core to wait, mean of the calls; None where the system does not count it."""
    num_calls: int


@dataclass(kw_only=True)
class _Times:
    """Wall time, processor time and sleeps of calls."""

    wall_ms: list[float] = field(default_factory=list)
    waited_ms: list[float] = field(default_factory=list)
    sleeps: list[int] = field(default_factory=list)

    def add(self, other: _Times) -> None:
        self.wall_ms += other.wall_ms
        self.waited_ms += other.waited_ms
        self.sleeps += other.sleeps

    def call(self, work: Callable[[], None]) -> None:
        sleeps = _thread_sleeps()
        started_s, computed_s = time.perf_counter(), time.thread_time()
        work()
        wall_s, busy_s = time.perf_counter() - started_s, time.thread_time() - computed_s
        self.wall_ms.append(wall_s * 1e3)
        self.waited_ms.append((wall_s - busy_s) * 1e3)
        if sleeps is not None:
            self.sleeps.append((_thread_sleeps() or 0) - sleeps)


def _thread_sleeps() -> int | None:
    """Voluntary context switches of this thread so far (getrusage(2)); Linux counts them by thread."""
    if not sys.platform.startswith("linux"):
        return None
    import resource

    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw


class _RepeatedCall:
    """A decoder's call of one width at one position, as often as wanted; belongs to the thread that makes it."""

    def __init__(self, decoder: Decoder, width: int) -> None:
        self._decoder = decoder.first_layers(decoder.config.num_layers)
        self._decoder.probe()
        self._ids_T = torch.arange(width)
        self._cache = self._decoder.new_cache(_POSITION + width)
        for start in range(0, _POSITION, self._decoder.max_block):
            num_ids = min(self._decoder.max_block, _POSITION - start)
            self._decoder.forward(torch.zeros(num_ids, dtype=torch.int64), self._cache, num_logits=0)

    def __call__(self) -> None:
        self._decoder.forward(self._ids_T, self._cache, num_logits=len(self._ids_T))
        self._cache.rollback(_POSITION)

    def repeated(self, num_calls: int, *, done: threading.Event) -> _Times:
        """That many calls; `done` is set behind them."""
        times = _Times()
        try:
            for _ in range(num_calls):
                times.call(self)
        finally:
            done.set()
        return times

    def until(self, stop: Callable[[], bool]) -> _Times:
        """Calls until `stop` says so, one at least."""
        times = _Times()
        while True:
            times.call(self)
            if stop():
                return times


@dataclass(frozen=True, kw_only=True)
class DraftSource:
    """What another process needs to make the draft."""

    checkpoint: str
    """Path, or hub id."""
    weights: WeightKind

    def decoder(self) -> Decoder:
        """Open the checkpoint and pack the draft's layers."""
        with open_checkpoint(self.checkpoint) as checkpoint:
            return shallow_decoder(checkpoint, weights=self.weights)


def _draft_process(connection: Connection, source: DraftSource) -> None:
    """Take draft steps from one message to the next, and send their times; None ends the process."""
    # An interrupt from the keyboard reaches all processes; the one that started this one ends it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    with torch.inference_mode(), suppress(EOFError):
        step = _RepeatedCall(source.decoder(), 1)
        step()
        connection.send(_Times())
        while connection.recv() is not None:
            connection.send(None)
            times = step.until(connection.poll)
            connection.recv()
            connection.send(times)


class _DraftProcess:
    """The draft in a process of its own."""

    def __init__(self, source: DraftSource) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_draft_process, args=(theirs, source), daemon=True)
        self._process.start()
        theirs.close()

    def wait_ready(self) -> None:
        """Wait until it has loaded.

        Raises:
            RuntimeError: if it ended, or took minutes.
        """
        self._receive()

    @contextmanager
    def running(self) -> Iterator[_Times]:
        """Steps are taken as long as the block runs; the times are filled in at its end."""
        times = _Times()
        self._connection.send(True)
        self._receive()
        try:
            yield times
        finally:
            self._connection.send(True)
            received = self._receive()
            if received is not None:
                times.add(received)

    def close(self) -> None:
        """End the process."""
        with suppress(OSError):  # it may have ended already
            self._connection.send(None)
        self._process.join(timeout=10)
        if self._process.is_alive():
            self._process.terminate()
            self._process.join()
        self._connection.close()

    def _receive(self) -> _Times | None:
        try:
            if self._connection.poll(_START_TIMEOUT_S):
                received: _Times | None = self._connection.recv()
                return received
            reason = f"said nothing for {_START_TIMEOUT_S:.0f} s"
        except (EOFError, OSError) as error:
            reason = f"ended: {error or type(error).__name__}"
        raise RuntimeError(f"the draft's process {reason}")


class _Bench:
    """Both kinds of work on workers of one thread, and the draft once more in a process."""

    def __init__(self, target: Decoder, draft: Decoder, source: DraftSource, *, width: int) -> None:
        self._process = _DraftProcess(source)
        self._target_worker = ThreadStream("target", num_threads=1)
        self._draft_worker = ThreadStream("draft", num_threads=1)
        try:
            verify = self._target_worker.launch(lambda: _RepeatedCall(target, width))
            self._target_worker.record().synchronize()
            step = self._draft_worker.launch(lambda: _RepeatedCall(draft, 1))
            self._draft_worker.record().synchronize()
            self._verify, self._step = verify.result(), step.result()
            self._process.wait_ready()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the workers and the process."""
        self._target_worker.close()
        self._draft_worker.close()
        self._process.close()

    def verifies(self, beside: Beside, num_calls: int) -> tuple[_Times, _Times]:
        """Times of verifies, and of the steps that ran beside them."""
        if beside is Beside.PROCESS:
            with self._process.running() as steps:
                return self._alone(self._target_worker, self._verify, num_calls), steps
        if beside is Beside.NOTHING:
            return self._alone(self._target_worker, self._verify, num_calls), _Times()
        done = threading.Event()
        steps_launch = self._draft_worker.launch(lambda: self._step.until(done.is_set))
        verifies_launch = self._target_worker.launch(lambda: self._verify.repeated(num_calls, done=done))
        for worker in (self._target_worker, self._draft_worker):
            worker.record().synchronize()
        return verifies_launch.result(), steps_launch.result()

    def steps(self, num_calls: int) -> _Times:
        """Times of steps with nothing beside them."""
        return self._alone(self._draft_worker, self._step, num_calls)

    def _alone(self, worker: ThreadStream, call: _RepeatedCall, num_calls: int) -> _Times:
        launch = worker.launch(lambda: call.repeated(num_calls, done=threading.Event()))
        worker.record().synchronize()
        return launch.result()


def measure_contention(
    target: Decoder,
    draft: Decoder,
    source: DraftSource,
    *,
    width: int = 5,
    num_calls: int = 20,
    num_turns: int = 5,
    intervals_ms: Sequence[float] = DEFAULT_INTERVALS_MS,
    tick: Callable[[], None] = lambda: None,
) -> list[ContentionRow]:
    """Time verifies and steps in every company, taking turns.

    Args:
        target: the model that verifies.
        draft: the model that drafts.
        source: the same draft, for a process of its own.
        width: tokens of a verify.
        num_calls: verifies of each turn in each company.
        num_turns: how often every company has its turn.
        intervals_ms: switch intervals, each tried beside a thread; the first is also the others'.
        tick: called after each turn in each company, `num_turns * (3 + len(intervals_ms))` times.

    Raises:
        RuntimeError: if the draft's process fails.
    """
    default_ms = intervals_ms[0]
    cases = [(Beside.NOTHING, default_ms), (Beside.PROCESS, default_ms)]
    cases += [(Beside.THREAD, interval_ms) for interval_ms in intervals_ms]
    verifies = {case: _Times() for case in cases}
    steps = {case: _Times() for case in cases}
    bench = _Bench(target, draft, source, width=width)
    try:
        bench.verifies(Beside.THREAD, 2)
        for turn in range(num_turns):
            first = turn % len(cases)
            for case in cases[first:] + cases[:first]:
                with switch_interval(case[1]):
                    verify_times, step_times = bench.verifies(case[0], num_calls)
                    if case[0] is Beside.NOTHING:
                        step_times = bench.steps(num_calls)
                        tick()
                verifies[case].add(verify_times)
                steps[case].add(step_times)
                tick()
    finally:
        bench.close()
    return [
        _row(source.weights, work, case, times[case])
        for work, times in ((Work.VERIFY, verifies), (Work.STEP, steps))
        for case in cases
    ]


def num_ticks(num_turns: int, num_intervals: int) -> int:
    """How often `measure_contention` ticks."""
    return num_turns * (3 + num_intervals)


def _row(weights: WeightKind, work: Work, case: tuple[Beside, float], times: _Times) -> ContentionRow:
    return ContentionRow(
        weights=weights.value,
        work=work,
        beside=case[0],
        switch_interval_ms=case[1],
        call_ms=statistics.median(times.wall_ms),
        waited_ms=statistics.median(times.waited_ms),
        sleeps=statistics.fmean(times.sleeps) if times.sleeps else None,
        num_calls=len(times.wall_ms),
    )


@contextmanager
def switch_interval(interval_ms: float) -> Iterator[None]:
    """Set the interpreter's switch interval for a while."""
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(interval_ms / 1e3)
    try:
        yield
    finally:
        sys.setswitchinterval(before_s)


def format_contention(rows: Sequence[ContentionRow]) -> str:
    """A table for people; the last column is the slow-down against the same work beside nothing."""
    layout = "{:8}  {:10}  {:8}  {:>9}  {:>8}  {:>9}  {:>6}  {:>6}"
    lines = [layout.format("weights", "work", "beside", "switch ms", "call ms", "waited ms", "sleeps", "times")]
    alone_ms = {(row.weights, row.work): row.call_ms for row in rows if row.beside is Beside.NOTHING}
    for row in rows:
        slow_down = row.call_ms / alone_ms[row.weights, row.work]
        lines.append(
            layout.format(
                row.weights,
                row.work,
                row.beside,
                f"{row.switch_interval_ms:g}",
                f"{row.call_ms:.2f}",
                f"{row.waited_ms:.2f}",
                "-" if row.sleeps is None else f"{row.sleeps:.0f}",
                f"{slow_down:.2f}",
            )
        )
    return "\n".join(lines)
