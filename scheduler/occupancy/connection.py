"""One device, opened through NVML, lost now and then, opened again.

Owns when to try again. Knows nothing of threads: its user lets one caller in at a time.
"""

from __future__ import annotations

from collections.abc import Callable

from scheduler.occupancy.nvml_library import LIBRARY, NvmlUnavailableError, breaks_connection
from scheduler.occupancy.reading import Occupancy
from scheduler.occupancy.sampler import DeviceSampler
from scheduler.occupancy.visible_device import find_device

_RETRY_INTERVAL_S = 5.0
"""How long a missing driver or a lost device is left alone before the next try."""


class DeviceConnection:
    """Reads a device while it is there, and says why not while it is not."""

    def __init__(self, uuid: str | None, *, clock: Callable[[], float], sleep: Callable[[float], None]) -> None:
        """Open nothing yet.

        Args:
            uuid: of the device; None takes the first that CUDA_VISIBLE_DEVICES leaves.
            clock: seconds.
            sleep: waits that many seconds.
        """
        self._uuid = uuid
        self._clock = clock
        self._sleep = sleep
        self._sampler: DeviceSampler | None = None
        self._generation: int | None = None
        self._tried_at_s: float | None = None
        self.reason = "not asked yet"
        """What is read, or why nothing can be."""
        LIBRARY.acquire(self._give_back)

    @property
    def available(self) -> bool:
        """Whether the device could be opened, and was not lost since."""
        return self._sampler is not None

    def open(self) -> None:
        """Open the device unless it is open, or was tried a moment ago; never raises."""
        if self._sampler is not None and self._generation == LIBRARY.current_generation():
            return
        tried_at_s = None if self._sampler is not None else self._tried_at_s
        if tried_at_s is not None and self._clock() - tried_at_s < _RETRY_INTERVAL_S:
            return
        # A forked child comes here with its parent's sampler, which is of no use to it.
        self._sampler, self._generation, self._tried_at_s = None, None, self._clock()
        try:
            nvml = LIBRARY.connect()
            self._generation = LIBRARY.current_generation()
            handles = find_device(nvml, self._uuid)
        except NvmlUnavailableError as error:
            self.reason = str(error)
            if error.__cause__ is not None and breaks_connection(error.__cause__):
                LIBRARY.disconnect()
                self._tried_at_s = self._clock()
        else:
            self.reason = "read through NVML"
            self._sampler = DeviceSampler(nvml, handles, clock=self._clock, sleep=self._sleep)

    def read(self, *, own_idle_s: float | None) -> Occupancy:
        """A reading, after another try to open the device where that is due; never raises.

        Args:
            own_idle_s: handed on into the reading.
        """
        self.open()
        sampler = self._sampler
        if sampler is None:
            return Occupancy.unknown(self.reason, taken_at_s=self._clock(), own_idle_s=own_idle_s)
        occupancy = sampler.read(own_idle_s=own_idle_s)
        broken = sampler.broken
        if broken is None and not any(field.known for field in occupancy.measured().values()):
            broken = f"no field can be read ({occupancy.memory_total_bytes.reason})"
        if broken is not None:
            LIBRARY.disconnect()
            self._tried_at_s = self._clock()
            self.reason = f"{broken}; tried again after {_RETRY_INTERVAL_S:g} s"
        return occupancy

    def let_go(self) -> None:
        """Give everything back to NVML; idempotent, never raises."""
        LIBRARY.release(self._give_back)

    def _give_back(self) -> None:
        sampler, self._sampler = self._sampler, None
        if sampler is None:
            return
        self._tried_at_s = None  # if others' loss is the cause, the device is opened again with the next reading
        self.reason = "NVML was stopped"
        if self._generation == LIBRARY.current_generation():
            sampler.close()
