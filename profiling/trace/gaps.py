"""What the target waits for between two blocks.

Owns the bubble behind a verdict and what it consists of. Knows nothing of how long blocks take.

From one block to the next, in this order: the target's lane is through with the verdict; the host hears of it; it
commits, plans and launches the next block; the block begins, as soon as what was drafted for it is there.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from profiling.trace.traced_round import RoundKind, TracedRequest, TracedRound


@dataclass(frozen=True, kw_only=True)
class Bubbles:
    """Time in which the target stood idle behind some rounds' verdicts."""

    count: int
    median_ms: float
    max_ms: float
    total_ms: float


@dataclass(frozen=True, kw_only=True)
class HostGap:
    """Bubbles taken apart: medians, and totals of what is waited for."""

    count: int
    median_ms: float
    max_ms: float
    hear_ms: float
    """From the verdict on the target's lane until the host knows it."""
    commit_ms: float
    """From then until the next block was launched: commit, plan, and whatever else the event loop does."""
    start_ms: float
    """From then until it began."""
    draft_wait_ms: float
    """The part of that in which a token that belongs to the block was still being drafted."""
    total_ms: float
    total_draft_wait_ms: float


@dataclass(frozen=True, kw_only=True)
class _Gap:
    after: RoundKind
    hear_ms: float
    commit_ms: float
    start_ms: float
    draft_wait_ms: float

    @property
    def total_ms(self) -> float:
        return self.hear_ms + self.commit_ms + self.start_ms


def bubbles(requests: Sequence[TracedRequest], after: RoundKind) -> Bubbles | None:
    """From the end of a verdict of that kind to the start of the next block; None where that never happened."""
    waits_ms = [gap.total_ms for gap in _gaps(requests) if gap.after is after]
    if not waits_ms:
        return None
    return Bubbles(
        count=len(waits_ms), median_ms=statistics.median(waits_ms), max_ms=max(waits_ms), total_ms=sum(waits_ms)
    )


def host_gap(requests: Sequence[TracedRequest]) -> HostGap | None:
    """All bubbles, taken apart; None where no block came directly behind another."""
    gaps = _gaps(requests)
    if not gaps:
        return None
    return HostGap(
        count=len(gaps),
        median_ms=statistics.median(gap.total_ms for gap in gaps),
        max_ms=max(gap.total_ms for gap in gaps),
        hear_ms=statistics.median(gap.hear_ms for gap in gaps),
        commit_ms=statistics.median(gap.commit_ms for gap in gaps),
        start_ms=statistics.median(gap.start_ms for gap in gaps),
        draft_wait_ms=statistics.median(gap.draft_wait_ms for gap in gaps),
        total_ms=sum(gap.total_ms for gap in gaps),
        total_draft_wait_ms=sum(gap.draft_wait_ms for gap in gaps),
    )


def _gaps(requests: Sequence[TracedRequest]) -> list[_Gap]:
    return [gap for request in requests for pair in request.pairs() if (gap := _gap(*pair)) is not None]


def _gap(before: TracedRound, after: TracedRound) -> _Gap | None:
    """None where the times of one of the launches are not known."""
    judged_ms, verify = before.judged_ms, after.verify
    if judged_ms is None or verify is None or verify.start_ms is None:
        return None
    heard_ms = max(judged_ms, before.span.verdict_ms)
    launched_ms = max(heard_ms, verify.queued_ms)
    begun_ms = max(launched_ms, verify.start_ms)
    # A guess may be drawn while its block runs; what the block itself was cut from had to be there.
    drafted_ms = max(
        (launch.end_ms for launch in after.drafts if launch.end_ms is not None and launch.end_ms <= begun_ms),
        default=launched_ms,
    )
    return _Gap(
        after=before.kind,
        hear_ms=heard_ms - judged_ms,
        commit_ms=launched_ms - heard_ms,
        start_ms=begun_ms - launched_ms,
        draft_wait_ms=max(0.0, drafted_ms - launched_ms),
    )
