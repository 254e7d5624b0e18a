"""Timelines: what ran when on a device with a clock.

Owns the entries and their totals. Knows nothing of how the times came about.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, kw_only=True, slots=True)
class TimelineEntry:
    """One launch."""

    stream: str
    label: str
    start_ms: float
    end_ms: float
    generation: int | None = None
    """Number of the generation that it was launched in; None if it was to run in any case."""
    skipped: bool = False
    """Whether its work was passed by, as stale or behind an error; it then took no time."""


@dataclass(frozen=True, kw_only=True)
class TimelineSummary:
    """Totals from the first start to the last end."""

    span_ms: float
    busy_ms: Mapping[str, float]
    """By stream: time in which one of its launches ran."""
    overlap_ms: float
    """Time in which launches of two streams or more ran."""
    idle_ms: float
    """Time in which nothing ran."""


def summarize_timeline(entries: Iterable[TimelineEntry]) -> TimelineSummary:
    """The totals of a timeline; entries of one stream must not overlap.

    Raises:
        ValueError: if an entry ends before it starts.
    """
    busy_ms: dict[str, float] = {}
    changes: list[tuple[float, int]] = []
    for entry in entries:
        if entry.end_ms < entry.start_ms:
            raise ValueError(f"{entry.label!r} on {entry.stream!r} ends at {entry.end_ms} ms, before it starts")
        busy_ms[entry.stream] = busy_ms.get(entry.stream, 0.0) + entry.end_ms - entry.start_ms
        changes += [(entry.start_ms, 1), (entry.end_ms, -1)]
    changes.sort()
    overlap_ms = idle_ms = 0.0
    num_running = 0
    for (time_ms, change), (next_ms, _) in pairwise(changes):
        num_running += change
        if num_running == 0:
            idle_ms += next_ms - time_ms
        elif num_running > 1:
            overlap_ms += next_ms - time_ms
    span_ms = changes[-1][0] - changes[0][0] if changes else 0.0
    return TimelineSummary(span_ms=span_ms, busy_ms=busy_ms, overlap_ms=overlap_ms, idle_ms=idle_ms)
