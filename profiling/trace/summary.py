"""What a recording comes to: where the time of a request went.

Owns the summary of a recording, as figures. Knows nothing of how it is printed or what is concluded from it.

A figure that is not known is None, never 0: nothing was drafted or guessed, one round alone was recorded, the lanes
share a stream, or nobody measured the memory.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from profiling.trace.acceptance import Acceptance, acceptance
from profiling.trace.bandwidth import Bandwidth
from profiling.trace.gaps import Bubbles, HostGap, bubbles, host_gap
from profiling.trace.lane_times import LaneTimes, lane_times
from profiling.trace.round_table import RoundRow, rows_by_kind, rows_by_width
from profiling.trace.traced_round import RoundKind, all_rounds, traced_requests
from profiling.trace.traffic import TargetReads, Traffic, traffic
from scheduler import LaunchOutcome, Recording


@dataclass(frozen=True, kw_only=True)
class TraceSummary:
    """Figures of a recording; times in milliseconds of its clock."""

    num_requests: int
    """Of which a round was recorded."""
    num_rounds: int
    decoding: LaneTimes | None
    """From each request's first round to its last verdict; None where there was no round."""
    prefill: LaneTimes | None
    """From each request's first launch to its first round; None where that was not recorded."""
    after_miss: Bubbles | None
    """Target idle from the end of a verdict to the start of the next block."""
    after_hit: Bubbles | None
    after_no_guess: Bubbles | None
    after_plain: Bubbles | None
    host_gap: HostGap | None
    acceptance: Acceptance
    by_width: tuple[RoundRow, ...]
    by_kind: tuple[RoundRow, ...]
    traffic: Traffic | None
    num_launches: int
    num_skipped: int
    """Launches that were stale when their stream came to them."""
    num_unknown: int
    """Launches whose times are not known."""
    num_dropped: int
    """Launches and rounds that the recorder had no room for; what is left is the end of the recording."""

    @property
    def overlap_efficiency(self) -> float | None:
        """Time in which both lanes ran, over the time in which the less busy one did; see `LaneTimes`."""
        return None if self.decoding is None else self.decoding.overlap_efficiency

    def as_dict(self) -> dict[str, object]:
        """Everything by name, ready for JSON."""
        return {**dataclasses.asdict(self), "overlap_efficiency": self.overlap_efficiency}


def summarise(
    recording: Recording, *, reads: TargetReads | None = None, bandwidth: Bandwidth | None = None
) -> TraceSummary:
    """Sum a recording up.

    Args:
        recording: any, an empty one too.
        reads: what a call of the target reads; None leaves the traffic out.
        bandwidth: of the device's memory; None leaves the bound out.
    """
    requests = traced_requests(recording)
    launches = recording.launches
    rounds = all_rounds(requests)
    prefills = [request.prefill for request in requests if request.prefill is not None]
    return TraceSummary(
        num_requests=len(requests),
        num_rounds=len(rounds),
        decoding=lane_times(launches, [request.decoding for request in requests]) if requests else None,
        prefill=lane_times(launches, prefills) if prefills else None,
        after_miss=bubbles(requests, RoundKind.MISS),
        after_hit=bubbles(requests, RoundKind.HIT),
        after_no_guess=bubbles(requests, RoundKind.NO_GUESS),
        after_plain=bubbles(requests, RoundKind.PLAIN),
        host_gap=host_gap(requests),
        acceptance=acceptance([traced.span for traced in rounds]),
        by_width=rows_by_width(requests),
        by_kind=rows_by_kind(requests),
        traffic=traffic(requests, reads, bandwidth),
        num_launches=len(launches),
        num_skipped=sum(launch.outcome is LaunchOutcome.SKIPPED for launch in launches),
        num_unknown=sum(launch.outcome is LaunchOutcome.UNKNOWN for launch in launches),
        num_dropped=recording.num_dropped,
    )
