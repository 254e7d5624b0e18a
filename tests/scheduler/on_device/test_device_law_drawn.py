"""The output law under the rejection rule once more, drawn with the device's noise, and faults that must show.

Every draw stands at positions of its own, so that one seed gives them all, and `vmap` judges them all at once: it can,
as the judgement looks at no value.

Shape suffixes: N draws, A first tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

from scheduler import SamplingSettings, Verification
from scheduler.noise import Purpose
from scheduler.on_device import DeviceLaw, NoiseTable, judge_on_device, purposes_of
from tests.support.reference_law import joint_law
from tests.support.statistics import frequencies, total_variation
from tests.support.table_model import TableModel

VOCAB = 4
PROMPT = (0, 3)
BOUND = 0.02
NUM_DRAWS = 60_000
TARGET = TableModel(vocab_size=VOCAB, order=2, seed=11, sharpness=0.9)
DRAFT = TableModel(vocab_size=VOCAB, order=2, seed=13, sharpness=0.9)
FIRST_N = torch.arange(NUM_DRAWS) * 2
"""The position of each draw's first token; the second one stands behind it."""


@pytest.fixture(scope="module")
def noise() -> NoiseTable:
    table = NoiseTable(7, device="cpu", num_positions=2 * NUM_DRAWS, purposes=purposes_of(settings_of()))
    table.reserve(2 * NUM_DRAWS)
    return table


class Game:
    """Target and draft as tables of what follows the prompt, under one law."""

    def __init__(self, settings: SamplingSettings, noise: NoiseTable) -> None:
        self.law = DeviceLaw(settings, vocab_size=VOCAB, device="cpu")
        self.noise = noise
        self.counts = self.law.start_counts(PROMPT)

    def rows(self, model: TableModel) -> tuple[torch.Tensor, torch.Tensor]:
        """logits_V after the prompt, logits_AV after each first token."""
        after_first = [model.logits_after([*PROMPT, token_id]) for token_id in range(VOCAB)]
        return model.logits_after(list(PROMPT)), torch.stack(after_first)

    def weights(self, model: TableModel) -> tuple[torch.Tensor, torch.Tensor]:
        """log_weights_V after the prompt, log_weights_AV after each first token."""
        logits_V, logits_AV = self.rows(model)
        both = []
        for token_id in range(VOCAB):
            counts = None if self.counts is None else self.counts.rows(torch.tensor([token_id]))
            weights_RV, _ = self.law.apply(
                torch.stack([logits_V, logits_AV[token_id]]), num_output_R=torch.arange(2), counts=counts
            )
            both.append(weights_RV)
        weights_ARV = torch.stack(both)
        return weights_ARV[0, 0], weights_ARV[:, 1]

    def draw(self, log_weights: torch.Tensor, purpose: Purpose, positions_N: torch.Tensor) -> torch.Tensor:
        """One token a position, int64; weights of shape V or NV."""
        return self.law.draw_R(log_weights + self.noise.gumbel_RV(purpose, positions_N, self.law.token_ids_V), None)


@dataclass(frozen=True, kw_only=True)
class Offers:
    """A proposal for each draw; one token or two."""

    token_ids: list[torch.Tensor]
    """Each int64, shape N."""
    probabilities: list[torch.Tensor]
    """Each float32, shape NV: the q that a token is said to come from."""


Propose = Callable[[Game, int], Offers]
Rule = Callable[[Game, torch.Tensor, Offers], torch.Tensor]


def honest_offers(game: Game, num_tokens: int) -> Offers:
    first_V, second_AV = game.weights(DRAFT)
    first_N = game.draw(first_V, Purpose.DRAFT, FIRST_N)
    second_NV = second_AV[first_N]
    second_N = game.draw(second_NV, Purpose.DRAFT, FIRST_N + 1)
    q_V = game.law.probabilities_RV(first_V)
    return Offers(
        token_ids=[first_N, second_N][:num_tokens],
        probabilities=[q_V.expand(NUM_DRAWS, -1), game.law.probabilities_RV(second_NV)][:num_tokens],
    )


def verdict_tokens(game: Game, offers: Offers, *, guessed: bool) -> torch.Tensor:
    """token_ids_NR of every draw's verdict, -1 behind its end."""
    logits_V, logits_AV = game.rows(TARGET)
    num_block = len(offers.token_ids) - guessed
    rows = [logits_V.expand(NUM_DRAWS, -1), logits_AV[offers.token_ids[0]]]
    if num_block == 2:
        rows.append(torch.zeros(NUM_DRAWS, VOCAB))
    logits_NRV = torch.stack(rows[: num_block + 1], dim=1)

    def judged(
        position: torch.Tensor, logits_RV: torch.Tensor, ids_P: torch.Tensor, q_PV: torch.Tensor
    ) -> torch.Tensor:
        return judge_on_device(
            game.law,
            game.noise,
            logits_RV,
            position=position,
            num_output=0,
            counts=game.counts,
            block_ids_B=ids_P[:num_block],
            guess_ids_G=ids_P[num_block:],
            draft_probabilities=list(q_PV),
        ).token_ids_R

    # A block of two has a row beyond it, at a position of the next draw; its token is not counted.
    positions_N = FIRST_N.clamp(max=2 * NUM_DRAWS - 3)
    ids_NP, q_NPV = torch.stack(offers.token_ids, dim=1), torch.stack(offers.probabilities, dim=1)
    return torch.vmap(judged)(positions_N, logits_NRV, ids_NP, q_NPV)


def keep_tokens(game: Game, token_ids_NR: torch.Tensor, offers: Offers) -> torch.Tensor:
    return token_ids_NR


def distance(
    noise: NoiseTable,
    settings: SamplingSettings,
    *,
    num_tokens: int = 1,
    propose: Propose = honest_offers,
    rule: Rule = keep_tokens,
    guessed: bool = True,
) -> float:
    """Total variation between what was drawn and one-token decoding."""
    game = Game(settings, noise)
    offers = propose(game, num_tokens)
    token_ids_NR = rule(game, verdict_tokens(game, offers, guessed=guessed), offers)
    tokens = [token_ids_NR[:, 0]]
    if num_tokens == 2:
        # Where the verdict ends early, the target goes on alone.
        alone_N = game.draw(game.weights(TARGET)[1][tokens[0]], Purpose.TARGET, FIRST_N + 1)
        tokens.append(torch.where(token_ids_NR[:, 1] >= 0, token_ids_NR[:, 1], alone_N))
    wanted = joint_law(
        lambda ids: TARGET.logits_after(ids).double().numpy(), settings, prompt_ids=PROMPT, num_tokens=num_tokens
    )
    found = frequencies(map(tuple, torch.stack(tokens, dim=1).tolist()))
    return total_variation(found, wanted)


def settings_of(**options: float) -> SamplingSettings:
    return SamplingSettings(**{"temperature": 1.0, "verification": Verification.REJECTION, **options})


FILTERED = {"top_k": 3, "min_p": 0.05, "presence_penalty": 0.5, "temperature": 1.2}


@pytest.mark.parametrize("guessed", [False, True])
@pytest.mark.parametrize("num_tokens", [1, 2])
@pytest.mark.parametrize("options", [{}, FILTERED])
def test_first_tokens(noise: NoiseTable, options: dict[str, float], num_tokens: int, guessed: bool) -> None:
    assert distance(noise, settings_of(**options), num_tokens=num_tokens, guessed=guessed) < BOUND / 2


def argmax_offers(game: Game, num_tokens: int) -> Offers:
    """Takes the draft's most likely token and claims to have drawn it."""
    q_V = game.law.probabilities_RV(game.weights(DRAFT)[0])
    return Offers(
        token_ids=[q_V.argmax().expand(NUM_DRAWS)],
        probabilities=[q_V.expand(NUM_DRAWS, -1)],
    )


def top_two_offers(game: Game, num_tokens: int) -> Offers:
    """Draws from the draft's two best and claims to have drawn from all."""
    weights_V = game.weights(DRAFT)[0]
    cut_V = weights_V.masked_fill(weights_V < weights_V.topk(2).values[-1], float("-inf"))
    return Offers(
        token_ids=[game.draw(cut_V, Purpose.DRAFT, FIRST_N)],
        probabilities=[game.law.probabilities_RV(weights_V).expand(NUM_DRAWS, -1)],
    )


def inverse_offers(game: Game, num_tokens: int) -> Offers:
    """Draws by inverting the distribution function at the very uniform that will judge the token."""
    q_V = game.law.probabilities_RV(game.weights(DRAFT)[0])
    share_N1 = game.noise.uniform_R(Purpose.ACCEPT, FIRST_N)[:, None]
    return Offers(
        token_ids=[(q_V.cumsum(0) <= share_N1).sum(1).clamp(max=VOCAB - 1)],
        probabilities=[q_V.expand(NUM_DRAWS, -1)],
    )


def residual_noise_offers(game: Game, num_tokens: int) -> Offers:
    """Draws with the noise that chooses from the residual."""
    weights_V = game.weights(DRAFT)[0]
    return Offers(
        token_ids=[game.draw(weights_V, Purpose.RESIDUAL, FIRST_N)],
        probabilities=[game.law.probabilities_RV(weights_V).expand(NUM_DRAWS, -1)],
    )


def tokens_without_residual(game: Game, token_ids_NR: torch.Tensor, offers: Offers) -> torch.Tensor:
    """After a rejection draws from p instead of norm(max(0, p - q))."""
    redrawn_N = game.draw(game.weights(TARGET)[0], Purpose.RESIDUAL, FIRST_N)
    accepted_N = token_ids_NR[:, 0] == offers.token_ids[0]
    return torch.where(accepted_N, token_ids_NR[:, 0], redrawn_N)[:, None]


@pytest.mark.parametrize(
    ("propose", "rule"),
    [
        pytest.param(argmax_offers, keep_tokens, id="argmax draft judged with its softmax"),
        pytest.param(top_two_offers, keep_tokens, id="top-2 draft judged unfiltered"),
        pytest.param(inverse_offers, keep_tokens, id="one uniform to draw and to judge"),
        pytest.param(residual_noise_offers, keep_tokens, id="one noise to draw and to redraw"),
        pytest.param(honest_offers, tokens_without_residual, id="resampling from p"),
    ],
)
def test_the_bound_catches(noise: NoiseTable, propose: Propose, rule: Rule) -> None:
    assert distance(noise, settings_of(), propose=propose, rule=rule) > BOUND
