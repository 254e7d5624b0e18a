"""Memory and the GPU's own figures, read while a request is recorded.

Owns what is read and how often: never more often than every 100 ms, from a task that sleeps in between, and from the
probe's last reading, which does not wait for NVML. What is unknown is left out with the reason, and never 0. Knows
nothing of traces.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from scheduler import Occupancy

INTERVAL_S = 0.1
"""NVML's figures change no faster."""
PROCESS_MEMORY_FILE = Path("/proc/self/statm")

_MEBIBYTE = 1 << 20

_logger = logging.getLogger("slipstream")


class Counter(StrEnum):
    """What is read, by the name in a trace."""

    PROCESS_MEMORY = "process memory"
    DEVICE_MEMORY = "device memory in use"
    GPU_BUSY = "GPU busy"
    SM_OCCUPANCY = "SM occupancy"
    DRAM_BANDWIDTH = "DRAM bandwidth"

    @property
    def unit(self) -> str:
        """Unit of its values."""
        return "MiB" if self in (Counter.PROCESS_MEMORY, Counter.DEVICE_MEMORY) else "%"


@dataclass(frozen=True, kw_only=True)
class CounterReading:
    """What was known at one moment."""

    at_ms: float
    """By `time.perf_counter`."""
    values: Mapping[Counter, float]


@dataclass(kw_only=True)
class CounterReadings:
    """All that was read."""

    readings: list[CounterReading] = field(default_factory=list)
    unknown: dict[Counter, str] = field(default_factory=dict)
    """Why a counter has no value, or had none at last."""

    def missing(self) -> dict[str, str]:
        """The counters without any value, each with the reason; ready for JSON."""
        seen = {counter for reading in self.readings for counter in reading.values}
        return {counter.value: self.unknown.get(counter, "never read") for counter in Counter if counter not in seen}


class CounterReader:
    """Reads all counters once, at a cost of some microseconds."""

    def __init__(self, occupancy: Callable[[], Occupancy], readings: CounterReadings) -> None:
        """Bind the source.

        Args:
            occupancy: the last look at the device; must not block.
            readings: where everything goes.
        """
        self._occupancy = occupancy
        self._readings = readings
        self._looked_at_s: float | None = None

    def read(self) -> None:
        """Note what is known now; of the device only what is new."""
        now_ms = time.perf_counter() * 1e3
        if (resident_bytes := self._resident_bytes()) is not None:
            values = {Counter.PROCESS_MEMORY: resident_bytes / _MEBIBYTE}
            self._readings.readings.append(CounterReading(at_ms=now_ms, values=values))
        occupancy = self._occupancy()
        if occupancy.taken_at_s != self._looked_at_s:
            self._looked_at_s = occupancy.taken_at_s
            # It was taken a moment ago, by another clock.
            age_ms = (time.monotonic() - occupancy.taken_at_s) * 1e3
            self._note_device(occupancy, time.perf_counter() * 1e3 - age_ms)

    def try_read(self) -> bool:
        """Read; whether that may go on. A failure is told of, and no reason to lose a recording."""
        try:
            self.read()
        except Exception as error:
            _logger.warning("memory and GPU are read no more, so their counters end early: %s", error)
            reason = f"reading failed: {error}"
            self._readings.unknown |= dict.fromkeys(Counter, reason)
            return False
        return True

    def _note_device(self, occupancy: Occupancy, at_ms: float) -> None:
        values = {}
        for counter, known in (
            (Counter.DEVICE_MEMORY, occupancy.memory_used_bytes),
            (Counter.GPU_BUSY, occupancy.gpu_percent),
            (Counter.SM_OCCUPANCY, occupancy.sm_occupancy_percent),
            (Counter.DRAM_BANDWIDTH, occupancy.dram_bandwidth_percent),
        ):
            if known.value is None:
                self._readings.unknown[counter] = known.reason
            else:
                values[counter] = known.value / (_MEBIBYTE if counter is Counter.DEVICE_MEMORY else 1)
        if values:
            self._readings.readings.append(CounterReading(at_ms=at_ms, values=values))

    def _resident_bytes(self) -> int | None:
        """Memory of this process that is not swapped out (proc(5), statm)."""
        try:
            return int(PROCESS_MEMORY_FILE.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except (OSError, ValueError, IndexError) as error:
            self._readings.unknown[Counter.PROCESS_MEMORY] = f"{PROCESS_MEMORY_FILE} cannot be read: {error}"
            return None


@asynccontextmanager
async def reading_counters(occupancy: Callable[[], Occupancy]) -> AsyncIterator[CounterReadings]:
    """Read counters as long as the block runs, and once more at its end; a failure ends the reading, not the block.

    Args:
        occupancy: the last look at the device; must not block.
    """
    readings = CounterReadings()
    reader = CounterReader(occupancy, readings)

    async def keep_reading() -> None:
        while True:
            if not reader.try_read():
                return
            await asyncio.sleep(INTERVAL_S)

    task = asyncio.create_task(keep_reading())
    try:
        yield readings
    finally:
        failed = task.done()
        task.cancel()
        await asyncio.wait([task])
        if not failed:
            reader.try_read()
