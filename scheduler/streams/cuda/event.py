"""CUDA events: points in a CUDA stream, with the error that the stream had there.

Owns what the host knows of a point. Knows nothing of launches.
"""

from __future__ import annotations

from collections.abc import Generator

from scheduler.streams.cuda.awaiting import Waiter
from scheduler.streams.cuda.driver import CudaDriver, EventHandle


class CudaEvent:
    """A recorded point of a `CudaStream`, which alone makes them.

    Each record takes a driver's event of its own: making one costs about a microsecond, while one from a pool would
    have to be proven free of every coroutine, thread and slot that may still ask about its earlier recording.
    """

    def __init__(
        self,
        driver: CudaDriver,
        handle: EventHandle,
        waiter: Waiter,
        *,
        name: str,
        timing: bool,
        error: BaseException | None,
    ) -> None:
        self._driver = driver
        self._handle = handle
        self._waiter = waiter
        self._name = name
        self._timing = timing
        self._error = error
        self._passed = False

    def __str__(self) -> str:
        return f"event {self._name}"

    @property
    def driver(self) -> CudaDriver:
        """Whose event it is."""
        return self._driver

    @property
    def handle(self) -> EventHandle:
        """The driver's own event."""
        return self._handle

    @property
    def launch_error(self) -> BaseException | None:
        """What a launch before it raised while it was enqueued; known from the beginning."""
        return self._error

    @property
    def timed(self) -> bool:
        """Whether its stream notes times."""
        return self._timing

    def done(self) -> bool:
        """Whether the device is past this point; also True once it has failed, and then `synchronize` says how."""
        if not self._passed:
            try:
                self._passed = self._driver.query(self._handle)
            except RuntimeError as error:  # what a kernel did wrong shows here
                self._fail(error)
        return self._passed

    def wait_error(self) -> BaseException | None:
        """Block this thread until passed, then return the error instead of raising it."""
        if not self._passed:
            try:
                self._driver.synchronize(self._handle)
                self._passed = True
            except RuntimeError as error:
                self._fail(error)
        return self._error

    def synchronize(self) -> None:
        """Block this thread until passed; raises what the stream's work raised, or the device's own failure."""
        error = self.wait_error()
        if error is not None:
            raise error

    def __await__(self) -> Generator[object, None, None]:
        if not self.done():
            yield from self._waiter.wait_for(self)
        self.synchronize()

    def elapsed_ms_since(self, earlier: CudaEvent) -> float:
        """Time on the device from `earlier` to this point.

        Raises:
            RuntimeError: if either was recorded on a stream without timing, or has not passed yet.
        """
        for event in (earlier, self):
            if not event._timing:
                raise RuntimeError(f"{event} has no time: make its stream with timing=True")
            if not event.done():
                raise RuntimeError(f"{event} has not passed yet; await it before asking for its time")
        return self._driver.elapsed_ms(earlier._handle, self._handle)

    def _fail(self, error: RuntimeError) -> None:
        # A launch's own error comes first: it may be the cause, and says more.
        self._error = self._error or error
        self._passed = True
