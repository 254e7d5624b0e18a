"""What a request did, in numbers.

Owns `Metrics` and its collection over a request's rounds. The names of counts follow vLLM's speculative decoding
metrics. Knows nothing of how rounds are run.
"""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass, field

from scheduler import PrefillReport, RoundReport


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """Counts and times of one request, or of its part so far."""

    num_prompt_tokens: int = 0
    num_reused_tokens: int = 0
    """Prompt tokens whose keys and values were still in the cache."""
    num_output_tokens: int = 0
    num_spec_steps: int = 0
    """Rounds that verified at least one proposed token."""
    num_plain_steps: int = 0
    """Rounds without a proposal: ordinary decoding steps."""
    num_overlapped_steps: int = 0
    """Rounds, of either kind, beside which the draft went on past their blocks."""
    num_draft_tokens: int = 0
    num_accepted_draft_tokens: int = 0
    num_discarded_draft_tokens: int = 0
    """Tokens that a pipelined draft wrote past a block and that were thrown away without being part of one; those still
    unsettled when a stop string or the caller ends the request are not counted."""
    num_hits: int = 0
    """Pipelined: blocks accepted as a whole whose next token was guessed right, so that drafting just went on."""
    num_misses: int = 0
    """Pipelined: guesses that were wrong, or stood behind a rejected token."""
    acceptance_histogram: tuple[int, ...] = ()
    """Entry a counts the speculative rounds that accepted exactly a tokens."""
    drafts: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By draft source: proposed and accepted tokens."""
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
    def draft_acceptance_rate(self) -> float | None:
        """Accepted share of the proposed tokens; None if nothing was proposed."""
        return self.num_accepted_draft_tokens / self.num_draft_tokens if self.num_draft_tokens else None

    @property
    def hit_rate(self) -> float | None:
        """Share of right guesses for the token after a block; None if nothing was guessed."""
        num_guesses = self.num_hits + self.num_misses
        return self.num_hits / num_guesses if num_guesses else None

    @property
    def mean_acceptance_length(self) -> float | None:
        """Mean tokens of a speculative round, the target's own included; None if there was none."""
        if not self.num_spec_steps:
            return None
        return 1 + self.num_accepted_draft_tokens / self.num_spec_steps

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
        values: dict[str, object] = dataclasses.asdict(self)
        values["drafts"] = {
            name: {"num_draft_tokens": proposed, "num_accepted_draft_tokens": accepted}
            for name, (proposed, accepted) in self.drafts.items()
        }
        for name in ("draft_acceptance_rate", "mean_acceptance_length", "hit_rate", "tpot_ms", "tokens_per_s"):
            values[name] = getattr(self, name)
        return values


class MetricsRecorder:
    """Adds up a request's reports."""

    def __init__(self, draft_names: tuple[str, ...], *, draft_timed: bool = True) -> None:
        """Start the clock of a request that waits for its turn.

        Args:
            draft_names: of the draft sources, by their number in reports.
            draft_timed: whether reports tell how long drafting took.
        """
        self._draft_names = draft_names
        self._draft_timed = draft_timed
        self._called = time.perf_counter()
        self._started = self._called
        self._first: float | None = None
        self._last = self._called
        self._prefill = PrefillReport(num_prompt_tokens=0)
        self._histogram: list[int] = []
        self._drafts: dict[str, tuple[int, int]] = {}
        self._num_output_tokens = 0
        self._num_first_tokens = 0
        self._num_plain_steps = 0
        self._num_overlapped_steps = 0
        self._num_discarded = 0
        self._num_hits = 0
        self._num_misses = 0
        self._draft_ms = 0.0
        self._verify_ms = 0.0

    def start(self) -> None:
        """The request's turn has come."""
        self._started = time.perf_counter()

    def add_prefill(self, report: PrefillReport) -> None:
        """The prompt has been read."""
        self._prefill = report

    def add_round(self, report: RoundReport, num_kept: int) -> None:
        """A round has committed, of which `num_kept` tokens belong to the output."""
        self._last = time.perf_counter()
        if self._first is None:
            self._first = self._last
            self._num_first_tokens = num_kept
        self._num_output_tokens += num_kept
        self._draft_ms += report.draft_ms
        self._verify_ms += report.verify_ms
        self._num_overlapped_steps += report.together
        self._num_discarded += report.num_discarded
        self._num_hits += report.hit is True
        self._num_misses += report.hit is False
        if report.num_proposed == 0:
            self._num_plain_steps += 1
            return
        num_accepted = min(report.num_accepted, num_kept)
        self._histogram.extend([0] * (num_accepted + 1 - len(self._histogram)))
        self._histogram[num_accepted] += 1
        name = self._draft_names[report.source]
        proposed, accepted = self._drafts.get(name, (0, 0))
        self._drafts[name] = (proposed + report.num_proposed, accepted + num_accepted)

    def rounds_in_words(self) -> str:
        """How the rounds so far were run."""
        num_spec_steps = sum(self._histogram)
        num_rounds = self._num_plain_steps + num_spec_steps
        parts = [f"{self._num_plain_steps} of {num_rounds} rounds plain"]
        if self._num_overlapped_steps:
            parts.append(f"{self._num_overlapped_steps} overlapped")
        return ", ".join(parts)

    def snapshot(self, *, acceptance_low: bool = False, decision: str = "") -> Metrics:
        """The figures so far."""
        return Metrics(
            num_prompt_tokens=self._prefill.num_prompt_tokens,
            num_reused_tokens=self._prefill.num_reused_tokens,
            num_output_tokens=self._num_output_tokens,
            num_spec_steps=sum(self._histogram),
            num_plain_steps=self._num_plain_steps,
            num_overlapped_steps=self._num_overlapped_steps,
            num_draft_tokens=sum(proposed for proposed, _ in self._drafts.values()),
            num_accepted_draft_tokens=sum(accepted for _, accepted in self._drafts.values()),
            num_discarded_draft_tokens=self._num_discarded,
            num_hits=self._num_hits,
            num_misses=self._num_misses,
            acceptance_histogram=tuple(self._histogram),
            drafts=dict(self._drafts),
            num_first_tokens=self._num_first_tokens,
            queue_ms=(self._started - self._called) * 1e3,
            ttft_ms=None if self._first is None else (self._first - self._started) * 1e3,
            total_ms=(self._last - self._started) * 1e3,
            draft_ms=self._draft_ms if self._draft_timed else None,
            verify_ms=self._verify_ms,
            acceptance_low=acceptance_low,
            decision=decision,
        )
