"""Launches and rounds that a recorder has seen begin and not end.

Owns what is filled in on the way: by the thread that runs a launch, and by the host. Knows nothing of when they end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from scheduler.round import RoundReport
from scheduler.spans.markers import EndRange
from scheduler.spans.span import LaunchOutcome, LaunchSpan, RoundSpan
from scheduler.streams.base import TimedLaunch


@dataclass(kw_only=True, slots=True, eq=False)
class PendingLaunch:
    """A launch whose times are not known yet."""

    number: int
    lane: str
    stream: str
    label: str
    queued_ms: float
    round_number: int | None
    generation: int | None
    launch: TimedLaunch[Any] | None = None
    """None until the stream has taken it."""
    num_tokens: int | None = None
    """Filled in by the thread that runs it, as are the next two."""
    gamma: int | None = None
    lead: int | None = None
    enqueue_ms: float | None = None
    failed: bool = False

    @property
    def is_over(self) -> bool:
        """Whether all is known that ever will be, by itself."""
        return self.failed or (self.launch is not None and (self.launch.skipped or self.launch.times() is not None))

    def span(self) -> LaunchSpan:
        """What is known by now."""
        times = None if self.launch is None else self.launch.times()
        outcome = LaunchOutcome.UNKNOWN if times is None else LaunchOutcome.RAN
        if self.failed:
            outcome = LaunchOutcome.FAILED
        elif self.launch is not None and self.launch.skipped:
            outcome = LaunchOutcome.SKIPPED
        return LaunchSpan(
            number=self.number,
            lane=self.lane,
            stream=self.stream,
            label=self.label,
            queued_ms=self.queued_ms,
            start_ms=None if times is None else times.start_ms,
            end_ms=None if times is None else times.end_ms,
            outcome=outcome,
            round_number=self.round_number,
            generation=self.generation,
            num_tokens=self.num_tokens,
            enqueue_ms=self.enqueue_ms,
        )


@dataclass(kw_only=True, slots=True, eq=False)
class PendingRound:
    """A round whose verdict is not committed yet."""

    number: int
    start_ms: float
    drafts: tuple[PendingLaunch, ...]
    """What block and guess were cut from."""
    end_range: EndRange
    verdict_ms: float | None = None
    end_commit: EndRange | None = None

    def span(self, report: RoundReport, *, end_ms: float) -> RoundSpan:
        """What it came to."""
        asked = [draft for draft in self.drafts if draft.gamma is not None]
        # A piece behind the end of a chain answers 0 although its block has tokens.
        chosen = [draft for draft in asked if draft.gamma] or asked
        return RoundSpan(
            number=self.number,
            start_ms=self.start_ms,
            verdict_ms=end_ms if self.verdict_ms is None else self.verdict_ms,
            end_ms=end_ms,
            drafts=tuple(draft.number for draft in self.drafts),
            gamma=chosen[-1].gamma if chosen else None,
            lead=chosen[-1].lead if chosen else None,
            num_proposed=report.num_proposed,
            num_accepted=report.num_accepted,
            num_tokens=len(report.token_ids),
            hit=report.hit,
            num_discarded=report.num_discarded,
            together=report.together,
            source=report.source,
            draft_ms=report.draft_ms,
            verify_ms=report.verify_ms,
        )
