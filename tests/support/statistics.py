"""Distances between what was drawn and what should have been, without a statistics package."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from typing import TypeVar

import numpy as np

Outcome = TypeVar("Outcome", bound=Hashable)


def total_variation(law: Mapping[Outcome, float], other: Mapping[Outcome, float]) -> float:
    """Half the sum of absolute differences, over the outcomes of either."""
    return 0.5 * sum(abs(law.get(outcome, 0.0) - other.get(outcome, 0.0)) for outcome in {*law, *other})


def frequencies(outcomes: Iterable[Outcome]) -> dict[Outcome, float]:
    """Share of each outcome."""
    counts = Counter(outcomes)
    total = counts.total()
    return {outcome: count / total for outcome, count in counts.items()}


def chi_square_z(counts: np.ndarray, expected: np.ndarray | float) -> float:
    """How many standard deviations the chi-square statistic lies above its mean (Wilson and Hilferty, 1931)."""
    statistic = float(((counts - expected) ** 2 / expected).sum())
    freedom = counts.size - 1
    spread = 2 / (9 * freedom)
    return ((statistic / freedom) ** (1 / 3) - (1 - spread)) / math.sqrt(spread)


def correlation_z(left: np.ndarray, right: np.ndarray) -> float:
    """Pearson correlation in standard deviations under independence."""
    return float(np.corrcoef(left.ravel(), right.ravel())[0, 1]) * math.sqrt(left.size)


def kolmogorov_distance(sample: np.ndarray, cumulative: np.ndarray) -> float:
    """sqrt(n) times the largest gap between the empirical and the true distribution function.

    Args:
        sample: the draws; only its size counts.
        cumulative: the true distribution function at the sorted draws.
    """
    size = sample.size
    above = (np.arange(1, size + 1) / size - cumulative).max()
    below = (cumulative - np.arange(size) / size).max()
    return math.sqrt(size) * float(max(above, below))
