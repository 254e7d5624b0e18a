"""What NVML says of the device while it is idle and while it is busy.

Owns the two readings. Whatever is unknown keeps its reason.
"""

from __future__ import annotations

import asyncio

from profiling.gpu_checks.bench import GpuBench
from profiling.gpu_checks.check import Budget, Finding
from profiling.gpu_checks.model_calls import ModelCalls
from scheduler import Occupancy, OccupancyProbe

_BATCH = 8
"""Calls between two looks at the clock."""
_TOLD = ("gpu_percent", "sm_active_percent", "sm_occupancy_percent", "dram_bandwidth_percent", "power_w")


async def measure_occupancy(bench: GpuBench, budget: Budget) -> Finding:
    """A reading before work, and one over work: verifies of width 1, one after the other."""
    uuid = bench.driver.properties().uuid
    with await asyncio.to_thread(OccupancyProbe.for_device, uuid or None) as probe:
        if not probe.available:
            return Finding(summary=f"no reading: {probe.reason}", figures={"available": False, "reason": probe.reason})
        call = ModelCalls(bench, bench.large_pair().target).verify(1)
        await asyncio.to_thread(probe.read)
        await asyncio.sleep(bench.sizes.occupancy_s)
        idle = await asyncio.to_thread(probe.read)
        busy_reading = asyncio.create_task(_read_later(probe, bench.sizes.occupancy_s))
        stream = bench.stream("busy")
        while not busy_reading.done():
            for _ in range(_BATCH):
                stream.launch(call)
            await stream.record()
            await asyncio.sleep(0)
        busy = await busy_reading
        stream.close()
    return Finding(
        summary=f"idle: {_in_words(idle)}; busy: {_in_words(busy)}",
        figures={"available": True, "idle": _fields(idle), "busy": _fields(busy)},
    )


async def _read_later(probe: OccupancyProbe, wait_s: float) -> Occupancy:
    """A reading whose hardware counters cover the last `wait_s`."""
    await asyncio.sleep(wait_s)
    return await asyncio.to_thread(probe.read)


def _fields(occupancy: Occupancy) -> dict[str, object]:
    return {name: {"value": field.value, "reason": field.reason} for name, field in occupancy.measured().items()}


def _in_words(occupancy: Occupancy) -> str:
    measured = occupancy.measured()
    known = [f"{name} {measured[name].value:g}" for name in _TOLD if isinstance(measured[name].value, int | float)]
    return ", ".join(known) or f"nothing known ({measured[_TOLD[0]].reason})"
