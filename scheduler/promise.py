"""What a draft source promises of a round in which it proposes.

Owns the frozen `Promise` and which of two is better. Knows nothing of how it was reckoned.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Promise:
    """What a choice of gamma and lead is expected to bring."""

    acceptance: float
    """Probability that a proposed token is accepted, given that those before it were."""
    tokens_per_ms: float | None = None
    """Tokens that such rounds commit; None where nobody knows what they cost, as where gamma is fixed."""
    best_tokens_per_ms: float | None = None
    """The same if every proposal were accepted, with whatever plan would be best then."""

    def beats(self, other: Promise) -> bool:
        """Whether this is more than the other: by speed, or by acceptance where not both know their speed."""
        if self.tokens_per_ms is None or other.tokens_per_ms is None:
            return self.acceptance > other.acceptance
        return self.tokens_per_ms > other.tokens_per_ms

    def ratio(self, other: Promise) -> float:
        """This as a share of one that it does not beat."""
        if self.tokens_per_ms is None or other.tokens_per_ms is None:
            return self.acceptance / other.acceptance if other.acceptance else 1.0
        return self.tokens_per_ms / other.tokens_per_ms

    def could_beat(self, other: Promise) -> bool:
        """Whether there is an acceptance at which this would be more."""
        if self.best_tokens_per_ms is None or other.tokens_per_ms is None:
            return other.acceptance < 1
        return self.best_tokens_per_ms > other.tokens_per_ms
