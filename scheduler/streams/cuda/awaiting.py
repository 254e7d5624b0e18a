"""Two ways to await a point on a GPU: look again and again, or have a thread wait for it.

Owns when to look, and the threads. Neither blocks an event loop, and neither has Python called from a driver's thread,
which could wait for the interpreter's lock while its holder waits for the driver. Knows nothing of streams.
"""

from __future__ import annotations

import asyncio
import enum
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from functools import partial
from queue import SimpleQueue
from typing import Protocol

from scheduler.streams.threads import ThreadEvent

_SPIN_S = 50e-6
"""What is this close is not worth a timer."""
_TIMER_S = 1.5e-3
"""A loop's timers may be late by their granularity, a millisecond, and a little."""
_OVERDUE_SPIN_S = 0.5e-3
"""How long to go on looking at every turn once the event is due."""
_LONGEST_PAUSE_S = 5e-3
"""While the event is not due: so long may a wait that is shorter than expected be slept past its end."""
_LONGEST_OVERDUE_PAUSE_S = 1e-3
_NUM_RECENT = 8


class AwaitMethod(enum.Enum):
    """How a coroutine gets to know that a point on the device has been passed."""

    POLL = "poll"
    """The coroutine looks, at every turn of its loop when the point is due, and else by timer. Quickest to notice."""
    THREAD = "thread"
    """A helper thread sleeps in the driver and wakes the loop. Leaves the loop and its processor core alone."""


class Awaited(Protocol):
    """What can be awaited: a point on the device."""

    def done(self) -> bool:
        """Whether it has been passed."""
        ...

    def wait_error(self) -> BaseException | None:
        """Block until it has been passed, then return its error."""
        ...


class Waiter(Protocol):
    """One way of waiting, for all points of one stream."""

    def wait_for(self, point: Awaited) -> Generator[object, None, None]:
        """Suspend the coroutine that drives this until `point` has been passed; raises what asking `point` raises."""
        ...

    def close(self) -> None:
        """Let go of what it holds; waits that have begun still end. Idempotent."""
        ...


def pause_s(elapsed_s: float, expected_s: float) -> float:
    """How long to leave an event alone that has not passed after `elapsed_s`; 0 is one turn of the loop.

    A pure function: turns at first, since what is short is over before a timer would ring; then pauses until shortly
    before `expected_s`, each no longer than the wait so far and 5 ms; turns again while the event is due; then pauses
    in proportion to how late it is, at most 1 ms.
    """
    if elapsed_s < _SPIN_S:
        return 0.0
    early_s = 0.9 * expected_s - _TIMER_S
    if elapsed_s < early_s:
        return min(early_s - elapsed_s, max(elapsed_s, _LONGEST_OVERDUE_PAUSE_S), _LONGEST_PAUSE_S)
    overdue_s = elapsed_s - 1.1 * expected_s - _OVERDUE_SPIN_S
    if overdue_s < 0.0:
        return 0.0
    return min(_LONGEST_OVERDUE_PAUSE_S, max(_SPIN_S, overdue_s / 4))


class PollingWaiter:
    """Looks at an event in an adaptive rhythm; expects what the shortest of the last waits took.

    The shortest, since a short wait behind long ones must not be slept through.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        """Begin without an expectation.

        Args:
            clock: seconds since some moment.
        """
        self._clock = clock
        self._recent_s: deque[float] = deque(maxlen=_NUM_RECENT)

    @property
    def expected_s(self) -> float:
        """How long the next wait will take at least, by experience; 0 before there is any."""
        return min(self._recent_s, default=0.0)

    def wait_for(self, point: Awaited) -> Generator[object, None, None]:
        """Suspend the coroutine that drives this until `point` has been passed."""
        start_s = self._clock()
        looked_s = 0.0
        while not point.done():
            looked_s = self._clock() - start_s
            delay_s = pause_s(looked_s, self.expected_s)
            if delay_s == 0.0:
                yield None  # one turn of the loop, with neither a task nor a timer
            else:
                yield from asyncio.sleep(delay_s).__await__()
        # It passed at some moment between the last two looks: the middle keeps pauses from proving themselves right.
        self._recent_s.append((looked_s + self._clock() - start_s) / 2)

    def close(self) -> None:
        """Nothing is held."""


class _Threads:
    """Daemon threads, as many as there are jobs at once, kept for the next ones."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._num_threads = 0
        self._num_idle = 0

    def run(self, job: Callable[[], None]) -> None:
        """Have a thread run `job` at once."""
        with self._lock:
            if self._num_idle > 0:
                self._num_idle -= 1
            else:
                self._num_threads += 1
                threading.Thread(target=self._work, name=self._name, daemon=True).start()
            self._jobs.put(job)

    def end(self) -> None:
        """End each thread after its job; no job may follow."""
        with self._lock:
            for _ in range(self._num_threads):
                self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            del job
            with self._lock:
                self._num_idle += 1


class ThreadWaiter:
    """Has threads wait, one for each point that is waited for at once.

    One for all would not do: while it waits for a late point of the stream, nobody would notice an earlier one.
    """

    def __init__(self, name: str) -> None:
        """Start no thread yet.

        Args:
            name: for the threads' names.
        """
        self._thread_name = f"slipstream-await-{name}"
        self._lock = threading.Lock()
        self._threads = _Threads(self._thread_name)
        self._latches: dict[Awaited, ThreadEvent] = {}

    def wait_for(self, point: Awaited) -> Generator[object, None, None]:
        """Suspend the coroutine that drives this until `point` has been passed."""
        with self._lock:
            latch = self._latches.get(point)
            if latch is None:
                latch = self._latches[point] = ThreadEvent()
                self._threads.run(partial(self._watch, point, latch))
        yield from latch.__await__()

    def close(self) -> None:
        """End the threads, each after what it still waits for; a later wait would start others."""
        with self._lock:
            threads, self._threads = self._threads, _Threads(self._thread_name)
        threads.end()

    def _watch(self, point: Awaited, latch: ThreadEvent) -> None:
        error: BaseException | None = None
        try:
            point.wait_error()  # whoever awaits asks for what it returns once more
        except BaseException as raised:  # what it raises travels, so that nobody waits for ever
            error = raised
        with self._lock:
            del self._latches[point]
        latch.set(error)


def new_waiter(method: AwaitMethod, name: str) -> Waiter:
    """A waiter of that kind for the stream of that name."""
    return PollingWaiter() if method is AwaitMethod.POLL else ThreadWaiter(name)
