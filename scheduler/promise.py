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
    trial: bool = False
    """Whether it is only to find out: decoding without a draft would promise more."""

    def beats(self, other: Promise) -> bool:
        """Whether this is more than the other: by speed, or by acceptance where not both know their speed."""
        if self.tokens_per_ms is None or other.tokens_per_ms is None:
            return self.acceptance > other.acceptance
        return self.tokens_per_ms > other.tokens_per_ms
