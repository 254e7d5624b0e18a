"""How late a coroutine hears of an event, by each way to await, and how an event loop fares beside a generation.

Owns both measurements.
"""

from __future__ import annotations

import dataclasses
import time

from profiling.gpu_checks.bench import GpuBench
from profiling.gpu_checks.check import Budget, Finding
from profiling.gpu_checks.planted_speed import PlantedRuns
from profiling.gpu_checks.rig import LoopKind, LoopPlan
from profiling.gpu_checks.timing import Spread
from profiling.ticker import ticking
from scheduler import AwaitMethod, CudaEvent, CudaStream

_SPINNING = "spinning"
"""The reference: a loop that does nothing else but ask."""


async def measure_await_latency(bench: GpuBench, budget: Budget) -> Finding:
    """From launching a sleep to knowing that it is over, less what a spinning host takes; in turn."""
    streams = {method.value: bench.stream(method.value, awaiting=method) for method in AwaitMethod}
    streams[_SPINNING] = bench.stream(_SPINNING)
    times_ms: dict[tuple[str, float], list[float]] = {}
    for repeat in budget.spend(range(1 + bench.sizes.num_awaits), "repeats", least=2):
        for sleep_ms in bench.sizes.await_ms:
            for name, stream in streams.items():
                took_ms = await _sleep_and_wait(bench, stream, sleep_ms, spin=name == _SPINNING)
                if repeat:  # the first one is cold
                    times_ms.setdefault((name, sleep_ms), []).append(took_ms)
    for stream in streams.values():
        stream.close()
    figures: dict[str, object] = {}
    words = []
    for method in AwaitMethod:
        late_ms = {}
        for sleep_ms in bench.sizes.await_ms:
            # The quickest: what interrupts a spinning host is no part of the event's time.
            reference_ms = min(times_ms[_SPINNING, sleep_ms])
            spread = Spread.of([own - reference_ms for own in times_ms[method.value, sleep_ms]])
            late_ms[f"behind a sleep of {sleep_ms:g} ms"] = dataclasses.asdict(spread)
            words.append(f"{method.value} {spread.median * 1e3:.0f} us behind {sleep_ms:g} ms")
        figures[f"{method.value}, late_ms"] = late_ms
    return Finding(summary="later than a spinning host: " + ", ".join(words), figures=figures)


async def _sleep_and_wait(bench: GpuBench, stream: CudaStream, sleep_ms: float, *, spin: bool) -> float:
    started_s = time.perf_counter()
    stream.launch(lambda: bench.driver.sleep(bench.cycles(sleep_ms)))
    event: CudaEvent = stream.record()
    if spin:
        while not event.done():
            pass
    else:
        await event
    return (time.perf_counter() - started_s) * 1e3


async def measure_ticker(bench: GpuBench, budget: Budget) -> Finding:
    """The longest gap of a 10 ms ticker beside a pipelined generation of the large pair, and beside nothing."""
    sizes = bench.sizes
    runs = PlantedRuns(bench)
    plan = LoopPlan(kind=LoopKind.PIPELINED, gamma=sizes.gamma, lead=sizes.lead)
    with runs.rig(plan, sizes.acceptances[-1]) as rig:
        await rig.run(runs.request(max_tokens=sizes.num_planted_tokens), num_reports=2)
        started_s = time.perf_counter()
        async with ticking() as gaps_s:
            output = await rig.run(runs.request(max_tokens=sizes.num_planted_tokens))
        took_ms = (time.perf_counter() - started_s) * 1e3
        await rig.idle()
    gaps_ms = [gap_s * 1e3 for gap_s in gaps_s]
    return Finding(
        summary=f"longest gap {max(gaps_ms):.1f} ms beside a generation of {took_ms:.0f} ms "
        f"({len(output.reports)} rounds, launched on the event loop's own thread)",
        figures={"gap_ms": dataclasses.asdict(Spread.of(gaps_ms)), "worst_gap_ms": max(gaps_ms), "took_ms": took_ms},
    )
