"""A draft's figures on held-out prompts: exact for drafts whose worth is known beforehand.

Shape suffixes: T tokens, S tokens read, E hidden width, V vocabulary, N tokens of an answer.
"""

from __future__ import annotations

import dataclasses

import pytest
import torch

from models.config import Family, ModelConfig
from models.decoder_tensors import expected_tensors
from models.distill.answers import Answer, write_answers
from models.distill.batched_target import BatchedTarget
from models.distill.draft_model import DraftModel
from models.distill.evaluation import Evaluation, evaluate, judge
from models.distill.held_out_prompts import HeldOutPrompt
from models.distill.text_kind import TextKind
from models.draft_folder import DraftDesign
from models.errors import DistillationError
from tests.support.tiny_decoders import StateDictCheckpoint

CONFIG = ModelConfig(
    family=Family.LLAMA,
    vocab_size=40,
    hidden_size=16,
    intermediate_size=24,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    context_length=64,
    tie_embeddings=True,
)
PROMPTS = (
    HeldOutPrompt(kind=TextKind.CHAT, token_ids=(3, 14, 15)),
    HeldOutPrompt(kind=TextKind.CHAT, token_ids=(9, 26, 5, 35, 8)),
    HeldOutPrompt(kind=TextKind.COPY, token_ids=(27, 18)),
)
NO_ENDS: frozenset[int] = frozenset()


def tiny_target(*, scale: float = 0.2, num_positions: int = 32) -> tuple[BatchedTarget, StateDictCheckpoint]:
    generator = torch.Generator().manual_seed(5)
    tensors = {
        name: torch.rand(shape, generator=generator) + 0.5
        if "norm" in name
        else torch.randn(shape, generator=generator) * scale
        for name, shape in expected_tensors(CONFIG)
    }
    checkpoint = StateDictCheckpoint(CONFIG, tensors)
    return (
        BatchedTarget(checkpoint, dtype=torch.float32, device=torch.device("cpu"), num_positions=num_positions),
        checkpoint,
    )


def perfect_draft(checkpoint: StateDictCheckpoint) -> DraftModel:
    """All of the target's layers."""
    draft = DraftModel(CONFIG, design=DraftDesign.TOKEN, num_layers=CONFIG.num_layers)
    draft.initialise(checkpoint)
    return draft


def draft_of(checkpoint: StateDictCheckpoint, design: DraftDesign, *, num_layers: int = 1) -> DraftModel:
    draft = DraftModel(CONFIG, design=design, num_layers=num_layers)
    draft.initialise(checkpoint)
    return draft


def answers_of(target: BatchedTarget, *, num_tokens: int = 12, seed: int = 2) -> tuple[Answer, ...]:
    return write_answers(target, PROMPTS, end_ids=NO_ENDS, num_tokens=num_tokens, seed=seed)


def test_a_draft_that_is_its_target_is_always_right() -> None:
    target, checkpoint = tiny_target()
    evaluation = evaluate(perfect_draft(checkpoint), target, None, PROMPTS, end_ids=NO_ENDS, num_tokens=12)
    assert evaluation.num_prompts == len(PROMPTS)
    assert evaluation.by_kind.keys() == {TextKind.CHAT, TextKind.COPY}
    for figures in (*evaluation.by_kind.values(), evaluation.overall):
        assert (figures.acceptance, figures.shared_noise_agreement) == pytest.approx((1, 1), abs=1e-4)
        assert figures.greedy_agreement == 1
        assert (figures.rejection_length, figures.shared_noise_length) == pytest.approx((5, 5), abs=1e-3)
        assert figures.greedy_length == pytest.approx(5)
    assert evaluation.overall.num_tokens == 2 * len(PROMPTS) * 12


def test_answers_are_the_targets_own() -> None:
    """Each greedy token is the likeliest after all before it, whatever was written beside it, and features fit."""
    target, _ = tiny_target()
    answers = answers_of(target)
    assert [(answer.kind, answer.greedy) for answer in answers] == [
        (kind, greedy) for kind in (TextKind.CHAT, TextKind.CHAT, TextKind.COPY) for greedy in (True, False)
    ]
    for answer in answers:
        assert tuple(answer.token_ids_T[: answer.num_prompt_tokens].tolist()) in {p.token_ids for p in PROMPTS}
        features_SE = target.features(answer.token_ids_T[None, :-1])[0]
        torch.testing.assert_close(answer.features_SE, features_SE, atol=1e-4, rtol=1e-4)
        likeliest = target.logits(features_SE[answer.num_prompt_tokens - 1 :]).argmax(-1)
        written = answer.token_ids_T[answer.num_prompt_tokens :]
        assert torch.equal(likeliest, written) is answer.greedy


def test_drawn_answers_follow_the_targets_law() -> None:
    """The first token of many answers to one prompt, against its distribution: a chi-squared of 39 degrees."""
    target, _ = tiny_target()
    num_answers = 3000
    prompt = PROMPTS[0]
    answers = write_answers(target, [prompt] * num_answers, end_ids=NO_ENDS, num_tokens=1, seed=3)
    drawn = torch.tensor([int(answer.token_ids_T[-1]) for answer in answers if not answer.greedy])
    p_V = target.logits(target.features(torch.tensor([prompt.token_ids]))[0, -1:])[0].softmax(-1)
    expected_V = p_V * num_answers
    counts_V = torch.bincount(drawn, minlength=CONFIG.vocab_size)
    assert expected_V.min() > 5
    assert ((counts_V - expected_V) ** 2 / expected_V).sum() < 90


def test_an_answer_ends_with_its_first_end_of_text() -> None:
    target, _ = tiny_target()
    unended = answers_of(target)
    ends = frozenset({int(unended[0].token_ids_T[unended[0].num_prompt_tokens + 4]), PROMPTS[0].token_ids[-1]})
    for whole, cut in zip(unended, write_answers(target, PROMPTS, end_ids=ends, num_tokens=12, seed=2), strict=True):
        written = whole.token_ids_T[whole.num_prompt_tokens :].tolist()
        places = [place for place, token_id in enumerate(written) if token_id in ends]
        if cut.greedy:
            expected = written[: places[0] + 1] if places else written
            assert cut.token_ids_T[cut.num_prompt_tokens :].tolist() == expected
            assert len(cut.features_SE) == len(cut.token_ids_T) - 1
        assert not set(cut.token_ids_T[cut.num_prompt_tokens : -1].tolist()) & ends


def test_the_same_seed_gives_the_same_figures() -> None:
    target, checkpoint = tiny_target()
    draft = draft_of(checkpoint, DraftDesign.FEATURE)

    def run(seed: int) -> Evaluation:
        return evaluate(draft, target, None, PROMPTS, end_ids=NO_ENDS, num_tokens=8, seed=seed)

    assert run(4) == run(4)
    assert run(4).overall.rejection_length != run(5).overall.rejection_length


@pytest.mark.parametrize("head", [None, torch.arange(1, 40, 3)])
@pytest.mark.parametrize("design", DraftDesign)
def test_figures_are_those_of_a_draft_stepped_token_by_token(
    design: DraftDesign, head: torch.Tensor | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each round is stepped as decoding steps it, one call a token; rows of a wrong step or place would show."""
    monkeypatch.setattr("models.distill.answer_chances._CHUNK_ROWS", 5)
    target, checkpoint = tiny_target()
    draft = draft_of(checkpoint, design)
    drawn = next(answer for answer in answers_of(target) if not answer.greedy)
    greedy = next(answer for answer in answers_of(target) if answer.greedy)
    figures = judge(draft, target, head, [drawn, greedy], gamma=3).overall
    overlaps, lengths = stepped(draft, target, head, drawn, gamma=3)
    assert figures.acceptance == pytest.approx(overlaps, abs=1e-5)
    assert figures.rejection_length == pytest.approx(lengths, abs=1e-5)


def stepped(
    draft: DraftModel, target: BatchedTarget, head: torch.Tensor | None, answer: Answer, *, gamma: int
) -> tuple[float, float]:
    """Mean overlap of first proposals, and mean tokens of a round under the rejection rule."""
    first, length = answer.num_prompt_tokens, len(answer.token_ids_T)
    ids_T = answer.token_ids_T
    overlaps = []
    accepted: dict[int, list[float]] = {}
    for start in range(first, length):
        alive, accepted[start] = 1.0, []
        for step in range(min(gamma, length - start)):
            q_V = proposal_law(draft, target, head, answer, known=start, step=step)
            p_V = target.logits(answer.features_SE[start + step - 1][None])[0].softmax(-1)
            if step == 0:
                overlaps.append(torch.minimum(p_V, q_V).sum().item())
            alive *= min(1.0, (q_V / p_V)[ids_T[start + step]].item())
            accepted[start].append(alive)
    begins = dict.fromkeys(range(first, length + gamma + 2), 0.0) | {first: 1.0}
    rounds = tokens = 0.0
    for start in range(first, length - gamma + 1):
        reached = [1.0, *accepted[start], 0.0]
        for step in range(gamma + 1):
            begins[start + step + 1] += begins[start] * (reached[step] - reached[step + 1])
        rounds += begins[start]
        tokens += begins[start] * sum(reached)
    return sum(overlaps) / len(overlaps), tokens / rounds


def proposal_law(
    draft: DraftModel, target: BatchedTarget, head: torch.Tensor | None, answer: Answer, *, known: int, step: int
) -> torch.Tensor:
    """q_V for token `known + step` of a round before which the first `known` tokens, and features of all but the last
    of them, were known; further features are the draft's own."""
    features_SE = answer.features_SE[: known - 1]
    with torch.inference_mode():
        for end in range(known, known + step + 1):
            padded_SE = torch.cat([features_SE, torch.zeros(1, CONFIG.hidden_size)])
            hidden_SE = draft(answer.token_ids_T[None, :end], padded_SE[None], target)[0][0]
            features_SE = torch.cat([features_SE, hidden_SE[-1:]])
        logits_V = target.logits(torch.nn.functional.rms_norm(hidden_SE[-1:], (CONFIG.hidden_size,), eps=1e-6))[0]
    if head is not None:
        masked_V = torch.full_like(logits_V, -torch.inf)
        masked_V[head] = logits_V[head]
        logits_V = masked_V
    return logits_V.softmax(-1)


@pytest.mark.parametrize("design", DraftDesign)
def test_a_draft_restored_from_its_tensors_has_the_same_figures(design: DraftDesign) -> None:
    target, checkpoint = tiny_target()
    draft, other = draft_of(checkpoint, design), DraftModel(CONFIG, design=design, num_layers=1)
    answers = answers_of(target)
    before = judge(other, target, None, answers)
    other.restore(draft.export(None, dtype=torch.float32))
    assert judge(other, target, None, answers) == judge(draft, target, None, answers) != before


def test_answers_that_are_too_short_are_refused() -> None:
    target, checkpoint = tiny_target()
    answers = answers_of(target, num_tokens=3)
    with pytest.raises(DistillationError, match="shorter than 4 tokens"):
        judge(draft_of(checkpoint, DraftDesign.TOKEN), target, None, answers)
    assert judge(draft_of(checkpoint, DraftDesign.TOKEN), target, None, answers, gamma=3).gamma == 3


def test_a_kind_without_a_whole_round_is_left_out() -> None:
    target, checkpoint = tiny_target()
    answers = [
        dataclasses.replace(
            answer,
            token_ids_T=answer.token_ids_T[: answer.num_prompt_tokens + 2],
            features_SE=answer.features_SE[: answer.num_prompt_tokens + 1],
        )
        if answer.kind is TextKind.COPY
        else answer
        for answer in answers_of(target)
    ]
    evaluation = judge(draft_of(checkpoint, DraftDesign.TOKEN), target, None, answers)
    assert evaluation.by_kind.keys() == {TextKind.CHAT}


@pytest.mark.parametrize(
    ("prompts", "num_tokens", "message"),
    [
        ((), 4, "no prompt"),
        (PROMPTS, 0, "num_tokens must be at least 1, got 0"),
        ((HeldOutPrompt(kind=TextKind.CODE, token_ids=()),), 4, "a code prompt has 0 tokens"),
        (PROMPTS, 28, "a chat prompt has 5 tokens; with an answer of 28 it must have between 1 and 4"),
    ],
)
def test_what_cannot_be_answered_is_refused(prompts: tuple[HeldOutPrompt, ...], num_tokens: int, message: str) -> None:
    target, checkpoint = tiny_target()
    with pytest.raises(ValueError, match=message):
        evaluate(perfect_draft(checkpoint), target, None, prompts, end_ids=NO_ENDS, num_tokens=num_tokens)


def test_gamma_below_one_is_refused() -> None:
    target, checkpoint = tiny_target()
    with pytest.raises(ValueError, match="gamma must be at least 1, got 0"):
        judge(perfect_draft(checkpoint), target, None, answers_of(target), gamma=0)
