"""Times of calls on a stream, by the device's own events, and their medians.

Owns three ways to time a call. *Eager* is what a round pays: the host enqueues kernels while the device runs them.
*Queued* is the device's part alone: a sleep in front lets the host enqueue the call before the device comes to it, as
far as the device's launch queue (about a thousand kernels) reaches. *Host* is the host's part alone: how long the call
takes to enqueue. Knows nothing of what is called.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from profiling.gpu_checks.bench import GpuBench
from scheduler import CudaStream

_HELD_FOR_HOST = 1.5
"""A queued call sleeps for this many times what the host takes to enqueue it."""


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Several measurements of one thing."""

    median: float
    low: float
    """First quartile."""
    high: float
    """Third quartile."""
    num: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """The spread of at least one value."""
        if len(values) == 1:
            return cls(median=values[0], low=values[0], high=values[0], num=1)
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median=median, low=low, high=high, num=len(values))


@dataclass(frozen=True, kw_only=True)
class CallTimes:
    """One kind of call."""

    eager_ms: Spread
    queued_ms: Spread
    host_ms: Spread


class CallTimer:
    """Collects times of one call; rounds of several timers take turns, so that a slow moment hits all alike."""

    def __init__(self, bench: GpuBench, stream: CudaStream, call: Callable[[], object]) -> None:
        """Time `call`, made as a launch of `stream`, which must have times."""
        self._bench = bench
        self._stream = stream
        self._call = call
        self._eager_ms: list[float] = []
        self._queued_ms: list[float] = []
        self._host_ms: list[float] = []

    async def warm(self) -> None:
        """Make the call twice, untimed."""
        for _ in range(2):
            self._stream.launch(self._call)
        await self._stream.record()

    async def time(self) -> None:
        """One more of each kind."""
        stream = self._stream
        start = stream.record()
        started_s = time.perf_counter()
        stream.launch(self._call)
        host_ms = (time.perf_counter() - started_s) * 1e3
        end = stream.record()
        await end
        self._host_ms.append(host_ms)
        self._eager_ms.append(end.elapsed_ms_since(start))
        stream.launch(lambda: self._bench.driver.sleep(self._bench.cycles(_HELD_FOR_HOST * host_ms)))
        start = stream.record()
        stream.launch(self._call)
        end = stream.record()
        await end
        self._queued_ms.append(end.elapsed_ms_since(start))

    def times(self) -> CallTimes:
        """Of what was timed, once at least."""
        return CallTimes(
            eager_ms=Spread.of(self._eager_ms),
            queued_ms=Spread.of(self._queued_ms),
            host_ms=Spread.of(self._host_ms),
        )
