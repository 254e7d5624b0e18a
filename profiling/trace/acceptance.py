"""What became of the drafted tokens in a recording.

Owns the counts and what follows from them, by the definitions of a request's metrics.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scheduler import RoundSpan


@dataclass(frozen=True, kw_only=True)
class Acceptance:
    """Counts over some rounds; a rate is None where nothing was proposed, or guessed."""

    num_tokens: int
    """Committed."""
    num_proposed: int
    num_accepted: int
    num_discarded: int
    """Lookahead tokens that were thrown away without being part of a block."""
    num_hits: int | None
    """None where nothing was guessed."""
    num_guesses: int
    acceptance_rate: float | None
    mean_acceptance_length: float | None
    """Tokens of a round that proposed something: what was accepted, and one of the target's own."""
    hit_rate: float | None


def acceptance(rounds: Sequence[RoundSpan]) -> Acceptance:
    """Count some rounds."""
    num_speculative = sum(span.num_proposed > 0 for span in rounds)
    num_proposed = sum(span.num_proposed for span in rounds)
    num_accepted = sum(span.num_accepted for span in rounds)
    num_guesses = sum(span.hit is not None for span in rounds)
    num_hits = sum(span.hit is True for span in rounds)
    return Acceptance(
        num_tokens=sum(span.num_tokens for span in rounds),
        num_proposed=num_proposed,
        num_accepted=num_accepted,
        num_discarded=sum(span.num_discarded for span in rounds),
        num_hits=num_hits if num_guesses else None,
        num_guesses=num_guesses,
        acceptance_rate=num_accepted / num_proposed if num_proposed else None,
        mean_acceptance_length=1 + num_accepted / num_speculative if num_speculative else None,
        hit_rate=num_hits / num_guesses if num_guesses else None,
    )
