"""Streams on a CPU: one worker thread each, first in, first out.

Owns worker threads, their intra-op thread count and inference mode, and the hand-over of a finished event
to asyncio. Knows nothing of models or rounds.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Generator, Iterable
from queue import SimpleQueue
from typing import Generic, TypeVar

import torch

from scheduler.errors import StaleLaunchError, StreamClosedError
from scheduler.streams.base import Event, HostTime, LaunchTimes, TimedLaunch, TimeSource
from scheduler.streams.label import label_of
from scheduler.streams.lineage import Generation

Result = TypeVar("Result")


class ThreadLaunch(Generic[Result]):
    """Work queued on a `ThreadStream`, and its outcome."""

    def __init__(
        self,
        work: Callable[[], Result],
        label: str,
        generation: Generation | None,
        time_source: TimeSource | None = None,
    ) -> None:
        self._work: Callable[[], Result] | None = work
        self._label = label
        self._generation = generation
        self._time_source = time_source
        self._times: LaunchTimes | None = None
        self._value: Result | None = None
        self._error: BaseException | None = None
        self._finished = False
        self.skipped = False

    def run(self, poison: BaseException | None) -> BaseException | None:
        """Run on the worker, skip what is stale, or take over an earlier launch's error; returns that error."""
        if poison is not None:
            self._error = poison
        elif self._generation is not None and self._generation.stale:
            self.skipped = True
            label = self._label or label_of(self._work)
            self._error = StaleLaunchError(f"{label!r} was skipped: its generation was retired")
        elif self._work is not None:
            start_ms = self._time_source.now_ms() if self._time_source else 0.0
            try:
                self._value = self._work()
            except BaseException as error:  # it travels to whoever waits, even a KeyboardInterrupt
                self._error = poison = error
            if self._time_source:
                self._times = LaunchTimes(start_ms=start_ms, end_ms=self._time_source.now_ms())
        self._work = None
        self._finished = True
        return poison

    def times(self) -> LaunchTimes | None:
        """When it ran; see `scheduler.streams.base.TimedLaunch`."""
        return self._times

    def result(self) -> Result:
        """The work's value; see `scheduler.streams.base.Launch`."""
        if not self._finished:
            raise RuntimeError("the launch has not run yet; wait for an event recorded behind it")
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]  # set by run() unless an error was


class ThreadEvent:
    """A point in a `ThreadStream`."""

    def __init__(self) -> None:
        # Rounds make several of these, so it is one lock and no condition: `threading.Event` costs five times as much.
        self._lock = threading.Lock()
        self._passed = False
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[], None]] = []

    def set(self, error: BaseException | None) -> None:
        """Mark the point as passed; called once, by the worker."""
        with self._lock:
            self._error = error
            self._passed = True
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    def done(self) -> bool:
        """Whether the worker is past this point."""
        return self._passed

    def wait_error(self) -> BaseException | None:
        """Block until passed, then return the error instead of raising it."""
        if not self._passed:
            gate = threading.Lock()
            gate.acquire()
            if self._call_back(gate.release):
                gate.acquire()
        return self._error

    def synchronize(self) -> None:
        """Block until passed; raises what the stream's work raised."""
        error = self.wait_error()
        if error is not None:
            raise error

    def __await__(self) -> Generator[object, None, None]:
        if not self._passed:
            loop = asyncio.get_running_loop()
            future: asyncio.Future[None] = loop.create_future()

            def wake() -> None:
                # A loop that closed meanwhile has nobody left to wake.
                with contextlib.suppress(RuntimeError):
                    loop.call_soon_threadsafe(_resolve, future)

            if self._call_back(wake):
                yield from future
        self.synchronize()

    def _call_back(self, callback: Callable[[], None]) -> bool:
        """Have the worker call when it passes; False if it is past already, and will not call."""
        with self._lock:
            if not self._passed:
                self._callbacks.append(callback)
            return not self._passed


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class ThreadStream:
    """A worker thread that runs launches in order.

    The thread is a daemon, so a program that forgets to close its runtime still ends.
    """

    def __init__(self, name: str, *, num_threads: int | None = None) -> None:
        """Start the worker.

        Args:
            name: for messages and the thread's name.
            num_threads: intra-op threads of torch inside the worker; None takes over the caller's number.
        """
        self._name = name
        # A fresh thread would take what any thread of the process has set last.
        self._num_threads = torch.get_num_threads() if num_threads is None else num_threads
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._time_source: TimeSource | None = None
        self._poison: BaseException | None = None
        self._closed = False
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=f"slipstream-{name}", daemon=True)
        self._thread.start()

    @property
    def name(self) -> str:
        """The name given at construction."""
        return self._name

    def launch(
        self,
        work: Callable[[], Result],
        *,
        reads: Iterable[str] = (),
        writes: Iterable[str] = (),
        label: str = "",
        generation: Generation | None = None,
    ) -> TimedLaunch[Result]:
        """Queue `work`; the buffer names matter to streams that check for races, not to this one."""
        launch = ThreadLaunch(work, label, generation, self._time_source)

        def run() -> None:
            self._poison = launch.run(self._poison)

        self._enqueue(run)
        return launch

    def record(self) -> Event:
        """An event behind everything queued so far; it takes a failed launch's error with it."""
        event = ThreadEvent()

        def mark() -> None:
            error, self._poison = self._poison, None
            event.set(error)

        self._enqueue(mark)
        return event

    def wait(self, event: Event) -> None:
        """Hold later launches back until `event`; an error on it marks this stream too."""
        if not isinstance(event, ThreadEvent):
            raise TypeError(f"a ThreadStream can wait for a ThreadEvent only, not {type(event).__name__}")

        def hold() -> None:
            error = event.wait_error()
            if self._poison is None:
                self._poison = error

        self._enqueue(hold)

    def new_time_source(self) -> TimeSource:
        """The host's own; see `scheduler.streams.base.TimedStream`."""
        return HostTime()

    def time_launches(self, time_source: TimeSource | None) -> None:
        """Note the times of launches from now on; see `scheduler.streams.base.TimedStream`."""
        self._time_source = time_source

    def close(self) -> None:
        """Run what is queued, then end the thread; blocks until it has ended."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._queue.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _enqueue(self, item: Callable[[], None]) -> None:
        with self._lock:
            if self._closed:
                raise StreamClosedError(f"stream {self._name!r} is closed; load a new runtime")
            self._queue.put(item)

    def _run(self) -> None:
        # Asked for the first time, torch gives a thread the number that any thread has set last: ask, then set.
        torch.get_num_threads()
        torch.set_num_threads(self._num_threads)
        with torch.inference_mode():
            while (item := self._queue.get()) is not None:
                item()
