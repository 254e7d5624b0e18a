"""Decoding on a machine that nobody has: the real loops over models that are given by their costs.

Owns the settings and one simulated request. The loops, streams and edges are the real ones; the clock is virtual. Knows
nothing of how a timeline is shown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from profiling.acceptance_pattern import AcceptanceSegment, balanced_pattern, draw_pattern
from profiling.scripted_pair import MAX_BLOCK, ScriptedModel, scripted_ids
from scheduler import (
    CostModel,
    DecodeRequest,
    FixedGamma,
    Lane,
    ModelProposer,
    PipelinedLoop,
    RoundMode,
    RoundReport,
    SamplingSettings,
    SequentialLoop,
    TimelineEntry,
    TimelineSummary,
    VirtualDevice,
    check_integer,
    check_number,
    summarize_timeline,
)

_PROMPT_IDS = (0, 1)
_MOST_MS = 1e6
_MOST_GAMMA = MAX_BLOCK - 1


@dataclass(frozen=True, kw_only=True)
class SimulationSettings:
    """A pair of models, a machine and a request.

    Raises:
        TypeError, ValueError: if a field is of the wrong type or outside its limits.
    """

    draft_ms: float = 4.0
    """One call of the draft: one token."""
    verify_ms: float = 40.0
    """One call of the target with one token."""
    extra_token_ms: float = 1.0
    """Each further token of such a call."""
    draft_contention: float = 1.1
    """How many times longer a draft's call takes while the target runs."""
    target_contention: float = 1.05
    """How many times longer a target's call takes while the draft runs."""
    acceptance: float = 0.8
    """Probability that the draft's token is the target's own, for each position by itself."""
    segments: tuple[AcceptanceSegment, ...] = ()
    """Instead of one acceptance: stretches of the output, the last of which goes on to its end."""
    balanced: bool = False
    """Whether runs of right tokens of each length are as frequent as they should be, rather than drawn: less noise."""
    gamma: int = 4
    max_lead: int = 8
    """Most tokens drafted past a block, in pipelined mode."""
    num_awaited: int | None = None
    """Proposals that the target waits for where fewer are ready, in pipelined mode; None waits for gamma."""
    num_tokens: int = 128
    host_latency_ms: float = 0.05
    """From an event to the line of the loop that waits for it."""
    call_ms: float = 0.005
    """The loop's time for each launch, record, wait or look at an event."""
    seed: int = 0
    """Of the positions at which the draft is right."""

    def __post_init__(self) -> None:
        check_number("verify_ms", self.verify_ms, low=1e-3, high=_MOST_MS, advice="give milliseconds")
        for name in ("draft_ms", "extra_token_ms", "host_latency_ms", "call_ms"):
            check_number(name, getattr(self, name), low=0.0, high=_MOST_MS, advice="give milliseconds")
        for name in ("draft_contention", "target_contention"):
            check_number(name, getattr(self, name), low=1.0, high=1e3, advice="1 is no slow-down")
        check_number("acceptance", self.acceptance, low=0.0, high=1.0, advice="it is a probability")
        for segment in self.segments:
            if not isinstance(segment, AcceptanceSegment):
                raise TypeError(
                    f"segments must hold AcceptanceSegment, not {type(segment).__name__}; give tokens and acceptance"
                )
        check_integer("gamma", self.gamma, low=1, high=_MOST_GAMMA, advice="plain decoding is a mode of its own")
        check_integer("max_lead", self.max_lead, low=1, high=_MOST_GAMMA, advice="8 is a good start")
        if self.num_awaited is not None:
            check_integer(
                "num_awaited", self.num_awaited, low=0, high=_MOST_GAMMA, advice="0 never waits for the draft"
            )
        check_integer("num_tokens", self.num_tokens, low=1, high=100_000, advice="128 show how a pair does")
        check_integer("seed", self.seed, low=0, advice="any other number is as good")


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """What one request came to."""

    mode: RoundMode
    num_tokens: int
    num_rounds: int
    num_proposed: int
    num_accepted: int
    num_hits: int
    num_discarded: int
    total_ms: float
    """From the start to the last token's arrival at the host."""
    tokens_per_s: float
    summary: TimelineSummary
    timeline: tuple[TimelineEntry, ...]
    """Launches that had ended by then, in the order of their starts."""


def _scripted_pair(settings: SimulationSettings, num_positions: int) -> tuple[ScriptedModel, ScriptedModel]:
    target_ids, draft_ids = scripted_ids(_pattern(settings, num_positions))
    target = ScriptedModel("target", target_ids, call_ms=settings.verify_ms, extra_token_ms=settings.extra_token_ms)
    return target, ScriptedModel("draft", draft_ids, call_ms=settings.draft_ms, extra_token_ms=0.0)


def _pattern(settings: SimulationSettings, num_positions: int) -> list[bool]:
    """Where the draft is right. The first output token is the one after the prompt's last position."""
    segments = list(settings.segments)
    last = segments.pop().acceptance if segments else settings.acceptance
    num_before = sum(segment.num_tokens for segment in segments)
    segments.append(AcceptanceSegment(num_tokens=max(num_positions - num_before, 1), acceptance=last))
    fill = balanced_pattern if settings.balanced else draw_pattern
    before_output = [True] * (len(_PROMPT_IDS) - 1)
    return [*before_output, *fill(segments, settings.seed)][:num_positions]


def simulate(mode: RoundMode, settings: SimulationSettings) -> Simulation:
    """Decode one request on the simulated machine."""
    return asyncio.run(_simulate(mode, settings))


async def _simulate(mode: RoundMode, settings: SimulationSettings) -> Simulation:
    capacity = len(_PROMPT_IDS) + settings.num_tokens + 2 * _MOST_GAMMA
    target_model, draft_model = _scripted_pair(settings, capacity + 1)
    models = {"target": target_model, "draft": draft_model}
    device = VirtualDevice(
        settings.seed,
        costs=CostModel(
            duration_ms=lambda stream, label, value: models[stream].take_spent_ms(),
            contention={"target": settings.target_contention, "draft": settings.draft_contention},
            host_latency_ms=settings.host_latency_ms,
            call_ms=settings.call_ms,
        ),
    )
    target_stream, draft_stream = device.stream("target"), device.stream("draft")
    target = Lane("target", target_model, target_stream, capacity=capacity)
    draft = Lane("draft", draft_model, draft_stream, capacity=capacity)
    proposer = ModelProposer(draft, FixedGamma(settings.gamma))
    loop: SequentialLoop | PipelinedLoop
    if mode is RoundMode.PIPELINED:
        loop = PipelinedLoop(
            target,
            draft_stream,
            [proposer],
            max_gamma=settings.gamma,
            max_lead=settings.max_lead,
            num_awaited=settings.num_awaited,
        )
    else:
        proposers = [] if mode is RoundMode.PLAIN else [proposer]
        loop = SequentialLoop(target, draft_stream, proposers, max_gamma=settings.gamma)
    request = DecodeRequest(
        prompt_ids=_PROMPT_IDS, settings=SamplingSettings(temperature=0.0), max_tokens=settings.num_tokens
    )
    await loop.prefill(request)
    reports = [report async for report in loop.rounds(request)]
    total_ms, timeline = device.now_ms, device.timeline
    draft_stream.close()
    target_stream.close()
    return _outcome(mode, reports, total_ms, timeline)


def _outcome(
    mode: RoundMode, reports: Sequence[RoundReport], total_ms: float, timeline: Sequence[TimelineEntry]
) -> Simulation:
    num_tokens = sum(len(report.token_ids) for report in reports)
    return Simulation(
        mode=mode,
        num_tokens=num_tokens,
        num_rounds=len(reports),
        num_proposed=sum(report.num_proposed for report in reports),
        num_accepted=sum(report.num_accepted for report in reports),
        num_hits=sum(report.hit is True for report in reports),
        num_discarded=sum(report.num_discarded for report in reports),
        total_ms=total_ms,
        tokens_per_s=num_tokens / total_ms * 1e3,
        summary=summarize_timeline(timeline),
        timeline=tuple(sorted(timeline, key=lambda entry: (entry.start_ms, entry.end_ms))),
    )
