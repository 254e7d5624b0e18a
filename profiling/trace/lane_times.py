"""How long two lanes were busy, both at once, or neither.

Owns intervals and their totals. Knows nothing of rounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from profiling.trace.traced_round import DRAFT, TARGET, Stretch, of_lane
from scheduler import LaunchSpan

Interval = tuple[float, float]
"""Start and end in milliseconds."""


@dataclass(frozen=True, kw_only=True)
class LaneTimes:
    """How two lanes spent a stretch of time: target + draft - both + neither is all of it."""

    span_ms: float
    target_ms: float
    """A launch of the target's lane ran."""
    draft_ms: float | None
    """A launch of the draft's lane ran; None where nothing was launched there."""
    both_ms: float | None
    """Both at once; None where there is no draft's lane, or the lanes share a stream, on which nothing can overlap."""
    neither_ms: float

    @property
    def overlap_efficiency(self) -> float | None:
        """Time in which both lanes ran, over the time in which the less busy one did; 1 hides that one completely.

        None where nothing can overlap, or one of the lanes never ran.
        """
        if self.both_ms is None or self.draft_ms is None:
            return None
        less_ms = min(self.target_ms, self.draft_ms)
        return self.both_ms / less_ms if less_ms > 0 else None

    def share(self, part_ms: float | None) -> float | None:
        """A part of the whole time; None where the part is not known, or no time passed."""
        return None if part_ms is None or self.span_ms <= 0 else part_ms / self.span_ms


def lane_times(launches: Sequence[LaunchSpan], stretches: Sequence[Stretch]) -> LaneTimes:
    """The totals over some stretches of time that do not overlap; launches that reach out of them are cut."""
    target, draft = (
        [merged(_clipped(of_lane(launches, lane), stretch)) for stretch in stretches] for lane in (TARGET, DRAFT)
    )
    span_ms = sum(stretch.span_ms for stretch in stretches)
    target_ms, draft_ms = (sum(map(total_ms, lane)) for lane in (target, draft))
    both_ms = sum(common_ms(one, other) for one, other in zip(target, draft, strict=True))
    streams = {lane: {launch.stream for launch in launches if launch.lane == lane} for lane in (TARGET, DRAFT)}
    return LaneTimes(
        span_ms=span_ms,
        target_ms=target_ms,
        draft_ms=draft_ms if streams[DRAFT] else None,
        both_ms=both_ms if streams[DRAFT] and not streams[DRAFT] & streams[TARGET] else None,
        neither_ms=max(0.0, span_ms - target_ms - draft_ms + both_ms),
    )


def _clipped(launches: Iterable[LaunchSpan], stretch: Stretch) -> list[Interval]:
    return [
        (max(launch.start_ms, stretch.start_ms), min(launch.end_ms, stretch.end_ms))
        for launch in launches
        if launch.start_ms is not None
        and launch.end_ms is not None
        and launch.end_ms > stretch.start_ms
        and launch.start_ms < stretch.end_ms
    ]


def merged(intervals: Iterable[Interval]) -> list[Interval]:
    """The same time without overlaps, ascending."""
    result: list[Interval] = []
    for start_ms, end_ms in sorted(intervals):
        if result and start_ms <= result[-1][1]:
            result[-1] = (result[-1][0], max(result[-1][1], end_ms))
        else:
            result.append((start_ms, end_ms))
    return result


def total_ms(intervals: Iterable[Interval]) -> float:
    """Length of intervals that do not overlap."""
    return sum(end_ms - start_ms for start_ms, end_ms in intervals)


def common_ms(one: Sequence[Interval], other: Sequence[Interval]) -> float:
    """Length of what two such lists, both ascending, have in common."""
    total = 0.0
    left = right = 0
    while left < len(one) and right < len(other):
        total += max(0.0, min(one[left][1], other[right][1]) - max(one[left][0], other[right][0]))
        if one[left][1] <= other[right][1]:
            left += 1
        else:
            right += 1
    return total


@dataclass(frozen=True, kw_only=True)
class BusyShares:
    """How two lanes shared a stretch of time; the four add up to 1."""

    both: float
    target_only: float
    draft_only: float
    neither: float


def busy_shares(launches: Sequence[LaunchSpan], stretch: Stretch) -> BusyShares:
    """The shares of a stretch, of lanes on streams of their own or on one.

    Raises:
        ValueError: if that is no time at all.
    """
    if not stretch.span_ms > 0:
        raise ValueError(f"start_ms must be below end_ms {stretch.end_ms}, got {stretch.start_ms}")
    times = lane_times(launches, [stretch])
    both_ms, draft_ms = times.both_ms or 0.0, times.draft_ms or 0.0
    return BusyShares(
        both=both_ms / stretch.span_ms,
        target_only=(times.target_ms - both_ms) / stretch.span_ms,
        draft_only=(draft_ms - both_ms) / stretch.span_ms,
        neither=times.neither_ms / stretch.span_ms,
    )
