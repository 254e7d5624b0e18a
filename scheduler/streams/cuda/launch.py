"""Launches on a CUDA stream: work that the host has done, and the device has not yet.

Owns a launch's outcome, and when the host may have it. Knows nothing of drivers.
"""

from __future__ import annotations

import threading
from typing import Generic, TypeVar, cast

from scheduler.streams.base import Event, LaunchTimes
from scheduler.streams.cuda.time_source import LaunchMarks

Result = TypeVar("Result")


class Segment:
    """The launches of a stream between two events; all are over when the second one passes."""

    __slots__ = ("end",)

    def __init__(self) -> None:
        self.end: Event | None = None

    @property
    def over(self) -> bool:
        """Whether the device is past all of it."""
        return self.end is not None and self.end.done()


class _Inside(threading.local):
    """How many launches this thread is in."""

    depth = 0


inside = _Inside()


class CudaLaunch(Generic[Result]):
    """Work enqueued on a `CudaStream`, and its outcome."""

    def __init__(
        self,
        segment: Segment,
        *,
        value: Result | None = None,
        error: BaseException | None = None,
        skipped: bool = False,
        marks: LaunchMarks | None = None,
    ) -> None:
        self._segment = segment
        self._value = value
        self._error = error
        self._skipped = skipped
        self._marks = marks

    @property
    def skipped(self) -> bool:
        """Whether the work was passed by, its generation being stale when it was launched."""
        return self._skipped

    def times(self) -> LaunchTimes | None:
        """When its kernels ran on the device; see `scheduler.streams.base.TimedLaunch`."""
        return None if self._marks is None else self._marks.times()

    def result(self) -> Result:
        """The work's value; see `scheduler.streams.base.Launch`.

        Inside other work it may be read at any time: its tensors are handles, and that the device orders the work is
        the affair of events. The host may read it once an event behind it has passed.
        """
        if not inside.depth and not self._segment.over:
            raise RuntimeError("the launch has not run yet; wait for an event recorded behind it")
        if self._error is not None:
            raise self._error
        return cast(Result, self._value)
