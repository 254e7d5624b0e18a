"""Drawing a few tokens hundreds of thousands of times, with the real noise and the real rules.

Shape suffixes: N runs, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch

import scheduler.distribution
from scheduler.distribution import Distribution, SamplingLaw
from scheduler.history import TokenHistory
from scheduler.noise import Purpose, gumbel_of_bits
from scheduler.round import Proposal, Verdict
from scheduler.settings import SamplingSettings, Verification
from scheduler.verify import judge
from tests.support.noise_reference import bits_matrix

RowAfter = Callable[[list[int]], torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class _RunSettings:
    """As much of `SamplingSettings` as the rules read."""

    seed: int
    verification: Verification


class RunLaw:
    """The law of one run: its own seed, and distributions shared by all runs."""

    def __init__(self, seed: int, shared: DrawnRounds) -> None:
        self.settings = _RunSettings(seed=seed, verification=shared.settings.verification)
        self.apply = shared.target_distribution


Rule = Callable[[SamplingLaw, torch.Tensor, TokenHistory, Proposal], Verdict]
Propose = Callable[["DrawnRounds", int, TokenHistory], Proposal]


class DrawnRounds:
    """Rounds of a draft and a target that are tables, one seed a run."""

    def __init__(
        self,
        patch: pytest.MonkeyPatch,
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
        self._prompt = self._law.start_history(prompt_ids)
        self._noise = {
            (position, purpose): _noise_of_runs(num_runs, position, purpose, vocab_size)
            for position in range(len(prompt_ids), len(prompt_ids) + num_tokens + gamma + 1)
            for purpose in (Purpose.DRAFT, Purpose.RESIDUAL, Purpose.TARGET)
        }
        patch.setattr(scheduler.distribution, "gumbel_noise", self._noise_of)

    def target_distribution(
        self, logits_V: torch.Tensor, history: TokenHistory, proposed_ids: Sequence[int] = ()
    ) -> Distribution:
        return self._distribution("target", history, proposed_ids)

    def draft_distribution(self, history: TokenHistory, proposed_ids: Sequence[int]) -> Distribution:
        return self._distribution("draft", history, proposed_ids)

    def outputs(self, propose: Propose, rule: Rule = judge) -> Iterator[tuple[int, ...]]:
        """The first tokens of every run."""
        histories = {(): self._prompt}
        no_rows = torch.empty(self.gamma + 1, 0)
        for seed in range(self._num_runs):
            output: tuple[int, ...] = ()
            law = RunLaw(seed, self)
            while len(output) < self._num_tokens:
                if output not in histories:
                    histories[output] = self._law.start_history(self._prompt.ids()).extended(output)
                history = histories[output]
                verdict = rule(law, no_rows, history, propose(self, seed, history))  # type: ignore[arg-type]  # RunLaw has what a rule reads
                output = (*output, *verdict.token_ids)
            yield output[: self._num_tokens]

    def _distribution(self, model: str, history: TokenHistory, proposed_ids: Sequence[int]) -> Distribution:
        ids = [*history.ids(), *proposed_ids]
        key = (model, tuple(ids))
        if key not in self._distributions:
            self._distributions[key] = self._law.apply(self._rows[model](ids), history, proposed_ids)
        return self._distributions[key]

    def _noise_of(self, seed: int, position: int, purpose: Purpose, token_ids_N: torch.Tensor) -> torch.Tensor:
        return self._noise[position, purpose][seed].index_select(0, token_ids_N)


def _noise_of_runs(num_runs: int, position: int, purpose: Purpose, vocab_size: int) -> torch.Tensor:
    words = bits_matrix([(seed, position, purpose) for seed in range(num_runs)], vocab_size)
    return gumbel_of_bits(torch.from_numpy(words.view(np.int32)))


def draw_proposal(rounds: DrawnRounds, seed: int, history: TokenHistory) -> Proposal:
    """What a draft model proposes under the rejection rule."""
    token_ids: list[int] = []
    probabilities = []
    for _ in range(rounds.gamma):
        distribution = rounds.draft_distribution(history, token_ids)
        probabilities.append(distribution.probabilities_V())
        token_ids.append(distribution.draw(seed, history.length + len(token_ids), Purpose.DRAFT))
    return Proposal(token_ids=tuple(token_ids), probabilities=tuple(probabilities))
