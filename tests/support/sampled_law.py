"""Drawing a few tokens hundreds of thousands of times, with the real noise and the real rules.

A rule takes chance from two places only, draws and uniforms, so runs that meet the same values there are one run: the
rule is played once for all of them, and once more for those that part ways. What each run draws is what it would
have drawn alone.

Shape suffixes: N runs, C candidates, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import pytest
import torch

import scheduler.verify
from scheduler.distribution import Distribution, SamplingLaw
from scheduler.history import TokenHistory
from scheduler.noise import Purpose, gumbel_of_bits
from scheduler.round import Proposal, Verdict
from scheduler.settings import SamplingSettings, Verification
from scheduler.verify import judge
from tests.support.noise_reference import bits_matrix, uniforms

RowAfter = Callable[[list[int]], torch.Tensor]
Outcome = TypeVar("Outcome")

_SEED_OF_ALL = -1
"""What rules are told where each run has a seed of its own."""


@dataclass(frozen=True, kw_only=True)
class _RunSettings:
    """As much of `SamplingSettings` as the rules read."""

    seed: int
    verification: Verification


class RunLaw:
    """The law of one run, or of runs that are played together: a seed, and distributions shared by all runs."""

    def __init__(self, seed: int, shared: DrawnRounds) -> None:
        self.settings = _RunSettings(seed=seed, verification=shared.settings.verification)
        self.apply = shared.target_distribution


Rule = Callable[[SamplingLaw, torch.Tensor, TokenHistory, Proposal], Verdict]
Propose = Callable[["DrawnRounds", int, TokenHistory], Proposal]


class _Uniforms:
    """A number in [0, 1) of each run that is played: `u * q < p` parts those for which it holds from the others."""

    def __init__(self, rounds: DrawnRounds, values_N: np.ndarray) -> None:
        self._rounds = rounds
        self._values_N = values_N

    def __mul__(self, scale: float) -> _Uniforms:
        return _Uniforms(self._rounds, self._values_N * scale)

    def __lt__(self, bound: float) -> bool:
        return bool(self._rounds.agree_on(self._values_N < bound))


class DrawnRounds:
    """Rounds of a draft and a target that are tables; the seed of a run is its number."""

    def __init__(
        self,
        *,
        settings: SamplingSettings,
        target: RowAfter,
        draft: RowAfter,
        prompt_ids: Sequence[int],
        vocab_size: int,
        num_runs: int,
        num_tokens: int,
        gamma: int,
    ) -> None:
        self.settings = settings
        self.gamma = gamma
        self._num_runs = num_runs
        self._num_tokens = num_tokens
        self._law = SamplingLaw(settings, vocab_size=vocab_size)
        self._rows = {"target": target, "draft": draft}
        self._distributions: dict[tuple[str, tuple[int, ...]], Distribution] = {}
        self._prompt_ids = tuple(prompt_ids)
        self._noise: dict[tuple[int, Purpose], np.ndarray] = {}
        self._uniforms: dict[tuple[int, Purpose], np.ndarray] = {}
        self._together_N = np.arange(num_runs)
        self._parted: list[np.ndarray] = []

    def target_distribution(
        self, logits_V: torch.Tensor, history: TokenHistory, proposed_ids: Sequence[int] = ()
    ) -> Distribution:
        return self._distribution("target", history, proposed_ids)

    def draft_distribution(self, history: TokenHistory, proposed_ids: Sequence[int]) -> Distribution:
        return self._distribution("draft", history, proposed_ids)

    def frequencies(self, propose: Propose, rule: Rule = judge) -> dict[tuple[int, ...], float]:
        """Share of each beginning among all runs."""
        return {output: len(runs_N) / self._num_runs for output, runs_N in self.runs_by_output(propose, rule).items()}

    def runs_by_output(self, propose: Propose, rule: Rule = judge) -> dict[tuple[int, ...], np.ndarray]:
        """The first tokens of every run: for each beginning, the runs that have it."""
        found: dict[tuple[int, ...], np.ndarray] = {}
        unfinished = [((), np.arange(self._num_runs))]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Distribution, "draw", self._drawing)
            patch.setattr(scheduler.verify, "uniform", self.uniform)
            while unfinished:
                output, runs_N = unfinished.pop()
                for verdict, group_N in self._outcomes(
                    runs_N, lambda output=output: self._round(_SEED_OF_ALL, output, propose, rule)
                ):
                    grown = (*output, *verdict.token_ids)[: self._num_tokens]
                    if len(grown) < self._num_tokens:
                        unfinished.append((grown, group_N))
                    else:
                        found[grown] = np.concatenate([found.get(grown, group_N[:0]), group_N])
        return found

    def output_alone(self, seed: int, propose: Propose, rule: Rule = judge) -> tuple[int, ...]:
        """The first tokens of one run, with nothing of the scheduler replaced."""
        output: tuple[int, ...] = ()
        while len(output) < self._num_tokens:
            output = (*output, *self._round(seed, output, propose, rule).token_ids)
        return output[: self._num_tokens]

    def uniform(self, seed: int, position: int, purpose: Purpose) -> _Uniforms:
        """Stands for `scheduler.noise.uniform` where runs are played together."""
        return _Uniforms(self, self.uniforms_N(seed, position, purpose))

    def uniforms_N(self, seed: int, position: int, purpose: Purpose) -> np.ndarray:
        """float64, one for each run that is played."""
        assert seed == _SEED_OF_ALL
        key = (position, purpose)
        if key not in self._uniforms:
            self._uniforms[key] = uniforms([(run, position, purpose) for run in range(self._num_runs)])
        return self._uniforms[key][self._together_N]

    def agree_on(self, values_N: np.ndarray) -> np.generic:
        """The first run's value; runs that have another one are played later."""
        same_N = values_N == values_N[0]
        if not same_N.all():
            self._parted.append(self._together_N[~same_N])
            self._together_N = self._together_N[same_N]
        return values_N[0]

    def _outcomes(self, runs_N: np.ndarray, play: Callable[[], Outcome]) -> list[tuple[Outcome, np.ndarray]]:
        outcomes = []
        self._parted = [runs_N]
        while self._parted:
            self._together_N = self._parted.pop()
            outcome = play()
            outcomes.append((outcome, self._together_N))
        return outcomes

    def _round(self, seed: int, output: tuple[int, ...], propose: Propose, rule: Rule) -> Verdict:
        history = self._law.start_history(self._prompt_ids).extended(output)
        no_rows = torch.empty(self.gamma + 1, 0)
        return rule(RunLaw(seed, self), no_rows, history, propose(self, seed, history))  # type: ignore[arg-type]  # RunLaw has what a rule reads

    @property
    def _drawing(self) -> Callable[[Distribution, int, int, Purpose], int]:
        def draw(distribution: Distribution, seed: int, position: int, purpose: Purpose) -> int:
            assert seed == _SEED_OF_ALL
            ids_C = distribution.token_ids_C.numpy()
            scores_NC = (
                self._noise_of(position, purpose)[self._together_N][:, ids_C] + distribution.log_weights_C.numpy()
            )
            return int(self.agree_on(ids_C[scores_NC.argmax(axis=1)]))

        return draw

    def _noise_of(self, position: int, purpose: Purpose) -> np.ndarray:
        """float32, shape NV."""
        key = (position, purpose)
        if key not in self._noise:
            words = bits_matrix([(run, position, purpose) for run in range(self._num_runs)], self._law.vocab_size)
            self._noise[key] = gumbel_of_bits(torch.from_numpy(words.view(np.int32))).numpy()
        return self._noise[key]

    def _distribution(self, model: str, history: TokenHistory, proposed_ids: Sequence[int]) -> Distribution:
        ids = [*history.ids(), *proposed_ids]
        key = (model, tuple(ids))
        if key not in self._distributions:
            self._distributions[key] = self._law.apply(self._rows[model](ids), history, proposed_ids)
        return self._distributions[key]


def draw_proposal(rounds: DrawnRounds, seed: int, history: TokenHistory) -> Proposal:
    """What a draft model proposes under the rejection rule."""
    token_ids: list[int] = []
    probabilities = []
    for _ in range(rounds.gamma):
        distribution = rounds.draft_distribution(history, token_ids)
        probabilities.append(distribution.probabilities_V())
        token_ids.append(distribution.draw(seed, history.length + len(token_ids), Purpose.DRAFT))
    return Proposal(token_ids=tuple(token_ids), probabilities=tuple(probabilities))
