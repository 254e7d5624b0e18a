"""What a request did, in numbers.

Owns `Metrics` and its collection over a request's rounds. Knows nothing of how rounds are run.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from runtime.errors import RuntimeClosedError
from runtime.latency import Latency
from runtime.round_counts import RoundCounter, RoundCounts
from runtime.runtime_metrics import RequestOutcome, RuntimeRecorder
from scheduler import FinishReason, PrefillReport, RoundReport


@dataclass(frozen=True, kw_only=True)
class Metrics(RoundCounts):
    """Counts and times of one request, or of its part so far."""

    num_prompt_tokens: int = 0
    num_reused_tokens: int = 0
    """Prompt tokens whose keys and values were still in the cache."""
    queue_ms: float = 0.0
    """From the call to the request's turn."""
    ttft_ms: float | None = None
    """From the request's turn to its first token."""
    num_first_tokens: int = 1
    """Tokens of the first round: all of them are there after `ttft_ms`."""
    total_ms: float = 0.0
    """From the request's turn to its last token."""
    draft_ms: float | None = 0.0
    """Time of the draft; in a pipelined request most of it runs beside `verify_ms`. None where drafting is only
    enqueued, as on a GPU, so that nobody takes its time."""
    verify_ms: float = 0.0
    acceptance_low: bool = False
    """Whether the runtime's rolling acceptance rate lies below its threshold."""
    decision: str = ""
    """How the request was decoded at its end and why, in words: what was chosen, what it promised and what the
    alternatives did, by the costs and the acceptance rate that were measured."""

    @property
    def tpot_ms(self) -> float | None:
        """Mean milliseconds a token after the first round; None if there was no other.

        Tokens that the first round brought along took no time of their own, so they do not count.
        """
        num_later_tokens = self.num_output_tokens - self.num_first_tokens
        if self.ttft_ms is None or num_later_tokens < 1:
            return None
        return (self.total_ms - self.ttft_ms) / num_later_tokens

    @property
    def tokens_per_s(self) -> float | None:
        """Decoding speed: 1000 / tpot_ms, so the prompt's length does not count."""
        return 1e3 / self.tpot_ms if self.tpot_ms else None

    def as_dict(self) -> dict[str, object]:
        """Every field and derived figure, ready for JSON."""
        return {
            **dataclasses.asdict(self),
            "drafts": self.drafts_as_dict(),
            **self.derived(),
            "tpot_ms": self.tpot_ms,
            "tokens_per_s": self.tokens_per_s,
        }


class MetricsRecorder:
    """Adds up a request's reports, for itself and for its runtime."""

    def __init__(
        self, draft_names: tuple[str, ...], *, draft_timed: bool = True, totals: RuntimeRecorder | None = None
    ) -> None:
        """Start the clock of a request that waits for its turn.

        Args:
            draft_names: of the draft sources, by their number in reports.
            draft_timed: whether reports tell how long drafting took.
            totals: of the runtime, which hears of everything as it happens.
        """
        self._totals = RuntimeRecorder(draft_names) if totals is None else totals
        self._draft_timed = draft_timed
        self._called = time.perf_counter()
        self._started = self._called
        self._was_started = False
        self._has_ended = False
        self._first: float | None = None
        self._last = self._called
        self._prefill = PrefillReport(num_prompt_tokens=0)
        self._rounds = RoundCounter(draft_names)
        self._num_first_tokens = 0
        self._draft_ms = 0.0
        self._verify_ms = 0.0

    def start(self) -> None:
        """The request's turn has come."""
        self._started = time.perf_counter()
        self._was_started = True
        self._totals.observe(Latency.QUEUE_TIME, self._started - self._called)

    def add_prefill(self, report: PrefillReport) -> None:
        """The prompt has been read."""
        self._prefill = report
        self._totals.add_prefill(report)

    def add_round(self, report: RoundReport, num_kept: int) -> None:
        """A round has committed, of which `num_kept` tokens belong to the output."""
        now = time.perf_counter()
        if self._first is None:
            self._first = now
            self._num_first_tokens = num_kept
            latency, since = Latency.TIME_TO_FIRST_TOKEN, self._called
        else:
            latency, since = Latency.INTER_TOKEN, self._last
        self._last = now
        self._draft_ms += report.draft_ms
        self._verify_ms += report.verify_ms
        self._rounds.add(report, num_kept)
        self._totals.add_round(report, num_kept, latency, now - since)

    def finish(self, reason: FinishReason) -> None:
        """The last token has been written."""
        times_s = {Latency.END_TO_END: self._last - self._called}
        if (tpot_ms := self.snapshot().tpot_ms) is not None:
            times_s[Latency.TIME_PER_OUTPUT_TOKEN] = tpot_ms / 1e3
        self._end(RequestOutcome(reason.value), times_s)

    @contextmanager
    def outcome_noted(self) -> Generator[None, None, None]:
        """Hold this open from the call to the request's end; whatever ends it before its last token is noted."""
        try:
            yield
        except BaseException as error:
            self._end(self._outcome_of(error), {})
            raise

    def _outcome_of(self, error: BaseException) -> RequestOutcome:
        if isinstance(error, RuntimeClosedError) or not isinstance(error, Exception):
            return RequestOutcome.ABORT
        return RequestOutcome.ERROR if self._was_started else RequestOutcome.REFUSED

    def _end(self, outcome: RequestOutcome, times_s: Mapping[Latency, float]) -> None:
        # Whoever leaves after the last chunk, which came with the last token, breaks nothing off.
        if not self._has_ended:
            self._has_ended = True
            self._totals.end(outcome, times_s)

    def rounds_in_words(self) -> str:
        """How the rounds so far were run."""
        return self._rounds.in_words()

    def snapshot(self, *, acceptance_low: bool = False, decision: str = "") -> Metrics:
        """The figures so far."""
        return Metrics(
            **self._rounds.counts(),
            num_prompt_tokens=self._prefill.num_prompt_tokens,
            num_reused_tokens=self._prefill.num_reused_tokens,
            num_first_tokens=self._num_first_tokens,
            queue_ms=(self._started - self._called) * 1e3,
            ttft_ms=None if self._first is None else (self._first - self._started) * 1e3,
            total_ms=(self._last - self._started) * 1e3,
            draft_ms=self._draft_ms if self._draft_timed else None,
            verify_ms=self._verify_ms,
            acceptance_low=acceptance_low,
            decision=decision,
        )
