"""Whether the tokens of many runs follow the law: the joint distributions of the first few, against the exact ones.

Owns the exact laws, the bound on the distance from them, and how samples are added up. A bound follows from the law
and the number of runs alone: the distance that so many draws from the law itself would show, by simulation. Short
beginnings have few outcomes and so narrow bounds, long ones see what goes wrong between tokens: all are compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from scheduler import SamplingSettings
from tests.fuzz.case import LAW_PROMPT, NUM_LAW_TOKENS, SETTINGS, STOP_IDS
from tests.fuzz.models import PatternModel
from tests.support.reference_law import joint_law
from tests.support.statistics import total_variation

LawKey = tuple[str, str]
"""Acceptance pattern and sampling settings, by name."""

_NUM_SIMULATED = 400
_NUM_DEVIATIONS = 5.0
_ROUNDING = 1e-9


@cache
def exact_law(settings: str) -> dict[tuple[int, ...], float]:
    """Probability of each beginning of the output, by one-token decoding in float64."""
    model = PatternModel()
    return joint_law(
        lambda token_ids: model.logits_after(token_ids).double().numpy(),
        SamplingSettings(**SETTINGS[settings]),
        prompt_ids=LAW_PROMPT,
        num_tokens=NUM_LAW_TOKENS,
        stop_ids=STOP_IDS.get(settings, frozenset()),
    )


@dataclass(frozen=True, kw_only=True)
class Distance:
    """How far a sample lies from its law, and how far it may."""

    num_tokens: int
    num_runs: int
    total_variation: float
    bound: float

    @property
    def is_fair(self) -> bool:
        return self.total_variation <= self.bound


@dataclass(kw_only=True)
class Sample:
    """Beginnings of outputs, by acceptance pattern and settings."""

    counts: dict[LawKey, Counter[tuple[int, ...]]] = field(default_factory=dict)

    def add(self, key: LawKey, first_ids: tuple[int, ...]) -> None:
        self.counts.setdefault(key, Counter())[first_ids] += 1

    def merge(self, other: Sample) -> None:
        for key, counts in other.counts.items():
            self.counts.setdefault(key, Counter()).update(counts)

    def distances(self) -> dict[str, tuple[Distance, ...]]:
        """Of each pattern, for each number of first tokens.

        Settings count as a part of the outcome, so that no two of them can make up for each other's faults.
        """
        found: dict[str, tuple[Distance, ...]] = {}
        for pattern in sorted({pattern for pattern, _ in self.counts}):
            counts = {settings: counts for (other, settings), counts in self.counts.items() if other == pattern}
            found[pattern] = tuple(_distance(counts, num_tokens) for num_tokens in range(1, NUM_LAW_TOKENS + 1))
        return found


def _distance(counts: dict[str, Counter[tuple[int, ...]]], num_tokens: int) -> Distance:
    num_runs = sum(counter.total() for counter in counts.values())
    drawn: Counter[tuple[str, tuple[int, ...]]] = Counter()
    law: Counter[tuple[str, tuple[int, ...]]] = Counter()
    for settings, counter in counts.items():
        for ids, count in counter.items():
            drawn[settings, ids[:num_tokens]] += count / num_runs
        for ids, probability in exact_law(settings).items():
            law[settings, ids[:num_tokens]] += probability * counter.total() / num_runs
    return Distance(
        num_tokens=num_tokens,
        num_runs=num_runs,
        total_variation=total_variation(drawn, law),
        bound=bound_of(law.values(), num_runs),
    )


def bound_of(probabilities: Iterable[float], num_runs: int) -> float:
    """The mean distance of that many draws from their own law, and five standard deviations more."""
    law = np.array(list(probabilities))
    law /= law.sum()
    draws = np.random.default_rng(0).multinomial(num_runs, law, size=_NUM_SIMULATED) / num_runs
    distances = 0.5 * np.abs(draws - law).sum(axis=1)
    # A law without chance spreads nowhere; the exact one is rounded all the same.
    return float(distances.mean() + _NUM_DEVIATIONS * distances.std()) + _ROUNDING
