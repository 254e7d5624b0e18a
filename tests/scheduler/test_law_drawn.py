"""The output law once more, drawn with the real noise, and faults that the bound has to catch.

The faults are ones that speculative runtimes really had. Each is planted here as a proposer or a rule of its own, and
the distance that the right code keeps must be one that the fault exceeds.
"""

from __future__ import annotations

import pytest
import torch

from scheduler import Distribution, Proposal, SamplingLaw, SamplingSettings, TokenHistory, Verdict, Verification
from scheduler.noise import Purpose
from scheduler.verify import judge
from tests.support.reference_law import joint_law
from tests.support.sampled_law import DrawnRounds, Propose, Rule, draw_proposal
from tests.support.statistics import total_variation
from tests.support.table_model import TableModel

VOCAB = 4
PROMPT = (0, 3)
BOUND = 0.02
TARGET = TableModel(vocab_size=VOCAB, order=2, seed=11, sharpness=0.8)
DRAFT = TableModel(vocab_size=VOCAB, order=2, seed=12, sharpness=0.8)


def new_rounds(settings: SamplingSettings, *, num_runs: int, num_tokens: int) -> DrawnRounds:
    return DrawnRounds(
        settings=settings,
        target=TARGET.logits_after,
        draft=DRAFT.logits_after,
        prompt_ids=PROMPT,
        vocab_size=VOCAB,
        num_runs=num_runs,
        num_tokens=num_tokens,
        gamma=num_tokens,
    )


def distance(
    settings: SamplingSettings,
    *,
    num_runs: int,
    num_tokens: int,
    propose: Propose = draw_proposal,
    rule: Rule = judge,
) -> float:
    """Total variation between what was drawn and one-token decoding."""
    rounds = new_rounds(settings, num_runs=num_runs, num_tokens=num_tokens)
    wanted = joint_law(
        lambda ids: TARGET.logits_after(ids).double().numpy(), settings, prompt_ids=PROMPT, num_tokens=num_tokens
    )
    return total_variation(rounds.frequencies(propose, rule), wanted)


def settings_of(**options: float) -> SamplingSettings:
    return SamplingSettings(**{"temperature": 1.0, "verification": Verification.REJECTION, **options})


FILTERED = settings_of(top_k=3, min_p=0.05, presence_penalty=0.5, temperature=1.2)


@pytest.mark.parametrize("settings", [settings_of(), FILTERED], ids=["plain", "filtered"])
def test_runs_that_are_played_together_draw_what_they_would_alone(settings: SamplingSettings) -> None:
    rounds = new_rounds(settings, num_runs=300, num_tokens=2)
    together = rounds.runs_by_output(draw_proposal)
    assert sum(map(len, together.values())) == 300
    for output, runs in together.items():
        assert {rounds.output_alone(run, draw_proposal) for run in runs.tolist()} == {output}


def test_first_token_over_200_000_draws() -> None:
    assert distance(settings_of(), num_runs=200_000, num_tokens=1) < 0.003


def test_first_two_tokens() -> None:
    assert distance(settings_of(), num_runs=20_000, num_tokens=2) < 0.015


def test_first_two_tokens_filtered() -> None:
    assert distance(FILTERED, num_runs=20_000, num_tokens=2) < 0.015


def argmax_proposal(rounds: DrawnRounds, seed: int, history: TokenHistory) -> Proposal:
    """Takes the draft's most likely token and claims to have drawn it."""
    distribution = rounds.draft_distribution(history, ())
    probabilities_V = distribution.probabilities_V()
    return Proposal(token_ids=(int(probabilities_V.argmax()),), probabilities=(probabilities_V,))


def top_two_proposal(rounds: DrawnRounds, seed: int, history: TokenHistory) -> Proposal:
    """Draws from the draft's two best and claims to have drawn from all."""
    distribution = rounds.draft_distribution(history, ())
    best = distribution.log_weights_C.topk(2).indices.sort().values
    cut = Distribution(vocab_size=VOCAB, token_ids_C=best, log_weights_C=distribution.log_weights_C[best])
    token_id = cut.draw(seed, history.length, Purpose.DRAFT)
    return Proposal(token_ids=(token_id,), probabilities=(distribution.probabilities_V(),))


def inverse_proposal(rounds: DrawnRounds, seed: int, history: TokenHistory) -> Proposal:
    """Draws by inverting the distribution function at the very uniform that will judge the token."""
    probabilities_V = rounds.draft_distribution(history, ()).probabilities_V()
    shares_N = rounds.uniforms_N(seed, history.length, Purpose.ACCEPT)
    passed_NV = probabilities_V.cumsum(0).numpy() <= shares_N[:, None]
    token_id = int(rounds.agree_on(passed_NV.sum(axis=1).clip(max=VOCAB - 1)))
    return Proposal(token_ids=(token_id,), probabilities=(probabilities_V,))


def judge_without_residual(
    law: SamplingLaw, logits_RV: torch.Tensor, history: TokenHistory, proposal: Proposal
) -> Verdict:
    """After a rejection draws from p instead of norm(max(0, p - q))."""
    verdict = judge(law, logits_RV, history, proposal)
    if verdict.num_accepted == len(proposal.token_ids):
        return verdict
    kept_ids = verdict.token_ids[:-1]
    target = law.apply(logits_RV[len(kept_ids)], history, kept_ids)
    redrawn_id = target.draw(law.settings.seed, history.length + len(kept_ids), Purpose.RESIDUAL)
    return Verdict(num_accepted=len(kept_ids), token_ids=(*kept_ids, redrawn_id))


@pytest.mark.parametrize(
    ("propose", "rule"),
    [
        pytest.param(argmax_proposal, judge, id="argmax draft judged with its softmax"),
        pytest.param(top_two_proposal, judge, id="top-2 draft judged unfiltered"),
        pytest.param(inverse_proposal, judge, id="one uniform to draw and to judge"),
        pytest.param(draw_proposal, judge_without_residual, id="resampling from p"),
    ],
)
def test_the_bound_catches(propose: Propose, rule: Rule) -> None:
    assert distance(settings_of(), num_runs=10_000, num_tokens=1, propose=propose, rule=rule) > BOUND
