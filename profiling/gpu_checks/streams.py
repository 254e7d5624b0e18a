"""The stream contract on the device's own streams: order, edges between streams, errors, stale work, awaiting.

Owns the questions; `scheduler.streams.base` gives the answers that must come.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import torch

from profiling.gpu_checks.bench import GpuBench
from profiling.gpu_checks.check import Budget, Finding
from profiling.ticker import ticking
from scheduler import AwaitMethod, Lineage, StaleLaunchError, StreamClosedError

_HELD_MS = 100.0
"""Longer than a busy host is ever kept from its next line."""
_LARGEST_GAP = 0.5
"""Of the time that a stream sleeps: the longest that an event loop may be held up meanwhile."""


async def check_streams(bench: GpuBench, budget: Budget) -> Finding:
    """Every clause of the contract, for both ways to await."""
    faults: list[str] = []
    num_clauses = 0
    for method in AwaitMethod:
        clauses: tuple[Callable[[GpuBench, AwaitMethod], Awaitable[str | None]], ...] = (
            _order,
            _edge,
            _errors,
            _stale,
            _closed,
        )
        for clause in clauses:
            fault = await clause(bench, method)
            num_clauses += 1
            if fault is not None:
                faults.append(f"{clause.__name__.strip('_')}, awaiting by {method.value}: {fault}")
    worst_gap_ms: dict[str, object] = {}
    for method in AwaitMethod:
        gap_ms = await _worst_gap_ms(bench, method)
        worst_gap_ms[method.value] = gap_ms
        num_clauses += 1
        if gap_ms > _LARGEST_GAP * bench.sizes.blocked_ms:
            faults.append(
                f"awaiting by {method.value} held the event loop up for {gap_ms:.0f} of {bench.sizes.blocked_ms:.0f} ms"
            )
    return Finding(
        summary=f"{num_clauses - len(faults)} of {num_clauses} clauses hold",
        figures={"slept_ms": bench.sizes.blocked_ms, "worst_gap_ms": worst_gap_ms},
        faults=tuple(faults),
    )


async def _order(bench: GpuBench, method: AwaitMethod) -> str | None:
    """Launches of a stream run one after the other, and its event waits for all of them."""
    stream = bench.stream("order", awaiting=method)
    value = stream.launch(lambda: torch.zeros(1, dtype=torch.int64, device=bench.device))
    await stream.record()
    counter = value.result()
    start = stream.record()
    stream.launch(lambda: bench.driver.sleep(bench.cycles(_HELD_MS)))
    for _ in range(20):
        stream.launch(lambda: counter.mul_(3).add_(1).remainder_(1_000_003))
    event = stream.record()
    early = event.done()
    await event
    found, slept_ms = int(counter), event.elapsed_ms_since(start)
    stream.close()
    wanted = 0
    for _ in range(20):
        wanted = (wanted * 3 + 1) % 1_000_003
    if found != wanted:
        return f"20 launches came to {found} instead of {wanted}"
    if early or slept_ms < _HELD_MS / 2:
        return f"an event behind a sleep of {_HELD_MS:.0f} ms passed after {slept_ms:.1f} ms"
    return None


async def _edge(bench: GpuBench, method: AwaitMethod) -> str | None:
    """What one stream writes another one reads behind the event, without the host."""
    first, second = (bench.stream(name, awaiting=method) for name in ("first", "second"))
    size = 1 << 16
    source, copy = (torch.zeros(size, device=bench.device) for _ in range(2))
    bench.gauge.synchronize()

    def write() -> None:
        bench.driver.sleep(bench.cycles(_HELD_MS))
        source.fill_(7.0)

    first.launch(write)
    written = first.record()
    second.wait(written)
    second.launch(lambda: copy.copy_(source))
    copied = second.record()
    early = copied.done()
    await copied
    same = bool((copy == 7.0).all())
    in_order = written.done()
    first.close()
    second.close()
    if not same:
        return "a stream read what it waited for before that was written"
    return "a stream did not wait for the other one's event" if early or not in_order else None


async def _errors(bench: GpuBench, method: AwaitMethod) -> str | None:
    """An error skips what follows, reaches the next event and whoever waits for it, and then the stream is clean."""
    first, second = (bench.stream(name, awaiting=method) for name in ("first", "second"))
    ran: list[str] = []

    def fail() -> None:
        raise LookupError("planted")

    first.launch(fail)
    first.launch(lambda: ran.append("behind the error"))
    failed = first.record()
    second.wait(failed)
    second.launch(lambda: ran.append("behind the wait"))
    told = second.record()
    first.launch(lambda: ran.append("after the event"))
    clean = first.record()
    reached = [await _raised(event) for event in (failed, told, clean)]
    first.close()
    second.close()
    if reached != [LookupError, LookupError, None]:
        names = ", ".join("nothing" if kind is None else kind.__name__ for kind in reached)
        return f"the event, the one of a waiting stream and the next one raised {names}"
    return None if ran == ["after the event"] else f"work ran that was to be skipped: {ran}"


async def _stale(bench: GpuBench, method: AwaitMethod) -> str | None:
    """Launches of a retired generation are passed by."""
    stream = bench.stream("stale", awaiting=method)
    lineage = Lineage()
    old = lineage.begin()
    lineage.retire(old)
    ran: list[str] = []
    skipped = stream.launch(lambda: ran.append("old"), generation=old)
    fresh = stream.launch(lambda: ran.append("new"), generation=lineage.begin())
    await stream.record()
    try:
        skipped.result()
        told = False
    except StaleLaunchError:
        told = True
    stream.close()
    if ran != ["new"] or not skipped.skipped or fresh.skipped:
        return f"of an old and a new generation ran {ran}"
    return None if told else "the result of a skipped launch could be read"


async def _closed(bench: GpuBench, method: AwaitMethod) -> str | None:
    """Closing waits for what is enqueued, and refuses more."""
    stream = bench.stream("closed", awaiting=method)
    stream.launch(lambda: bench.driver.sleep(bench.cycles(_HELD_MS / 3)))
    event = stream.record()
    stream.close()
    if not event.done():
        return "close came back before the device was done"
    try:
        stream.launch(lambda: None)
    except StreamClosedError:
        return None
    return "a closed stream took a launch"


async def _worst_gap_ms(bench: GpuBench, method: AwaitMethod) -> float:
    """Of a ticker that wants to run every 10 ms while a sleeping stream is awaited."""
    stream = bench.stream("slow", awaiting=method)
    async with ticking() as gaps_s:
        await asyncio.sleep(0)
        stream.launch(lambda: bench.driver.sleep(bench.cycles(bench.sizes.blocked_ms)))
        await stream.record()
    stream.close()
    return 1e3 * max(gaps_s)


async def _raised(event: Awaitable[object]) -> type[BaseException] | None:
    try:
        await event
    except LookupError as error:
        return type(error)
    return None
