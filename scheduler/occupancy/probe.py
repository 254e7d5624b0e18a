"""The probe: how full the device is, asked for at most every 100 ms and never on the event loop.

Owns polling and the thread that polls. Knows nothing of what the scheduler
makes of it.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Self

from scheduler.occupancy.connection import DeviceConnection
from scheduler.occupancy.own_work import OwnWork
from scheduler.occupancy.reading import Occupancy
from scheduler.settings import check_number

MIN_INTERVAL_S = 0.1
"""NVML's own figures change no faster, and each reading costs the driver's lock."""

_READINGS = threading.Lock()
"""One reading at a time in a process: nobody starts NVML anew under another's calls."""

_CLOSED = "the probe was closed"


class OccupancyProbe:
    """Looks at one device through NVML; where that is impossible it says why, and never raises.

    Utilisation does not tell whose it is. Hold `own_work()` open around this process's work, and ask for a
    reading *before* it begins: a device that is busy while this process is idle is busy for others.
    """

    def __init__(
        self,
        uuid: str | None,
        *,
        interval_s: float,
        clock: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        """Keep the settings; `for_device` is the way to get a probe."""
        self._interval_s = interval_s
        self._clock = clock
        self._connection = DeviceConnection(uuid, clock=clock, sleep=sleep)
        self._own_work = OwnWork(clock)
        self._state = threading.Lock()  # held for moments only, never across a call to NVML
        self._last: Occupancy | None = None
        self._reading = False
        self._closed = False
        self._wanted: tuple[float | None] | None = None
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        finalizer = weakref.finalize(self, _abandon, self._connection, self._wake)
        finalizer.atexit = False  # a driver that hangs must not keep the interpreter from ending

    @classmethod
    def for_device(
        cls,
        uuid: object = None,
        *,
        interval_s: float = 0.25,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> OccupancyProbe:
        """Open the device with this UUID; blocks while the driver starts, so call it off the event loop.

        Args:
            uuid: as `torch.cuda.get_device_properties(device).uuid` or nvidia-smi gives it, with or without `GPU-`
                or `MIG-`; None takes the first device that CUDA_VISIBLE_DEVICES leaves.
            interval_s: how old a reading may get before another is taken; at least 0.1.
            clock: seconds, for readings' times and ages.
            sleep: waits that many seconds between two samples of the hardware counters.

        Raises:
            TypeError, ValueError: if `interval_s` is no number or out of range. Whatever is wrong with the device,
                its driver or NVML is told by `available` and `reason` instead.
        """
        check_number(
            "interval_s", interval_s, low=MIN_INTERVAL_S, high=3600.0, advice="NVML is not polled faster than 0.1 s"
        )
        probe = cls(None if uuid is None else str(uuid), interval_s=interval_s, clock=clock, sleep=sleep)
        with _READINGS:
            probe._connection.open()
        return probe

    @property
    def available(self) -> bool:
        """Whether the device could be opened, and was not lost since."""
        return self._connection.available and not self._closed

    @property
    def reason(self) -> str:
        """What is read, or why nothing can be."""
        return _CLOSED if self._closed else self._connection.reason

    def own_work(self) -> AbstractContextManager[None]:
        """Hold this open around this process's work on the device."""
        return self._own_work.running()

    def latest(self) -> Occupancy:
        """The last reading, at once; where it is older than the interval a thread takes the next one meanwhile."""
        with self._state:
            last = self._last
            if not self._closed and self._wanted is None and not self._reading and self._stale():
                self._wanted = (self._own_work.idle_s(),)
                if self._thread is None:
                    self._thread = threading.Thread(
                        target=_take_readings, args=(weakref.ref(self), self._wake), name="occupancy", daemon=True
                    )
                    self._thread.start()
                self._wake.set()
        if last is not None:
            return last
        words = "no reading has been taken yet" if self.available else self.reason
        return Occupancy.unknown(words, taken_at_s=self._clock(), own_idle_s=self._own_work.idle_s())

    def read(self) -> Occupancy:
        """A reading no older than the interval; blocks, so it is for programs, not for an event loop."""
        return self._read(self._own_work.idle_s())

    def describe(self) -> str:
        """One line for people, from the last reading; never blocks."""
        last = self._last
        if not self.available:
            return f"occupancy unknown: {self.reason}"
        return "occupancy not read yet" if last is None else last.describe()

    def close(self) -> None:
        """End the thread and let go of NVML; a reading that is under way does so when it ends. Idempotent."""
        with self._state:
            if self._closed:
                return
            self._closed = True
            in_use = self._reading
        self._wake.set()
        if not in_use:
            self._connection.let_go()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _stale(self) -> bool:
        return self._last is None or self._clock() - self._last.taken_at_s >= self._interval_s

    def _read(self, own_idle_s: float | None) -> Occupancy:
        with _READINGS:
            with self._state:
                self._wanted = None
                if self._last is not None and (self._closed or not self._stale()):
                    return self._last
                if self._closed:
                    return Occupancy.unknown(_CLOSED, taken_at_s=self._clock(), own_idle_s=own_idle_s)
                self._reading = True
            occupancy: Occupancy | None = None
            try:
                occupancy = self._connection.read(own_idle_s=own_idle_s)
            finally:  # an interrupt from the keyboard may come between
                if self._end_reading(occupancy):
                    self._connection.let_go()
        return occupancy

    def _end_reading(self, occupancy: Occupancy | None) -> bool:
        """Keep the reading; say whether the probe was closed meanwhile and left the rest to it."""
        with self._state:
            self._reading = False
            self._last = occupancy or self._last
            return self._closed


def _abandon(connection: DeviceConnection, wake: threading.Event) -> None:
    """What is left to do for a probe that was forgotten without having been closed."""
    wake.set()
    connection.let_go()


def _take_readings(reference: weakref.ref[OccupancyProbe], wake: threading.Event) -> None:
    """What the thread does: a reading whenever it is woken, until the probe is closed or forgotten."""
    while True:
        wake.wait()
        wake.clear()
        probe = reference()
        if probe is None or probe._closed:
            return
        with probe._state:
            wanted = probe._wanted
        if wanted is not None:
            probe._read(wanted[0])
        del probe
