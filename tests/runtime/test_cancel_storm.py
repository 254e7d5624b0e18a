"""Hundreds of pipelined requests that are left at random points, by every way out."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import threading
import tracemalloc
from collections import Counter
from collections.abc import Awaitable, Callable

from runtime import Mode
from tests.support.table_runtime import Rig, build_rig, greedy_ids, similar_draft, table_target

NUM_REQUESTS = 500
NUM_WARM_UPS = 100
PROMPT = (5, 17, 40, 8)
LONG = 400
"""Tokens that nobody waits for."""
OURS = {"runtime", "scheduler", "models", "tests"}


async def some_steps(chance: random.Random) -> None:
    """Let other tasks and the workers go on for a while."""
    for _ in range(chance.randrange(12)):
        await asyncio.sleep(0)
    if chance.random() < 0.4:
        await asyncio.sleep(chance.uniform(0, 0.004))


async def read_all(rig: Rig, prompt: tuple[int, ...]) -> None:
    async with rig.runtime.stream(prompt, max_tokens=LONG, ignore_eos=True) as chunks:
        async for _ in chunks:
            pass


async def leave_by_cancel(rig: Rig, prompt: tuple[int, ...], chance: random.Random) -> None:
    work = read_all(rig, prompt) if chance.random() < 0.5 else rig.runtime.generate(prompt, max_tokens=LONG)
    task: asyncio.Task[object] = asyncio.create_task(work)
    await some_steps(chance)
    task.cancel()
    await asyncio.wait([task])


async def leave_by_break(rig: Rig, prompt: tuple[int, ...], chance: random.Random) -> None:
    num_chunks = chance.randrange(6)
    async with rig.runtime.stream(prompt, max_tokens=LONG, ignore_eos=True) as chunks:
        async for _ in chunks:
            num_chunks -= 1
            if num_chunks < 0:
                break


async def leave_by_closing(rig: Rig, prompt: tuple[int, ...], chance: random.Random) -> None:
    stream = rig.runtime.stream(prompt, max_tokens=LONG, ignore_eos=True)
    async with stream:
        await some_steps(chance)
        await stream.aclose()


async def leave_by_time_out(rig: Rig, prompt: tuple[int, ...], chance: random.Random) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(read_all(rig, prompt), chance.uniform(0, 0.004))


async def leave_the_queue(rig: Rig, prompt: tuple[int, ...], chance: random.Random) -> None:
    """Two at once: the second one mostly leaves before its turn has come."""
    await asyncio.gather(leave_by_cancel(rig, prompt, chance), leave_by_cancel(rig, prompt[:2], chance))


WAYS: tuple[Callable[[Rig, tuple[int, ...], random.Random], Awaitable[None]], ...] = (
    leave_by_cancel,
    leave_by_break,
    leave_by_closing,
    leave_by_time_out,
    leave_the_queue,
)


def num_live() -> Counter[str]:
    """Live objects of our own types."""
    gc.collect()
    kinds = [type(thing) for thing in gc.get_objects()]
    return Counter(kind.__qualname__ for kind in kinds if str(kind.__module__).partition(".")[0] in OURS)


async def check_next_request(rig: Rig) -> None:
    """The runtime is free, and what it writes is what the table says."""
    result = await asyncio.wait_for(rig.runtime.generate(PROMPT, max_tokens=24, ignore_eos=True), 30)
    assert result.token_ids == greedy_ids(table_target(), PROMPT, 24)


async def test_a_cancel_storm_leaves_nothing_behind() -> None:
    target = table_target()
    rig = build_rig(target, similar_draft(target), mode=Mode.PIPELINED, with_ngram=True, num_awaited=1)
    chance = random.Random(1)
    complaints: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))

    async def storm(num_requests: int) -> None:
        for index in range(num_requests):
            prompt = (chance.randrange(200), *PROMPT) if index % 3 else PROMPT
            await chance.choice(WAYS)(rig, prompt, chance)
        await rig.drained()
        for model in (rig.target, rig.draft):
            assert model is not None
            # The test's own record of calls is no leak.
            model.widths.clear()

    async with rig.runtime:
        await storm(NUM_WARM_UPS)
        await check_next_request(rig)
        await rig.drained()
        tracemalloc.start()
        try:
            live, threads = num_live(), threading.active_count()
            used_bytes, _ = tracemalloc.get_traced_memory()
            await storm(NUM_REQUESTS)
            grown = num_live() - live
            grown_bytes = tracemalloc.get_traced_memory()[0] - used_bytes
        finally:
            tracemalloc.stop()
        assert grown.total() < NUM_REQUESTS // 10, f"objects stay behind: {grown.most_common(5)}"
        # Some 60 KiB are new whatever the number of requests: what was there before was not traced.
        assert grown_bytes < 128 * 1024
        assert threading.active_count() == threads
        assert asyncio.all_tasks() == {asyncio.current_task()}
        await check_next_request(rig)
    await asyncio.sleep(0)
    assert complaints == []
