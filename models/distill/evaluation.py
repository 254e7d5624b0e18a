"""How good a draft is on prompts that it was not trained for.

Owns the figures by kind of text and their means. Knows nothing of files, plots or speed.

The text is the target's own answer to each prompt (`models.distill.answers`); at each of its tokens the draft is asked
for what it would have proposed there (`models.distill.answer_chances`), so that every figure is an expectation over all
draws that a draft could make.

Shape suffixes: N tokens of an answer, M the same of one chance, C tokens of the head, K proposals of a round.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from models.distill.answer_chances import answer_chances
from models.distill.answers import Answer, write_answers
from models.distill.batched_target import BatchedTarget
from models.distill.draft_model import DraftModel
from models.distill.held_out_prompts import HeldOutPrompt
from models.distill.round_length import expected_rounds
from models.distill.text_kind import TextKind
from models.errors import DistillationError

GAMMA = 4
"""Proposals of a round for which lengths are given."""


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Of one kind of text, or of all."""

    num_tokens: int
    """Of all answers that were judged, both greedy and drawn."""
    acceptance: float
    """Mean of sum min(p, q) at temperature 1, for a round's first proposal."""
    greedy_agreement: float
    """Share of places where draft and target have the same likeliest token; also a first proposal's."""
    shared_noise_agreement: float
    """The same of their draws at temperature 1 with common Gumbel noise."""
    rejection_length: float
    """Mean tokens of a round at temperature 1 under the rejection rule, the target's own token included."""
    greedy_length: float
    """The same of greedy decoding."""
    shared_noise_length: float
    """The same at temperature 1 with common noise."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What a draft is worth."""

    by_kind: Mapping[TextKind, Figures]
    """Kinds whose answers are all shorter than a proposal are missing."""
    overall: Figures
    """Of all answers together; each token counts alike."""
    gamma: int
    """Proposals of a round."""
    num_prompts: int


def evaluate(
    draft: DraftModel,
    target: BatchedTarget,
    head_token_ids_C: torch.Tensor | None,
    prompts: Sequence[HeldOutPrompt],
    *,
    end_ids: Collection[int],
    num_tokens: int = 128,
    gamma: int = GAMMA,
    seed: int = 0,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> Evaluation:
    """Have the target answer the prompts, and judge the draft by the answers.

    Args:
        draft: trained.
        target: of which it is a draft, with all layers and positions enough; float32 matrices where exactness is
            wanted.
        head_token_ids_C: int64, ascending: what the draft can propose; None is all.
        prompts: of `held_out_prompts`.
        end_ids: that end a text.
        num_tokens: of an answer at most.
        gamma: proposals of a round.
        seed: of the draws.
        report: told how many prompts of how many are answered.

    Raises:
        ValueError: as `write_answers` and `judge` do.
        DistillationError: as `judge` does.
    """
    answers = write_answers(target, prompts, end_ids=end_ids, num_tokens=num_tokens, seed=seed, report=report)
    return judge(draft, target, head_token_ids_C, answers, gamma=gamma)


def judge(
    draft: DraftModel,
    target: BatchedTarget,
    head_token_ids_C: torch.Tensor | None,
    answers: Sequence[Answer],
    *,
    gamma: int = GAMMA,
) -> Evaluation:
    """Judge a draft by answers, which may serve for several drafts.

    Raises:
        ValueError: if gamma is below 1.
        DistillationError: if the answers are all shorter than a proposal.
    """
    if gamma < 1:
        raise ValueError(f"gamma must be at least 1, got {gamma}")
    tallies = {kind: _Tally() for kind in TextKind}
    for answer in answers:
        _tally(tallies[answer.kind], draft, target, head_token_ids_C, answer, gamma)
    overall = _Tally()
    for tally in tallies.values():
        overall.add(tally)
    if not overall.is_complete:
        raise DistillationError(
            f"the target's greedy or drawn answers are all shorter than {gamma} tokens, so there is nothing to judge a "
            "draft by; give other prompts"
        )
    return Evaluation(
        by_kind={kind: tally.figures() for kind, tally in tallies.items() if tally.is_complete},
        overall=overall.figures(),
        gamma=gamma,
        num_prompts=sum(answer.greedy for answer in answers),
    )


@dataclass
class _Mean:
    total: float = 0.0
    count: float = 0.0

    def add(self, other: _Mean) -> None:
        self.total += other.total
        self.count += other.count

    @property
    def value(self) -> float:
        return self.total / self.count


@dataclass
class _Tally:
    num_tokens: int = 0
    acceptance: _Mean = field(default_factory=_Mean)
    greedy: _Mean = field(default_factory=_Mean)
    shared_noise: _Mean = field(default_factory=_Mean)
    rejection_rounds: _Mean = field(default_factory=_Mean)
    greedy_rounds: _Mean = field(default_factory=_Mean)
    shared_noise_rounds: _Mean = field(default_factory=_Mean)

    def means(self) -> tuple[_Mean, ...]:
        return (
            self.acceptance,
            self.greedy,
            self.shared_noise,
            self.rejection_rounds,
            self.greedy_rounds,
            self.shared_noise_rounds,
        )

    def add(self, other: _Tally) -> None:
        self.num_tokens += other.num_tokens
        for own, its in zip(self.means(), other.means(), strict=True):
            own.add(its)

    @property
    def is_complete(self) -> bool:
        return all(mean.count > 0 for mean in self.means())

    def figures(self) -> Figures:
        return Figures(
            num_tokens=self.num_tokens,
            acceptance=self.acceptance.value,
            greedy_agreement=self.greedy.value,
            shared_noise_agreement=self.shared_noise.value,
            rejection_length=self.rejection_rounds.value,
            greedy_length=self.greedy_rounds.value,
            shared_noise_length=self.shared_noise_rounds.value,
        )


def _tally(
    tally: _Tally,
    draft: DraftModel,
    target: BatchedTarget,
    head_token_ids_C: torch.Tensor | None,
    answer: Answer,
    gamma: int,
) -> None:
    by_step = answer_chances(draft, target, head_token_ids_C, answer, gamma)
    tally.num_tokens += answer.num_tokens
    if answer.greedy:
        greedy_KN = torch.stack([chances.greedy_M for chances in by_step])
        tally.greedy.add(_mean(greedy_KN[0]))
        tally.greedy_rounds.add(_rounds(greedy_KN))
        return
    tally.acceptance.add(_mean(by_step[0].overlap_M))
    tally.rejection_rounds.add(_rounds(torch.stack([chances.rejection_M for chances in by_step])))
    shared_noise_KN = torch.stack([chances.shared_noise_M for chances in by_step])
    tally.shared_noise.add(_mean(shared_noise_KN[0]))
    tally.shared_noise_rounds.add(_rounds(shared_noise_KN))


def _mean(values_N: torch.Tensor) -> _Mean:
    return _Mean(total=values_N.double().sum().item(), count=len(values_N))


def _rounds(chances_KN: torch.Tensor) -> _Mean:
    rounds = expected_rounds(chances_KN)
    return _Mean(total=rounds.num_tokens, count=rounds.num_rounds)
