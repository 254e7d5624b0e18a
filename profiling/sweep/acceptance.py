"""How often proposals were accepted, over any rounds: in all, by position in the block, along the output.

Owns the counting. The names of figures are those of a request's metrics. Knows nothing of cells or times.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from profiling.sweep.run import Round


@dataclass(frozen=True, kw_only=True)
class Acceptance:
    """Counts over some rounds."""

    num_rounds: int = 0
    num_tokens: int = 0
    num_spec_steps: int = 0
    """Rounds that proposed something."""
    num_draft_tokens: int = 0
    num_accepted_draft_tokens: int = 0
    num_proposed_per_position: tuple[int, ...] = ()
    """Entry i counts the rounds that proposed at least i + 1 tokens."""
    num_accepted_per_position: tuple[int, ...] = ()
    """Entry i counts the rounds that accepted their token i, which means all before it as well."""

    @classmethod
    def of(cls, rounds: Iterable[Round]) -> Acceptance:
        """Count some rounds."""
        known = list(rounds)
        longest = max((counts.num_proposed for counts in known), default=0)
        return cls(
            num_rounds=len(known),
            num_tokens=sum(counts.num_tokens for counts in known),
            num_spec_steps=sum(counts.num_proposed > 0 for counts in known),
            num_draft_tokens=sum(counts.num_proposed for counts in known),
            num_accepted_draft_tokens=sum(counts.num_accepted for counts in known),
            num_proposed_per_position=tuple(
                sum(counts.num_proposed > position for counts in known) for position in range(longest)
            ),
            num_accepted_per_position=tuple(
                sum(counts.num_accepted > position for counts in known) for position in range(longest)
            ),
        )

    @property
    def rate(self) -> float | None:
        """Accepted share of the proposed tokens; None if nothing was proposed."""
        return self.num_accepted_draft_tokens / self.num_draft_tokens if self.num_draft_tokens else None

    @property
    def mean_length(self) -> float | None:
        """Mean tokens of a round that proposed something, the target's own included; None if there was none."""
        return 1 + self.num_accepted_draft_tokens / self.num_spec_steps if self.num_spec_steps else None

    @property
    def tokens_per_round(self) -> float:
        """Mean tokens of a round, of plain ones as well."""
        return self.num_tokens / self.num_rounds if self.num_rounds else 0.0

    @property
    def rate_per_position(self) -> tuple[float, ...]:
        """Of the rounds that proposed a token at a position, the share that accepted it, and so all before it."""
        counts = zip(self.num_accepted_per_position, self.num_proposed_per_position, strict=True)
        return tuple(accepted / proposed for accepted, proposed in counts)


def acceptance_along(outputs: Iterable[Sequence[Round]], *, num_tokens: int, num_parts: int) -> list[float | None]:
    """The acceptance rate in equal parts of the output, from its beginning; None where nothing was proposed.

    Args:
        outputs: the rounds of each; a round belongs where it begins.
        num_tokens: length of the longest output.
        num_parts: how many.
    """
    parts: list[list[Round]] = [[] for _ in range(num_parts)]
    for rounds in outputs:
        start = 0
        for counts in rounds:
            parts[min(start * num_parts // num_tokens, num_parts - 1)].append(counts)
            start += counts.num_tokens
    return [Acceptance.of(part).rate for part in parts]
