"""Where a scripted draft is right.

Owns the random pattern of right and wrong tokens of one text. Knows nothing of models or of time.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from scheduler import check_integer, check_number


@dataclass(frozen=True, kw_only=True)
class AcceptanceSegment:
    """A stretch of a text in which the draft is right with one probability.

    Raises:
        TypeError, ValueError: if a field is of the wrong type or outside its limits.
    """

    num_tokens: int
    acceptance: float
    """Probability that the draft's token is the target's own, for each position by itself."""

    def __post_init__(self) -> None:
        check_integer("num_tokens", self.num_tokens, low=1, advice="a stretch has tokens")
        check_number("acceptance", self.acceptance, low=0.0, high=1.0, advice="it is a probability")


def draw_pattern(segments: Sequence[AcceptanceSegment], seed: int) -> list[bool]:
    """Draw each position by itself; True where the draft is right."""
    draw = random.Random(seed)
    return [draw.random() < segment.acceptance for segment in segments for _ in range(segment.num_tokens)]


def balanced_pattern(segments: Sequence[AcceptanceSegment], seed: int) -> list[bool]:
    """The same, with runs of right tokens of each length as often as they should be, in random order.

    How many rounds a text takes depends on these lengths alone, so that its noise is a fraction of a drawn pattern's.
    The lengths are a stratified sample of their geometric distribution; each by itself has that distribution.
    """
    draw = random.Random(seed)
    pattern: list[bool] = []
    for segment in segments:
        stop = len(pattern) + segment.num_tokens
        while len(pattern) < stop:
            for length in _run_lengths(segment.acceptance, stop - len(pattern), draw):
                pattern += [True] * length + [False]
        del pattern[stop:]
    return pattern


def _run_lengths(acceptance: float, num_tokens: int, draw: random.Random) -> list[int]:
    """Lengths of about as many runs as so many tokens have."""
    if acceptance in (0.0, 1.0):
        return [int(acceptance) * num_tokens] * (1 if acceptance else num_tokens)
    num_runs = max(1, round(num_tokens * (1 - acceptance)))
    # 1 - random() is above 0, and so is each quantile.
    quantiles = [(stratum + 1 - draw.random()) / num_runs for stratum in range(num_runs)]
    lengths = [int(math.log(quantile) / math.log(acceptance)) for quantile in quantiles]
    draw.shuffle(lengths)
    return lengths
