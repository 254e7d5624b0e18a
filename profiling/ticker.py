"""A task that wants to run every few milliseconds, and notes when it could.

Owns the measure of how free an event loop is while something runs on it. Knows nothing of what runs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

TICK_S = 0.01
"""What it wants to sleep between two ticks, unless it is told otherwise."""


@asynccontextmanager
async def ticking(tick_s: float = TICK_S) -> AsyncIterator[list[float]]:
    """Tick as long as the block runs; gives the seconds between ticks, which grow meanwhile."""
    gaps_s: list[float] = []
    last = time.perf_counter()

    def note() -> None:
        nonlocal last
        now = time.perf_counter()
        gaps_s.append(now - last)
        last = now

    async def tick() -> None:
        while True:
            await asyncio.sleep(tick_s)
            note()

    ticker = asyncio.create_task(tick())
    try:
        yield gaps_s
    finally:
        # The loop may have been held up to the very end.
        note()
        ticker.cancel()
        await asyncio.wait([ticker])
