"""The demo model leaves its event loop free and stops when it is told to."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from profiling.ticker import ticking
from runtime import Mode, Runtime

PROMPT = "Once upon a time there was a small model that"


@pytest.fixture(scope="module")
def runtimes() -> Iterator[dict[Mode, Runtime]]:
    """Loaded once for all tests and loops: a runtime belongs to no event loop."""
    loaded: dict[Mode, Runtime] = {}
    yield loaded
    for runtime in loaded.values():
        asyncio.run(runtime.close())


@pytest.fixture
async def runtime(runtimes: dict[Mode, Runtime], demo_gguf: Path, mode: Mode) -> Runtime:
    if mode not in runtimes:
        runtimes[mode] = await Runtime.load(demo_gguf, mode=mode, draft=["ngram", "early-exit:4"], gamma=4)
    return runtimes[mode]


@pytest.mark.weights
@pytest.mark.timeout(600)
async def test_a_ticker_stays_regular_beside_generation(runtime: Runtime) -> None:
    async with ticking() as gaps_s:
        started = time.perf_counter()
        await runtime.generate(PROMPT, max_tokens=30, ignore_eos=True)
        generated_s = time.perf_counter() - started
        async with runtime.stream(PROMPT, max_tokens=20, ignore_eos=True) as chunks:
            async for _ in chunks:
                pass
    assert max(gaps_s) < generated_s / 2
    assert sorted(gaps_s)[len(gaps_s) // 2] < generated_s / 10


@pytest.mark.weights
@pytest.mark.timeout(600)
async def test_a_cancelled_request_gives_way_at_once(runtime: Runtime) -> None:
    """The next request waits for a round at most, not for the five hundred tokens that were asked for."""
    expected = await runtime.generate(PROMPT, max_tokens=8)
    started = time.perf_counter()
    await runtime.generate(PROMPT, max_tokens=30, ignore_eos=True)
    thirty_s = time.perf_counter() - started
    long = asyncio.create_task(runtime.generate("Tell me everything.", max_tokens=500, ignore_eos=True))
    await asyncio.sleep(thirty_s / 10)
    long.cancel()
    started = time.perf_counter()
    following = await runtime.generate(PROMPT, max_tokens=8)
    assert time.perf_counter() - started < 6 * thirty_s
    assert following.token_ids == expected.token_ids
    assert long.cancelled()
