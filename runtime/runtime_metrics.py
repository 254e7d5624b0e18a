"""What a runtime has done since it was loaded, in numbers.

Owns `RuntimeMetrics` and its collection over all requests, those that were cancelled or failed among them. Knows
nothing of how the figures are shown or sent.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from runtime.latency import BOUNDS_S, Latency, LatencyCounter, LatencyHistogram
from runtime.round_counts import RoundCounter, RoundCounts
from scheduler import AcceptanceMonitor, Occupancy, PrefillReport, RoundReport


class RequestOutcome(StrEnum):
    """How a request ended; the values are vLLM's names of reasons, and `refused`."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    """Its caller left or cancelled it, or the runtime was closed."""
    ERROR = "error"
    """A model or the scheduler failed."""
    REFUSED = "refused"
    """The prompt was no prompt, or too long; no model was asked."""


@dataclass(frozen=True, kw_only=True)
class RuntimeMetrics(RoundCounts):
    """All requests of a runtime together, at one moment.

    Counts only ever grow. They hold every round that was committed, also of requests that were cut short or still run.
    """

    model_name: str
    """Of the target."""
    max_gamma: int
    """Most tokens that a round can propose."""
    num_requests: dict[RequestOutcome, int]
    """Requests that ended, by outcome; every outcome is there."""
    num_requests_running: int
    """0 or 1: requests take turns. A request that just wrote its last token may still count."""
    num_requests_waiting: int
    num_prompt_tokens: int
    """Of prompts that were read, those that were still in the cache among them."""
    num_reused_tokens: int
    """Prompt tokens whose keys and values were still in the cache."""
    latencies: dict[Latency, LatencyHistogram]
    """Every latency is there."""
    acceptance_rate: float | None
    """Rolling, of draft models over recent rounds; None before they proposed anything. `draft_acceptance_rate` is that
    of all sources since the load."""
    acceptance_low: bool
    """Whether the rolling rate lies below its threshold."""
    num_cache_tokens: int
    """Tokens whose keys and values the target's cache holds."""
    cache_capacity: int
    """Most tokens that it can hold."""
    occupancy: Occupancy | None
    """The last reading of the GPU; None on a CPU."""

    # `drafts` has every draft source, also those that proposed nothing so far.

    def as_dict(self) -> dict[str, object]:
        """Every field and derived figure, ready for JSON; of the occupancy what is known."""
        plain = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        occupancy = None if self.occupancy is None else self.occupancy.measured()
        return {
            **plain,
            "num_requests": {outcome.value: number for outcome, number in self.num_requests.items()},
            "latencies": {latency.value: histogram.as_dict() for latency, histogram in self.latencies.items()},
            "occupancy": None if occupancy is None else {n: f.value for n, f in occupancy.items() if f.known},
            "drafts": self.drafts_as_dict(),
            **self.derived(),
        }


class RuntimeRecorder:
    """Adds up what all requests of a runtime report; any thread may ask for the figures meanwhile."""

    def __init__(
        self,
        draft_names: tuple[str, ...],
        *,
        model_sources: frozenset[int] = frozenset(),
        monitor: AcceptanceMonitor | None = None,
    ) -> None:
        """Start at nothing.

        Args:
            draft_names: of the draft sources, by their number in reports.
            model_sources: those that the monitor hears of.
            monitor: of the rolling acceptance rate; by default one that never warns.
        """
        self._draft_names = draft_names
        self._model_sources = model_sources
        self._monitor = AcceptanceMonitor(threshold=0.0) if monitor is None else monitor
        # Held for a few additions at a time, so nobody ever waits for it in earnest.
        self._lock = threading.Lock()
        self._rounds = RoundCounter(draft_names)
        self._latencies = {latency: LatencyCounter(bounds_s) for latency, bounds_s in BOUNDS_S.items()}
        self._num_requests = dict.fromkeys(RequestOutcome, 0)
        self._num_prompt_tokens = 0
        self._num_reused_tokens = 0
        self._acceptance_rate: float | None = None
        self._acceptance_low = False

    @property
    def acceptance_rate(self) -> float | None:
        """Rolling acceptance rate of draft models; None before they proposed anything."""
        return self._acceptance_rate

    @property
    def acceptance_low(self) -> bool:
        """Whether that rate lies below its threshold."""
        return self._acceptance_low

    def observe(self, latency: Latency, time_s: float) -> None:
        """Take in one time."""
        with self._lock:
            self._latencies[latency].observe(time_s)

    def add_prefill(self, report: PrefillReport) -> None:
        """A prompt has been read."""
        with self._lock:
            self._num_prompt_tokens += report.num_prompt_tokens
            self._num_reused_tokens += report.num_reused_tokens

    def add_round(self, report: RoundReport, num_kept: int, latency: Latency, time_s: float) -> None:
        """A round has committed, of which `num_kept` tokens belong to an output, and took a time of this kind."""
        # Not under the lock: it may warn, and who hears a warning may ask for the figures.
        if report.source in self._model_sources:
            self._monitor.observe(report.num_proposed, report.num_accepted)
        with self._lock:
            self._rounds.add(report, num_kept)
            self._latencies[latency].observe(time_s)
            self._acceptance_rate, self._acceptance_low = self._monitor.acceptance_rate, self._monitor.low

    def end(self, outcome: RequestOutcome, times_s: Mapping[Latency, float]) -> None:
        """A request has ended; takes in the times that were known only then."""
        with self._lock:
            self._num_requests[outcome] += 1
            for latency, time_s in times_s.items():
                self._latencies[latency].observe(time_s)

    def figures(self) -> dict[str, Any]:
        """The fields of `RuntimeMetrics` so far, all of one moment; the others only the runtime knows."""
        with self._lock:
            counts = self._rounds.counts()
            return {
                **counts,
                "drafts": {**dict.fromkeys(self._draft_names, (0, 0)), **counts["drafts"]},
                "num_requests": dict(self._num_requests),
                "num_prompt_tokens": self._num_prompt_tokens,
                "num_reused_tokens": self._num_reused_tokens,
                "latencies": {latency: counter.histogram() for latency, counter in self._latencies.items()},
                "acceptance_rate": self._acceptance_rate,
                "acceptance_low": self._acceptance_low,
            }
