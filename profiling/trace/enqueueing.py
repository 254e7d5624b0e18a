"""How long the host takes to hand a launch to a GPU, beside how long the GPU takes for it.

Owns the medians. Knows nothing of what is concluded from them.

A GPU's events lie around what was enqueued: on an idle stream the first one passes at once, and then kernels run as the
host comes to enqueue them. Where enqueueing takes about as long as the launch lasts, it is the host that is measured.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from profiling.trace.traced_round import of_lane
from scheduler import LaunchKind, LaunchSpan


@dataclass(frozen=True, kw_only=True)
class Enqueueing:
    """Medians over launches of one kind."""

    enqueue_ms: float
    """On the host's thread."""
    duration_ms: float
    """On the stream."""

    @property
    def share(self) -> float | None:
        """The one over the other; near 1 the GPU waits for the host. None where no time passed."""
        return self.enqueue_ms / self.duration_ms if self.duration_ms > 0 else None


def enqueueing(launches: Sequence[LaunchSpan], lane: str, kind: LaunchKind) -> Enqueueing | None:
    """The medians of a lane's launches of one kind; None where no time of any is known."""
    timed = [
        (launch.enqueue_ms, launch.duration_ms)
        for launch in of_lane(launches, lane)
        if launch.label == kind and launch.enqueue_ms is not None
    ]
    if not timed:
        return None
    return Enqueueing(
        enqueue_ms=statistics.median(enqueue_ms for enqueue_ms, _ in timed),
        duration_ms=statistics.median(duration_ms for _, duration_ms in timed),
    )
