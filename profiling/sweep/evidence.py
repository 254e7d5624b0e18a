"""When a gain over plain decoding is more than chance.

Owns the rule, which is of two halves. The median of a row's ratios must exceed 1 by more than the noise. And the row
must have been faster than both plain runs in so many turns that chance seldom does it. Knows nothing of gammas.

Of three runs that take equally long but for noise, each is as likely as the others to be the fastest, however the noise
is distributed. So a cell that gains nothing beats both plain runs of a turn with probability 1/3, and in at least k of
n independent turns with that of a binomial tail, P(Binomial(n, 1/3) >= k). The fastest of several cells is looked at,
so the tail is multiplied by their number (Bonferroni's bound, which holds though the cells share their plain runs), and
the product may be 5 % at most: of all sweeps in which nothing gains, at most one in twenty recommends something for a
kind of prompt. Where winning every turn would not do, there are too few of them.
"""

from __future__ import annotations

import itertools
import math

MAX_FALSE_RATE = 0.05
"""Chance of recommending anything where nothing gains."""


def least_wins(num_turns: int, num_cells: int) -> int | None:
    """In how many turns a cell must beat both plain runs; None where all of them are too few.

    Args:
        num_turns: of the same prompts for all cells.
        num_cells: among which the fastest is looked for.
    """
    return next(
        (wins for wins in range(num_turns + 1) if _false_rate(wins, num_turns, num_cells) <= MAX_FALSE_RATE), None
    )


def fewest_turns(num_cells: int) -> int:
    """With how many turns a cell that wins all of them is told from chance."""
    return next(turns for turns in itertools.count(1) if least_wins(turns, num_cells) is not None)


def _false_rate(wins: int, num_turns: int, num_cells: int) -> float:
    """Bound on the chance that any of the cells wins so many turns, none being faster than plain decoding."""
    ways: int = sum(math.comb(num_turns, won) * 2 ** (num_turns - won) for won in range(wins, num_turns + 1))
    return num_cells * ways / int(3**num_turns)
