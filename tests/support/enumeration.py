"""Running the real rules through every random choice they could make.

`Distribution.draw` and the accepting uniform are replaced by choices, and a piece of code is run again and again until
each sequence of choices was made once. Its outcomes, weighted by the probabilities of the choices, are its exact law.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import pytest
import torch

import scheduler.verify
from scheduler.distribution import Distribution, SamplingLaw
from scheduler.history import TokenHistory
from scheduler.noise import Purpose
from scheduler.proposers import Proposer
from scheduler.round import Proposal, Verdict
from scheduler.verify import judge
from tests.support.proposing import propose

Outcome = TypeVar("Outcome")
RowAfter = Callable[[list[int]], torch.Tensor]
Judge = Callable[[SamplingLaw, torch.Tensor, TokenHistory, Proposal], Verdict]


@dataclass
class Choices:
    """The choices of one run: those of the planned prefix, then always the first that is possible."""

    plan: list[int]
    made: list[tuple[int, tuple[float, ...]]] = field(default_factory=list)

    def choose(self, probabilities: Sequence[float]) -> int:
        depth = len(self.made)
        index = self.plan[depth] if depth < len(self.plan) else _next_possible(probabilities, 0)
        assert index is not None, f"nothing to choose from: {probabilities}"
        self.made.append((index, tuple(probabilities)))
        return index

    @property
    def weight(self) -> float:
        weight = 1.0
        for index, probabilities in self.made:
            weight *= probabilities[index]
        return weight

    def next_plan(self) -> list[int] | None:
        """The plan that differs in the last choice that had another way to go."""
        for depth in range(len(self.made) - 1, -1, -1):
            index = _next_possible(self.made[depth][1], self.made[depth][0] + 1)
            if index is not None:
                return [*(made for made, _ in self.made[:depth]), index]
        return None


def _next_possible(probabilities: Sequence[float], start: int) -> int | None:
    return next((index for index in range(start, len(probabilities)) if probabilities[index] > 0), None)


class _Uniform:
    """Stands for every number in [0, 1): a comparison `u * q < p` goes both ways."""

    def __init__(self, choices: Choices) -> None:
        self._choices = choices
        self._scale = 1.0

    def __mul__(self, scale: float) -> _Uniform:
        scaled = _Uniform(self._choices)
        scaled._scale = self._scale * scale
        return scaled

    def __lt__(self, bound: float) -> bool:
        below = float(bound > 0) if self._scale == 0 else min(1.0, bound / self._scale)
        return self._choices.choose((below, 1 - below)) == 0


class Enumerator:
    """Replaces the scheduler's two sources of chance, for one test."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._choices = Choices(plan=[])
        patch.setattr(Distribution, "draw", self._draw)
        patch.setattr(scheduler.verify, "uniform", lambda seed, position, purpose: _Uniform(self._choices))

    @property
    def _draw(self) -> Callable[[Distribution, int, int, Purpose], int]:
        def draw(distribution: Distribution, seed: int, position: int, purpose: Purpose) -> int:
            probabilities = distribution.probabilities_C().double()
            index = self._choices.choose((probabilities / probabilities.sum()).tolist())
            return int(distribution.token_ids_C[index])

        return draw

    def outcomes(self, run: Callable[[], Outcome]) -> Iterator[tuple[Outcome, float]]:
        """Every outcome of `run` that has a chance, with its probability."""
        plan: list[int] | None = []
        while plan is not None:
            self._choices = Choices(plan=plan)
            outcome = run()
            yield outcome, self._choices.weight
            plan = self._choices.next_plan()


class CachedLaw(SamplingLaw):
    """Keeps each row's distribution, since an enumeration meets the same few rows again and again."""

    _known: dict[tuple[object, ...], Distribution]

    def apply(self, logits_V: torch.Tensor, history: TokenHistory, proposed_ids: Sequence[int] = ()) -> Distribution:
        if not hasattr(self, "_known"):
            self._known = {}
        key = (logits_V.numpy().tobytes(), tuple(history.ids()), tuple(proposed_ids))
        if key not in self._known:
            self._known[key] = super().apply(logits_V, history, proposed_ids)
        return self._known[key]


def target_rows(row_after: RowAfter, history: TokenHistory, proposed_ids: Sequence[int]) -> torch.Tensor:
    """float32, shape RV: what the target returns for a block."""
    ids = history.ids()
    return torch.stack([row_after([*ids, *proposed_ids[:row]]) for row in range(len(proposed_ids) + 1)])


def enumerated_law(
    enumerator: Enumerator,
    law: SamplingLaw,
    row_after: RowAfter,
    proposer: Proposer | None,
    *,
    prompt_ids: Sequence[int],
    num_tokens: int,
    gamma: int,
    stop_ids: frozenset[int] = frozenset(),
    rule: Judge = judge,
) -> dict[tuple[int, ...], float]:
    """Probability of every output of `num_tokens` tokens when rounds of propose and judge produce it."""
    law_of_output: dict[tuple[int, ...], float] = {}

    def play(output_ids: tuple[int, ...], probability: float) -> None:
        output_ids = output_ids[:num_tokens]
        ended = [index for index, token_id in enumerate(output_ids) if token_id in stop_ids]
        output_ids = output_ids[: ended[0] + 1] if ended else output_ids
        if ended or len(output_ids) == num_tokens:
            law_of_output[output_ids] = law_of_output.get(output_ids, 0.0) + probability
            return
        for emitted, weight in rounds_after(output_ids):
            play((*output_ids, *emitted), probability * weight)

    known_rounds: dict[tuple[int, ...], list[tuple[tuple[int, ...], float]]] = {}

    def rounds_after(output_ids: tuple[int, ...]) -> list[tuple[tuple[int, ...], float]]:
        if output_ids not in known_rounds:
            history = law.start_history(prompt_ids).extended(output_ids)
            known_rounds[output_ids] = [
                (verdict.token_ids, offered * ruled)
                for proposal, offered in proposals(history)
                for verdict, ruled in enumerator.outcomes(
                    lambda proposal=proposal: rule(
                        law, target_rows(row_after, history, proposal.token_ids), history, proposal
                    )
                )
            ]
        return known_rounds[output_ids]

    def proposals(history: TokenHistory) -> list[tuple[Proposal, float]]:
        if proposer is None:
            return [(Proposal(), 1.0)]

        def offer() -> Proposal:
            proposer.begin(history)
            return propose(proposer, law, history, gamma)

        return list(enumerator.outcomes(offer))

    play((), 1.0)
    return law_of_output
