"""When work ran on a GPU, told by the host's clock.

Owns the anchor that ties the two clocks together. Events note the device's time, of which only differences can be had;
one event whose passing the host has seen makes the host's time of all others.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from scheduler.streams.base import LaunchTimes
from scheduler.streams.cuda.driver import CudaDriver, EventHandle, StreamHandle


class CudaTime:
    """The host's clock, and the place of a GPU's events on it."""

    def __init__(self, driver: CudaDriver, stream: StreamHandle) -> None:
        """Tie the clocks together, behind what is enqueued on `stream`; the host waits for that.

        What lies between the anchor's passing and the host's noticing, some microseconds, all times are late by.
        """
        self._driver = driver
        self._anchor = driver.new_event(timing=True, blocking=False)
        driver.record(self._anchor, stream)
        driver.synchronize(self._anchor)
        self._anchor_ms = self.now_ms()

    def now_ms(self) -> float:
        """Milliseconds of `time.perf_counter`."""
        return time.perf_counter() * 1e3

    def mark(self, stream: StreamHandle) -> EventHandle:
        """An event with its time behind what is enqueued on `stream`."""
        event = self._driver.new_event(timing=True, blocking=False)
        self._driver.record(event, stream)
        return event

    def between(self, began: EventHandle, ended: EventHandle) -> LaunchTimes | None:
        """The times of two marks; None until both have passed, or where the device has failed."""
        try:
            if not self._driver.query(ended):
                return None
            start_ms = self._anchor_ms + self._driver.elapsed_ms(self._anchor, began)
            # The driver's float32 is exact over short times: durations stay so however long ago the anchor was.
            end_ms = start_ms + self._driver.elapsed_ms(began, ended)
        except RuntimeError:
            # Whoever awaits the work hears of it.
            return None
        return LaunchTimes(start_ms=start_ms, end_ms=end_ms)


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchMarks:
    """Marks before and behind a launch."""

    time_source: CudaTime
    began: EventHandle
    ended: EventHandle

    def times(self) -> LaunchTimes | None:
        """When the launch ran; None as long as the device is not past it."""
        return self.time_source.between(self.began, self.ended)
