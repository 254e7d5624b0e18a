"""What a round costs outside of the models, and what recording it adds, measured with models that cost nothing.

Owns the costless models, the rounds run with them and the figures: how long the event loop's thread computes for a
round, how long the target stands idle between a verdict and the next block, and how long a round takes in all. The last
contains what the lanes do beside their models: drawing tokens and judging them. Knows nothing of text.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TypeVar

import torch

from models import Cache
from profiling.counting_cache import CountingCache, own_cache
from scheduler import (
    DecodeRequest,
    FixedGamma,
    Generation,
    Lane,
    ModelProposer,
    PipelinedLoop,
    SamplingSettings,
    SequentialLoop,
    SpanRecorder,
    ThreadStream,
    TimedLaunch,
)

Result = TypeVar("Result")

_GAMMA = 4
_VOCAB_SIZE = 8
_NUM_WARM_UP = 300


@dataclass(frozen=True, kw_only=True)
class RoundCost:
    """Medians over the rounds of one mode on one kind of event loop, in microseconds."""

    mode: str
    event_loop: str
    host_us: float
    """Time that the event loop's thread computed for a round."""
    gap_us: float
    """From the end of a verdict to the start of the next block, on the target's stream."""
    round_us: float
    """A whole round."""
    num_rounds: int
    recorded: bool = False
    """Whether every launch and round was recorded meanwhile."""


class _CostlessModel:
    """Prefers the same token for ever, so that every proposal is right."""

    name = "costless"
    vocab_size = _VOCAB_SIZE
    context_length = sys.maxsize
    max_block = 17
    device = torch.device("cpu")

    def __init__(self) -> None:
        self._rows_RV = torch.zeros(self.max_block, _VOCAB_SIZE)
        self._rows_RV[:, 3] = 1.0

    def new_cache(self, capacity: int) -> CountingCache:
        return CountingCache(capacity)

    def forward(self, token_ids_T: torch.Tensor, cache: Cache, *, num_logits: int) -> torch.Tensor:
        own_cache(cache).length += len(token_ids_T)
        return self._rows_RV[:num_logits]


@dataclass
class _Clock:
    """When verdicts ended and blocks began."""

    verdict_ended_s: float | None = None
    gaps_us: list[float] = field(default_factory=list)

    def timed(self, label: str, work: Callable[[], Result]) -> Callable[[], Result]:
        def begin_block() -> Result:
            if self.verdict_ended_s is not None:
                self.gaps_us.append((time.perf_counter() - self.verdict_ended_s) * 1e6)
            return work()

        def end_verdict() -> Result:
            result = work()
            self.verdict_ended_s = time.perf_counter()
            return result

        return {"verify": begin_block, "judge": end_verdict}.get(label, work)


class _ClockedStream(ThreadStream):
    """Notes when a target's launches begin and end."""

    def __init__(self, name: str) -> None:
        super().__init__(name, num_threads=1)
        self.clock = _Clock()

    def launch(
        self,
        work: Callable[[], Result],
        *,
        reads: Iterable[str] = (),
        writes: Iterable[str] = (),
        label: str = "",
        generation: Generation | None = None,
    ) -> TimedLaunch[Result]:
        work = self.clock.timed(label, work)
        return super().launch(work, reads=reads, writes=writes, label=label, generation=generation)


async def _measured(mode: str, event_loop: str, num_rounds: int, *, recorded: bool) -> RoundCost:
    num_tokens = (_NUM_WARM_UP + num_rounds + 2) * (_GAMMA + 1)
    capacity = num_tokens + 16
    target_stream = _ClockedStream("target")
    draft_stream = ThreadStream("draft", num_threads=1) if mode == "pipelined" else target_stream
    try:
        target = Lane("target", _CostlessModel(), target_stream, capacity=capacity)
        draft = Lane("draft", _CostlessModel(), draft_stream, capacity=capacity)
        proposers = [] if mode == "plain" else [ModelProposer(draft, FixedGamma(_GAMMA))]
        spans = SpanRecorder()
        loop: SequentialLoop | PipelinedLoop
        if mode == "pipelined":
            loop = PipelinedLoop(target, draft_stream, proposers, max_gamma=_GAMMA, max_lead=_GAMMA, spans=spans)
        else:
            loop = SequentialLoop(target, draft_stream, proposers, max_gamma=_GAMMA, spans=spans)
        if recorded:
            spans.start()
        cost = await _timed_rounds(loop, target_stream.clock, mode, event_loop, num_rounds, num_tokens)
        return replace(cost, recorded=recorded)
    finally:
        target_stream.close()
        draft_stream.close()


async def _timed_rounds(
    loop: SequentialLoop | PipelinedLoop,
    clock: _Clock,
    mode: str,
    event_loop: str,
    num_rounds: int,
    num_tokens: int,
) -> RoundCost:
    request = DecodeRequest(prompt_ids=(1, 2, 3), settings=SamplingSettings(), max_tokens=num_tokens)
    await loop.prefill(request)
    rounds = loop.rounds(request)
    for _ in range(_NUM_WARM_UP):
        await anext(rounds)
    round_us, host_us = [], []
    before_s, computed_before_s = time.perf_counter(), time.thread_time()
    for _ in range(num_rounds):
        await anext(rounds)
        now_s, computed_s = time.perf_counter(), time.thread_time()
        round_us.append((now_s - before_s) * 1e6)
        host_us.append((computed_s - computed_before_s) * 1e6)
        before_s, computed_before_s = now_s, computed_s
    await rounds.aclose()
    return RoundCost(
        mode=mode,
        event_loop=event_loop,
        host_us=statistics.median(host_us),
        # Those of the warm-up are few among them, and a median minds no few.
        gap_us=statistics.median(clock.gaps_us),
        round_us=statistics.median(round_us),
        num_rounds=num_rounds,
    )


def measure_round_costs(*, num_rounds: int = 1000, num_turns: int = 3) -> list[RoundCost]:
    """Every mode on every event loop in turn, several times; the median of each figure."""
    factories: dict[str, Callable[[], asyncio.AbstractEventLoop] | None] = {"asyncio": None}
    try:
        import uvloop
    except ImportError:
        pass  # not on Windows
    else:
        factories["uvloop"] = uvloop.new_event_loop
    modes = [("plain", False), ("sequential", False), ("pipelined", False), ("pipelined", True)]
    cases = [(mode, name, recorded) for mode, recorded in modes for name in factories]
    measured: dict[tuple[str, str, bool], list[RoundCost]] = {case: [] for case in cases}
    for _ in range(num_turns):
        for mode, name, recorded in cases:
            with asyncio.Runner(loop_factory=factories[name]) as runner:
                cost = runner.run(_measured(mode, name, num_rounds, recorded=recorded))
            measured[mode, name, recorded].append(cost)
    return [_median(costs) for costs in measured.values()]


def _median(costs: list[RoundCost]) -> RoundCost:
    return replace(
        costs[0],
        host_us=statistics.median(cost.host_us for cost in costs),
        gap_us=statistics.median(cost.gap_us for cost in costs),
        round_us=statistics.median(cost.round_us for cost in costs),
        num_rounds=sum(cost.num_rounds for cost in costs),
    )


def format_round_costs(costs: list[RoundCost]) -> str:
    """A table for people."""
    layout = "{:19}  {:10}  {:>8}  {:>8}  {:>9}"
    lines = [layout.format("mode", "loop", "host us", "gap us", "round us")]
    for cost in costs:
        figures = (f"{value:.0f}" for value in (cost.host_us, cost.gap_us, cost.round_us))
        mode = f"{cost.mode}, recorded" if cost.recorded else cost.mode
        lines.append(layout.format(mode, cost.event_loop, *figures))
    return "\n".join(lines)
