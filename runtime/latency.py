"""Times of requests as histograms with fixed buckets.

Owns which times are kept, what each is measured from, and the buckets. Knows nothing of requests.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Latency(StrEnum):
    """A time that is kept for every request or round."""

    QUEUE_TIME = "queue_time"
    """From the call to the request's turn; of every request that had one."""
    TIME_TO_FIRST_TOKEN = "time_to_first_token"
    """From the call, so with the wait in the queue, to the first token; of every request that wrote one."""
    INTER_TOKEN = "inter_token"
    """From one round of a request to its next, however many tokens that brings."""
    TIME_PER_OUTPUT_TOKEN = "time_per_output_token"
    """Mean time a token after the first round; of every request that came to its end and had a second round."""
    END_TO_END = "end_to_end"
    """From the call to the last token; of every request that came to its end."""


_TOKEN_BOUNDS_S = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0),
)
_FIRST_TOKEN_BOUNDS_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0),
    *(80.0, 160.0, 640.0, 2560.0),
)
_REQUEST_BOUNDS_S = (
    *(0.01, 0.03, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0),
    *(240.0, 480.0, 960.0, 1920.0, 7680.0),
)
BOUNDS_S = {
    Latency.QUEUE_TIME: _REQUEST_BOUNDS_S,
    Latency.TIME_TO_FIRST_TOKEN: _FIRST_TOKEN_BOUNDS_S,
    Latency.INTER_TOKEN: _TOKEN_BOUNDS_S,
    Latency.TIME_PER_OUTPUT_TOKEN: _TOKEN_BOUNDS_S,
    Latency.END_TO_END: _REQUEST_BOUNDS_S,
}
"""Upper bounds of the buckets, in seconds: vLLM's, and a few shorter ones, since one request alone is fast."""


@dataclass(frozen=True, kw_only=True)
class LatencyHistogram:
    """How often a time fell between which bounds."""

    bounds_s: tuple[float, ...]
    """Upper bounds of the buckets, each of which holds its bound, in seconds and in order."""
    counts: tuple[int, ...]
    """Times in each bucket, and last those above every bound."""
    sum_s: float
    """All times together."""

    @property
    def num_observations(self) -> int:
        """Times that were taken."""
        return sum(self.counts)

    @property
    def mean_s(self) -> float | None:
        """Mean time; None if none was taken."""
        return self.sum_s / self.num_observations if self.num_observations else None

    def cumulative(self) -> Iterable[tuple[float, int]]:
        """Each bound, infinity last, with the number of times up to it."""
        return zip((*self.bounds_s, float("inf")), itertools.accumulate(self.counts), strict=True)

    def as_dict(self) -> dict[str, object]:
        """Buckets and what follows from them, ready for JSON."""
        return {
            "bounds_s": self.bounds_s,
            "counts": self.counts,
            "sum_s": self.sum_s,
            "num_observations": self.num_observations,
            "mean_s": self.mean_s,
        }


class LatencyCounter:
    """Sorts times into buckets."""

    def __init__(self, bounds_s: tuple[float, ...]) -> None:
        """Start with empty buckets of these upper bounds."""
        self._bounds_s = bounds_s
        self._counts = [0] * (len(bounds_s) + 1)
        self._sum_s = 0.0

    def observe(self, time_s: float) -> None:
        """Take in one time."""
        self._counts[bisect.bisect_left(self._bounds_s, time_s)] += 1
        self._sum_s += time_s

    def histogram(self) -> LatencyHistogram:
        """The buckets so far."""
        return LatencyHistogram(bounds_s=self._bounds_s, counts=tuple(self._counts), sum_s=self._sum_s)
