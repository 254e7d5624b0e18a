"""What a draft step and a verify cost, against the bytes that they must read.

Owns the comparison.
"""

from __future__ import annotations

import dataclasses

import torch

from profiling.gpu_checks.bench import GpuBench
from profiling.gpu_checks.check import Budget, Finding
from profiling.gpu_checks.model_calls import ModelCalls, bytes_moved
from profiling.gpu_checks.timing import CallTimer, CallTimes

VERIFY_WIDTHS = tuple(range(1, 10))


async def measure_lane_costs(bench: GpuBench, budget: Budget) -> Finding:
    """A draft step, and verifies at widths 1 to 9, eager and queued, in turn."""
    pair = bench.large_pair()
    bandwidth = await _read_bandwidth(bench)
    target_calls, draft_calls = ModelCalls(bench, pair.target), ModelCalls(bench, pair.draft)
    target_stream, draft_stream = bench.stream("target"), bench.stream("draft")
    timers = {"draft step": CallTimer(bench, draft_stream, draft_calls.step())}
    for width in VERIFY_WIDTHS:
        timers[f"verify {width}"] = CallTimer(bench, target_stream, target_calls.verify(width))
    for timer in timers.values():
        await timer.warm()
    for _ in budget.spend(range(bench.sizes.num_timed_calls), "repeats", least=2):
        for timer in timers.values():
            await timer.time()
    target_stream.close()
    draft_stream.close()
    times = {name: timer.times() for name, timer in timers.items()}
    position = bench.sizes.position
    moved_bytes = {"draft": bytes_moved(pair.draft, position), "target": bytes_moved(pair.target, position)}
    least_ms = {name: num_bytes / bandwidth * 1e3 for name, num_bytes in moved_bytes.items()}
    return Finding(
        summary=_in_words(times, least_ms),
        figures={
            "target_layers": pair.target.config.num_layers,
            "position": position,
            "read_bytes": moved_bytes,
            "read_bandwidth_bytes_per_s": bandwidth,
            "least_ms": least_ms,
            **{name: dataclasses.asdict(own) for name, own in times.items()},
        },
    )


def _in_words(times: dict[str, CallTimes], least_ms: dict[str, float]) -> str:
    step, narrow, wide = times["draft step"], times["verify 1"], times[f"verify {VERIFY_WIDTHS[-1]}"]
    bound = "launch-bound" if narrow.host_ms.median > narrow.queued_ms.median else "device-bound"
    return (
        f"eager: draft step {step.eager_ms.median:.2f} ms, verify 1 {narrow.eager_ms.median:.2f} ms, verify "
        f"{VERIFY_WIDTHS[-1]} {wide.eager_ms.median:.2f} ms; on the device alone {step.queued_ms.median:.2f}, "
        f"{narrow.queued_ms.median:.2f}, {wide.queued_ms.median:.2f}; memory allows {least_ms['draft']:.2f} and "
        f"{least_ms['target']:.2f}; verify 1 is {bound}"
    )


async def _read_bandwidth(bench: GpuBench) -> float:
    """Bytes a second of a sum over a large tensor, the best of a few."""
    num_floats = min(bench.sizes.copy_bytes, bench.driver.memory().free_bytes // 8) // 4
    values = torch.zeros(num_floats, device=bench.device)
    bench.gauge.synchronize()
    stream = bench.stream("sum")
    best = 0.0
    for _ in range(4):
        start = stream.record()
        stream.launch(values.sum)
        end = stream.record()
        await end
        best = max(best, 4 * num_floats / max(end.elapsed_ms_since(start), 1e-6) * 1e3)
    stream.close()
    return best
