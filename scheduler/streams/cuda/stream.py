"""CUDA streams: launches whose kernels are enqueued at once, and run on the device in stream order.

Owns the order of a stream's launches, errors that travel, and the skipping of stale work. Knows nothing of what the
launches do.

Other streams of the project keep the work itself in a queue. This one runs it on the thread that launches, so that
its kernels stand in the device's queue when `launch` returns. Two things follow. A generation that is retired later no
longer stops the work: its kernels run, and stream order puts whatever mends their effect behind them. And work must not
read a device value on the host, since that would wait for the device.

Memory that is allocated inside a launch belongs to its stream: once the last reference is gone, the allocator may give
it to that stream's next launch, while another stream still reads it. So whoever passes a tensor to another stream keeps
a reference until an event of the reader is behind the read, or allocates it once and for all.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import TypeVar

import torch

from scheduler.errors import StaleLaunchError, StreamClosedError
from scheduler.settings import check_integer
from scheduler.streams.base import Event, TimeSource
from scheduler.streams.cuda.awaiting import AwaitMethod, new_waiter
from scheduler.streams.cuda.driver import CudaDriver
from scheduler.streams.cuda.event import CudaEvent
from scheduler.streams.cuda.launch import CudaLaunch, Segment, inside
from scheduler.streams.cuda.time_source import CudaTime, LaunchMarks
from scheduler.streams.label import label_of
from scheduler.streams.lineage import Generation

Result = TypeVar("Result")


class CudaStream:
    """A stream of a GPU. One thread at a time may launch, record and wait; any may await and close."""

    def __init__(
        self,
        name: str,
        driver: CudaDriver,
        *,
        priority: int = 0,
        awaiting: AwaitMethod = AwaitMethod.POLL,
        timing: bool = False,
    ) -> None:
        """Make the stream.

        Args:
            name: for messages.
            driver: of the GPU.
            priority: a smaller number is more urgent; the device prefers urgent kernels when it next has room.
            awaiting: how coroutines wait for this stream's events.
            timing: whether events note their time, for `CudaEvent.elapsed_ms_since`.

        Raises:
            TypeError, ValueError: if `priority` is no integer, or outside the device's range.
        """
        least, most = driver.priority_range()
        check_integer("priority", priority, low=most, high=least, advice="a smaller number is more urgent")
        self._name = name
        self._driver = driver
        self._timing = timing
        self._blocking = awaiting is AwaitMethod.THREAD
        self._waiter = new_waiter(awaiting, name)
        self._handle = driver.new_stream(priority)
        self._time_source: CudaTime | None = None
        self._poison: BaseException | None = None
        self._segment = Segment()
        self._num_events = 0
        self._free = threading.Condition(threading.Lock())
        self._user: threading.Thread | None = None
        self._in_launch = False
        self._closed = False

    @property
    def name(self) -> str:
        """The name given at construction."""
        return self._name

    @property
    def driver(self) -> CudaDriver:
        """The driver of its GPU."""
        return self._driver

    def launch(
        self,
        work: Callable[[], Result],
        *,
        reads: Iterable[str] = (),
        writes: Iterable[str] = (),
        label: str = "",
        generation: Generation | None = None,
    ) -> CudaLaunch[Result]:
        """Run `work` now, in inference mode and with this stream as the current one, so that its kernels are enqueued.

        The buffer names matter to streams that check for races, not to this one.

        Raises:
            StreamClosedError: if the stream was closed.
            RuntimeError: if another thread is using the stream, or this is called inside a launch of the same stream.
        """
        with self._using("launch"):
            if self._poison is not None:
                return CudaLaunch(self._segment, error=self._poison)
            if generation is not None and generation.stale:
                error = StaleLaunchError(f"{label or label_of(work)!r} was skipped: its generation was retired")
                return CudaLaunch(self._segment, error=error, skipped=True)
            time_source = self._time_source
            try:
                if time_source is None:
                    return CudaLaunch(self._segment, value=self._run(work))
                began = time_source.mark(self._handle)
                value = self._run(work)
                marks = LaunchMarks(time_source=time_source, began=began, ended=time_source.mark(self._handle))
                return CudaLaunch(self._segment, value=value, marks=marks)
            except BaseException as error:  # it travels to whoever waits, even a KeyboardInterrupt
                self._poison = error
                return CudaLaunch(self._segment, error=error)

    def record(self) -> CudaEvent:
        """An event behind everything launched so far; it takes a failed launch's error with it."""
        with self._using("record"):
            return self._record()

    def wait(self, event: Event) -> None:
        """Hold later launches back until `event`, on the device; an error on it marks this stream too.

        Raises:
            TypeError: if it is not an event of a `CudaStream` with the same driver.
        """
        if not isinstance(event, CudaEvent):
            raise TypeError(f"a CudaStream can wait for a CudaEvent only, not {type(event).__name__}")
        if event.driver is not self._driver:
            raise TypeError(f"stream {self._name!r} can wait for events of its own driver only, not for {event}")
        with self._using("wait"):
            self._driver.wait(self._handle, event.handle)
            if self._poison is None:
                self._poison = event.launch_error

    def new_time_source(self) -> TimeSource:
        """The GPU's; see `scheduler.streams.base.TimedStream`. The host waits for what is enqueued."""
        return CudaTime(self._driver, self._handle)

    def time_launches(self, time_source: TimeSource | None) -> None:
        """Note the times of launches from now on, for which each takes two events more.

        Raises:
            TypeError: if the times are not those of a GPU.
        """
        if time_source is not None and not isinstance(time_source, CudaTime):
            raise TypeError(f"a CudaStream is timed by a CudaTime only, not by {type(time_source).__name__}")
        self._time_source = time_source

    def close(self) -> None:
        """Refuse more work and block until the device has done what is enqueued; idempotent.

        Inside a launch of this stream it only refuses more: that launch has yet to end.
        """
        with self._free:
            from_own_work = self._in_launch and self._user is threading.current_thread()
            if not from_own_work:
                self._free.wait_for(lambda: self._user is None)
            was_closed, self._closed = self._closed, True
            if from_own_work:
                return
            try:
                if not was_closed:
                    self._record()
            except RuntimeError:
                # A device that has failed takes no event either; what the host holds ends all the same.
                self._waiter.close()
                raise
        try:
            self._driver.synchronize_stream(self._handle)
        finally:
            self._waiter.close()

    def _run(self, work: Callable[[], Result]) -> Result:
        self._in_launch = True
        inside.depth += 1
        try:
            with torch.inference_mode(), self._driver.under(self._handle):
                return work()
        finally:
            inside.depth -= 1
            self._in_launch = False
            if self._closed:  # by the work itself; this launch is the last
                self._record()

    def _record(self) -> CudaEvent:
        handle = self._driver.new_event(timing=self._timing, blocking=self._blocking)
        self._driver.record(handle, self._handle)
        self._num_events += 1
        event = CudaEvent(
            self._driver,
            handle,
            self._waiter,
            name=f"{self._num_events} of {self._name!r}",
            timing=self._timing,
            error=self._poison,
        )
        self._poison = None
        self._segment.end = event
        self._segment = Segment()
        return event

    @contextmanager
    def _using(self, what: str) -> Generator[None, None, None]:
        """Claim the stream for one call; two at once would leave its order to chance."""
        thread = threading.current_thread()
        with self._free:
            if self._user is thread:
                raise RuntimeError(
                    f"{what} inside a launch of stream {self._name!r} would come before the end of that launch; "
                    "return from it first"
                )
            if self._user is not None:
                raise RuntimeError(
                    f"{what} on stream {self._name!r} from thread {thread.name!r} while thread {self._user.name!r} is "
                    "using it; let one thread at a time launch"
                )
            if self._closed:
                raise StreamClosedError(f"stream {self._name!r} is closed; load a new runtime")
            self._user = thread
        try:
            yield
        finally:
            with self._free:
                self._user = None
                self._free.notify_all()
