"""What rounds came to: the counts that a request and a whole runtime have in common.

Owns the counting of rounds and the figures that follow from the counts alone. The names of counts follow vLLM's
speculative decoding metrics. Knows nothing of times, requests or how rounds are run.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from scheduler import RoundReport


@dataclass(frozen=True, kw_only=True)
class RoundCounts:
    """Counts over some rounds, and what follows from them."""

    num_output_tokens: int = 0
    num_spec_steps: int = 0
    """Rounds that verified at least one proposed token; vLLM's number of drafts."""
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
    num_proposed_per_position: tuple[int, ...] = ()
    """Entry i counts the speculative rounds that proposed at least i + 1 tokens."""
    num_accepted_per_position: tuple[int, ...] = ()
    """Entry i counts the speculative rounds that accepted their token i, which means all before it as well."""
    drafts: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By draft source: proposed and accepted tokens."""

    @property
    def draft_acceptance_rate(self) -> float | None:
        """Accepted share of the proposed tokens; None if nothing was proposed."""
        return self.num_accepted_draft_tokens / self.num_draft_tokens if self.num_draft_tokens else None

    @property
    def mean_acceptance_length(self) -> float | None:
        """Mean tokens of a speculative round, the target's own included; None if there was none."""
        if not self.num_spec_steps:
            return None
        return 1 + self.num_accepted_draft_tokens / self.num_spec_steps

    @property
    def hit_rate(self) -> float | None:
        """Share of right guesses for the token after a block; None if nothing was guessed."""
        num_guesses = self.num_hits + self.num_misses
        return self.num_hits / num_guesses if num_guesses else None

    @property
    def acceptance_rate_per_position(self) -> tuple[float, ...]:
        """vLLM's rate at position i: rounds that accepted token i over all speculative rounds, however short.

        The rates add up to `mean_acceptance_length` - 1.
        """
        return tuple(accepted / self.num_spec_steps for accepted in self.num_accepted_per_position)

    @property
    def acceptance_rate_where_proposed(self) -> tuple[float, ...]:
        """The same over the rounds that proposed a token i at all; differs where rounds propose different numbers."""
        counts = zip(self.num_accepted_per_position, self.num_proposed_per_position, strict=True)
        return tuple(accepted / proposed for accepted, proposed in counts)

    def derived(self) -> dict[str, object]:
        """The figures above, by name."""
        return {name: getattr(self, name) for name in _DERIVED}

    def drafts_as_dict(self) -> dict[str, dict[str, int]]:
        """The draft sources' counts under names, ready for JSON."""
        return {
            name: {"num_draft_tokens": proposed, "num_accepted_draft_tokens": accepted}
            for name, (proposed, accepted) in self.drafts.items()
        }


_DERIVED = (
    "draft_acceptance_rate",
    "mean_acceptance_length",
    "hit_rate",
    "acceptance_rate_per_position",
    "acceptance_rate_where_proposed",
)


class RoundCounter:
    """Adds up reports of rounds."""

    def __init__(self, draft_names: tuple[str, ...]) -> None:
        """Start at nothing; `draft_names` are those of the draft sources, by their number in reports."""
        self._draft_names = draft_names
        self._num_output_tokens = 0
        self._num_plain_steps = 0
        self._num_overlapped_steps = 0
        self._num_discarded = 0
        self._num_hits = 0
        self._num_misses = 0
        self._histogram: list[int] = []
        self._num_proposed_per_position: list[int] = []
        self._num_accepted_per_position: list[int] = []
        self._drafts: dict[str, tuple[int, int]] = {}

    def add(self, report: RoundReport, num_kept: int) -> None:
        """A round has committed, of which `num_kept` tokens belong to the output."""
        self._num_output_tokens += num_kept
        self._num_overlapped_steps += report.together
        self._num_discarded += report.num_discarded
        self._num_hits += report.hit is True
        self._num_misses += report.hit is False
        if report.num_proposed == 0:
            self._num_plain_steps += 1
            return
        num_accepted = min(report.num_accepted, num_kept)
        _reach(self._histogram, num_accepted + 1)
        self._histogram[num_accepted] += 1
        for counts, num_tokens in (
            (self._num_proposed_per_position, report.num_proposed),
            (self._num_accepted_per_position, num_accepted),
        ):
            _reach(counts, report.num_proposed)
            for position in range(num_tokens):
                counts[position] += 1
        name = self._draft_names[report.source]
        proposed, accepted = self._drafts.get(name, (0, 0))
        self._drafts[name] = (proposed + report.num_proposed, accepted + num_accepted)

    def counts(self) -> dict[str, Any]:
        """The fields of `RoundCounts` so far."""
        return {
            "num_output_tokens": self._num_output_tokens,
            "num_spec_steps": sum(self._histogram),
            "num_plain_steps": self._num_plain_steps,
            "num_overlapped_steps": self._num_overlapped_steps,
            "num_draft_tokens": sum(proposed for proposed, _ in self._drafts.values()),
            "num_accepted_draft_tokens": sum(accepted for _, accepted in self._drafts.values()),
            "num_discarded_draft_tokens": self._num_discarded,
            "num_hits": self._num_hits,
            "num_misses": self._num_misses,
            "acceptance_histogram": tuple(self._histogram),
            "num_proposed_per_position": tuple(self._num_proposed_per_position),
            "num_accepted_per_position": tuple(self._num_accepted_per_position),
            "drafts": dict(self._drafts),
        }

    def in_words(self) -> str:
        """How the rounds so far were run."""
        num_rounds = self._num_plain_steps + sum(self._histogram)
        parts = [f"{self._num_plain_steps} of {num_rounds} rounds plain"]
        if self._num_overlapped_steps:
            parts.append(f"{self._num_overlapped_steps} overlapped")
        return ", ".join(parts)


def _reach(counts: list[int], length: int) -> None:
    """Lengthen counts to at least `length` entries."""
    counts.extend([0] * (length - len(counts)))
