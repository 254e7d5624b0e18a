"""Whether this process has work on the device.

Owns the count of running pieces and since when there has been none. Knows nothing of NVML.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class OwnWork:
    """Counts what this process runs on the device, so that the rest can be blamed on others."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Idle from now on; `clock` counts seconds."""
        self._clock = clock
        self._lock = threading.Lock()
        self._num_running = 0
        self._ended_at_s = clock()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Hold this open around work; pieces may overlap."""
        with self._lock:
            self._num_running += 1
        try:
            yield
        finally:
            with self._lock:
                self._num_running -= 1
                self._ended_at_s = self._clock()

    def idle_s(self) -> float | None:
        """How long nothing has run; None while something does."""
        with self._lock:
            return None if self._num_running else self._clock() - self._ended_at_s
