"""The ring of result slots under lag: late copies arrive whole and in order, and a full ring says so.

Owns the questions.
"""

from __future__ import annotations

import random
from collections import deque

import torch

from profiling.gpu_checks.bench import GpuBench
from profiling.gpu_checks.check import Budget, Finding
from scheduler import CudaEvent, CudaStream, Launch, PinnedRing, PinnedSlot

_NUM_SLOTS = 4
_NUM_WORDS = 64
_LONGEST_LAG_MS = 0.3
_HELD_MS = 100.0


async def check_ring(bench: GpuBench, budget: Budget) -> Finding:
    """Results of a stream that lags at random, read as late as the ring allows."""
    faults: list[str] = []
    stream = bench.stream("lagging")
    num_read, num_wrong = await _lagged(bench, stream, budget)
    if num_wrong:
        faults.append(f"{num_wrong} of {num_read} results were not what the device had written")
    for refused, what in ((await _kept(bench, stream), "unread"), (await _writing(bench, stream), "on its way")):
        if not refused:
            faults.append(f"a copy went into a slot whose result was still {what}")
    stream.close()
    return Finding(
        summary=f"{num_read - num_wrong} of {num_read} late results were right, full rings were refused"
        if not faults
        else f"{len(faults)} faults",
        figures={"num_results": num_read, "num_wrong": num_wrong, "num_slots": _NUM_SLOTS},
        faults=tuple(faults),
    )


async def _lagged(bench: GpuBench, stream: CudaStream, budget: Budget) -> tuple[int, int]:
    ring = PinnedRing(bench.driver, num_slots=_NUM_SLOTS, num_bytes=_NUM_WORDS * 8)
    draw = random.Random(1)
    counter_W = torch.zeros(_NUM_WORDS, dtype=torch.int64, device=bench.device)
    bench.gauge.synchronize()
    unread: deque[tuple[int, Launch[PinnedSlot], CudaEvent]] = deque()
    num_read = num_wrong = 0

    def write() -> PinnedSlot:
        bench.driver.sleep(bench.cycles(draw.random() * _LONGEST_LAG_MS))
        counter_W.add_(1)
        return ring.copy(counter_W)

    async def read() -> None:
        nonlocal num_read, num_wrong
        number, launch, event = unread.popleft()
        await event
        slot = launch.result()
        num_wrong += slot.read().tolist() != [number] * _NUM_WORDS
        num_read += 1
        slot.release()

    for number in budget.spend(range(1, bench.sizes.num_ring_results + 1), "results", share=0.8):
        while len(unread) >= draw.randint(1, _NUM_SLOTS):
            await read()
        launch = stream.launch(write)
        unread.append((number, launch, stream.record()))
    while unread:
        await read()
    return num_read, num_wrong


async def _kept(bench: GpuBench, stream: CudaStream) -> bool:
    """Whether a ring refuses to overwrite what its reader has not released."""
    ring = PinnedRing(bench.driver, num_slots=1, num_bytes=8)
    value = torch.zeros(1, dtype=torch.int64, device=bench.device)
    bench.gauge.synchronize()
    first = stream.launch(lambda: ring.copy(value))
    await stream.record()
    slot = first.result()
    refused = await _refused(stream, ring, value)
    slot.release()
    return refused and not await _refused(stream, ring, value)


async def _writing(bench: GpuBench, stream: CudaStream) -> bool:
    """Whether a ring refuses to write where an earlier copy has not arrived, even if nobody wants that any more."""
    ring = PinnedRing(bench.driver, num_slots=1, num_bytes=8)
    value = torch.zeros(1, dtype=torch.int64, device=bench.device)
    bench.gauge.synchronize()

    def write() -> None:
        bench.driver.sleep(bench.cycles(_HELD_MS))
        ring.copy(value).release()

    stream.launch(write)
    stream.record()
    return await _refused(stream, ring, value)


async def _refused(stream: CudaStream, ring: PinnedRing, value: torch.Tensor) -> bool:
    def write() -> None:
        ring.copy(value).release()

    stream.launch(write)
    try:
        await stream.record()
    except RuntimeError:
        return True
    return False
