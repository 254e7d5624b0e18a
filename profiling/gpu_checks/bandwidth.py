"""How fast the device's memory and the way to the host are.

Owns the copies.
"""

from __future__ import annotations

import dataclasses
from functools import partial

import torch

from profiling.gpu_checks.bench import GpuBench
from profiling.gpu_checks.check import Budget, Finding
from profiling.gpu_checks.timing import Spread


async def measure_bandwidth(bench: GpuBench, budget: Budget) -> Finding:
    """Copies within the device and both ways over the bus, timed by events."""
    num_bytes = min(bench.sizes.copy_bytes, bench.driver.memory().free_bytes // 8)
    first, second = (torch.zeros(num_bytes, dtype=torch.uint8, device=bench.device) for _ in range(2))
    host = bench.driver.host_buffer(num_bytes)
    bench.gauge.synchronize()
    # A copy within the device reads and writes each byte.
    copies = {
        "device to device": (first, second, 2),
        "host to device": (first, host, 1),
        "device to host": (host, first, 1),
    }
    stream = bench.stream("copies")
    rates: dict[str, list[float]] = {name: [] for name in copies}
    for repeat in budget.spend(range(1 + bench.sizes.num_copies), "repeats", least=2):
        for name, (target, source, num_passes) in copies.items():
            start = stream.record()
            stream.launch(partial(target.copy_, source, non_blocking=True))
            end = stream.record()
            await end
            if repeat:  # the first one is cold
                rates[name].append(num_passes * num_bytes / max(end.elapsed_ms_since(start), 1e-6) / 1e6)
    stream.close()
    spreads = {name: Spread.of(own) for name, own in rates.items()}
    return Finding(
        summary=", ".join(f"{name} {spread.median:,.0f} GB/s" for name, spread in spreads.items()),
        figures={
            "num_bytes": num_bytes,
            **{f"{name}, GB/s": dataclasses.asdict(spread) for name, spread in spreads.items()},
        },
    )
