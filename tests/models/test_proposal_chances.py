"""Chances of proposals and lengths of rounds, against small distributions in which everything can be counted.

Shape suffixes: V vocabulary, C tokens of the head, N rows, K proposals.
"""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from models.distill.proposal_chances import ProposalChances, proposal_chances
from models.distill.round_length import expected_rounds

P_LOGITS_V = torch.tensor([0.3, -1.0, 1.5, 0.0, -2.0, 0.9])
Q_LOGITS_V = torch.tensor([1.1, -0.5, 0.2, 0.4, 1.0, -1.5])
HEAD_C = torch.tensor([0, 2, 3, 5])
SIZE = len(P_LOGITS_V)


def of_every_token(head_token_ids_C: torch.Tensor | None) -> ProposalChances:
    q_logits = Q_LOGITS_V if head_token_ids_C is None else Q_LOGITS_V[head_token_ids_C]
    return proposal_chances(
        P_LOGITS_V.expand(SIZE, -1), q_logits.expand(SIZE, -1), head_token_ids_C, torch.arange(SIZE)
    )


def laws(head_token_ids_C: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    kept = torch.arange(SIZE) if head_token_ids_C is None else head_token_ids_C
    masked_V = torch.full((SIZE,), -math.inf).index_copy(0, kept, Q_LOGITS_V[kept])
    return P_LOGITS_V.double().softmax(-1), masked_V.double().softmax(-1)


@pytest.mark.parametrize("head", [None, HEAD_C])
def test_the_mean_over_the_text_is_the_overlap(head: torch.Tensor | None) -> None:
    """E over x ~ p of min(1, q(x) / p(x)) is sum min(p, q)."""
    p_V, q_V = laws(head)
    chances = of_every_token(head)
    overlap = torch.minimum(p_V, q_V).sum().item()
    assert chances.overlap_M.tolist() == pytest.approx([overlap] * SIZE)
    assert (chances.rejection_M.double() @ p_V).item() == pytest.approx(overlap)


@pytest.mark.parametrize("head", [None, HEAD_C])
def test_shared_noise_agrees_as_often_as_sampling_finds(head: torch.Tensor | None) -> None:
    p_V, q_V = laws(head)
    num_samples = 200_000
    uniforms_NV = torch.rand(num_samples, SIZE, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    noise_NV = -torch.log(-torch.log(uniforms_NV))
    theirs_N = (p_V.log() + noise_NV).argmax(-1)
    agree_N = (q_V.log() + noise_NV).argmax(-1) == theirs_N
    chances = of_every_token(head).shared_noise_M
    for token_id in range(SIZE):
        found = agree_N[theirs_N == token_id].double()
        margin = 5 * math.sqrt(0.25 / len(found))
        assert chances[token_id].item() == pytest.approx(found.mean().item(), abs=margin)


def test_a_token_outside_the_head_is_never_proposed() -> None:
    chances = of_every_token(HEAD_C)
    for token_id in (1, 4):
        assert chances.rejection_M[token_id] == chances.shared_noise_M[token_id] == chances.greedy_M[token_id] == 0


@pytest.mark.parametrize(("head", "best_id"), [(None, 0), (HEAD_C, 0), (torch.tensor([1, 3, 4]), 4)])
def test_greedily_the_likeliest_of_the_head_counts(head: torch.Tensor | None, best_id: int) -> None:
    assert of_every_token(head).greedy_M.tolist() == [float(token_id == best_id) for token_id in range(SIZE)]


def test_sure_and_impossible_tokens_give_numbers() -> None:
    """Probabilities that vanish in float32 must not become 0 / 0."""
    sure_V, other_V = torch.tensor([200.0, 0.0, 0.0]), torch.tensor([0.0, 200.0, 0.0])
    logits = [(sure_V, sure_V), (sure_V, other_V), (other_V, sure_V)]
    p_NV, q_NV = torch.stack([p for p, _ in logits]), torch.stack([q for _, q in logits])
    chances = proposal_chances(p_NV, q_NV, None, torch.tensor([0, 0, 0]))
    assert chances.rejection_M.tolist() == [1, 0, 1]
    assert chances.shared_noise_M.tolist() == [1, 0, 1]


GAMMA, LENGTH, SYMBOLS = 2, 5, 3


def tables(seed: int) -> tuple[dict[tuple[int, ...], torch.Tensor], dict[tuple[int, ...], torch.Tensor]]:
    """A random law for each beginning of a text of three symbols: the target's, and the draft's by place in a round."""
    generator = torch.Generator().manual_seed(seed)
    texts = [text for length in range(LENGTH) for text in itertools.product(range(SYMBOLS), repeat=length)]
    p = {text: torch.rand(SYMBOLS, generator=generator, dtype=torch.float64) for text in texts}
    q = {
        (step, *text): torch.rand(SYMBOLS, generator=generator, dtype=torch.float64)
        for text in texts
        for step in range(GAMMA)
    }
    return {key: law / law.sum() for key, law in p.items()}, {key: law / law.sum() for key, law in q.items()}


def test_products_along_the_text_are_the_chances_of_whole_proposals() -> None:
    """What a round accepts when its proposals are drawn from q, counted over all of them."""
    p, q = tables(3)
    proposed = [0.0] * GAMMA
    for text in itertools.product(range(SYMBOLS), repeat=GAMMA):
        alive = 1.0
        for step in range(GAMMA):
            p_V, q_V = p[text[:step]], q[(step, *text[:step])]
            alive *= (q_V[text[step]] * (p_V / q_V)[text[step]].clamp(max=1)).item()
            # Each beginning was met once for every way to go on.
            proposed[step] += alive / SYMBOLS ** (GAMMA - step - 1)
    along_text = [0.0] * GAMMA
    for text in itertools.product(range(SYMBOLS), repeat=GAMMA):
        law = math.prod(p[text[:step]][text[step]].item() for step in range(GAMMA))
        chances = [min(1.0, (q[(step, *text[:step])] / p[text[:step]])[text[step]].item()) for step in range(GAMMA)]
        for step in range(GAMMA):
            along_text[step] += law * math.prod(chances[: step + 1])
    assert along_text == pytest.approx(proposed)


def test_rounds_are_those_of_all_ways_to_write_a_text() -> None:
    """Enumerate who was accepted and who was refused, each with its probability."""
    chances_KN = torch.rand(GAMMA, LENGTH, generator=torch.Generator().manual_seed(8), dtype=torch.float64)

    def count(start: int, probability: float) -> tuple[float, float]:
        """Rounds and their tokens from `start` on, times the probability of getting there."""
        if start + GAMMA > LENGTH:
            return 0.0, 0.0
        rounds, tokens = probability, 0.0
        alive = probability
        for step in range(GAMMA + 1):
            accepted = chances_KN[step, start + step].item() if step < GAMMA else 0.0
            ends_here = alive * (1 - accepted)
            later_rounds, later_tokens = count(start + step + 1, ends_here)
            rounds, tokens = rounds + later_rounds, tokens + later_tokens + ends_here * (step + 1)
            alive *= accepted
        return rounds, tokens

    rounds, tokens = count(0, 1.0)
    found = expected_rounds(chances_KN)
    assert (found.num_rounds, found.num_tokens) == pytest.approx((rounds, tokens))


def test_rounds_begin_more_often_where_the_draft_is_bad() -> None:
    """Half of the text foreseen, half not: 4 rounds of five tokens and 20 of one."""
    chances_KN = torch.cat([torch.ones(4, 20), torch.zeros(4, 24)], dim=1)
    found = expected_rounds(chances_KN)
    # The last full proposal begins at token 40.
    assert found.num_rounds == pytest.approx(4 + 21)
    assert found.num_tokens == pytest.approx(20 + 21)


@pytest.mark.parametrize("length", [1, 3])
def test_a_text_shorter_than_a_proposal_has_no_whole_round(length: int) -> None:
    assert expected_rounds(torch.ones(4, length)).num_rounds == 0
