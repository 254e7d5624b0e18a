"""The two rules on single blocks: what is kept, what comes after it, and what is never even looked at."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import scheduler.verify
from scheduler import Proposal, SamplingLaw, SamplingSettings, TokenHistory, Verification, judge
from scheduler.noise import Purpose, uniform
from tests.support.enumeration import Enumerator

VOCAB = 6
FORBIDDEN = float("-inf")
JUST_BELOW_ONE = 1 - 2.0**-53
PROMPT = (5, 4, 3)


def law_of(rule: Verification, *, seed: int = 0, **options: float) -> SamplingLaw:
    settings = SamplingSettings(**{"temperature": 1.0, "verification": rule, "seed": seed, **options})
    return SamplingLaw(settings, vocab_size=VOCAB)


def rows(num_rows: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(num_rows, VOCAB, generator=torch.Generator().manual_seed(seed))


def history_of(law: SamplingLaw) -> TokenHistory:
    return law.start_history(PROMPT)


def drawn_proposal(law: SamplingLaw, draft_rows_RV: torch.Tensor, history: TokenHistory) -> Proposal:
    """A chain that a draft with these rows would offer."""
    coupled = law.settings.verification is Verification.COUPLED
    token_ids: list[int] = []
    probabilities = []
    for draft_row_V in draft_rows_RV:
        distribution = law.apply(draft_row_V, history, token_ids)
        probabilities.append(distribution.probabilities_V())
        purpose = Purpose.SHARED if coupled else Purpose.DRAFT
        token_ids.append(distribution.draw(law.settings.seed, history.length + len(token_ids), purpose))
    return Proposal(token_ids=tuple(token_ids), probabilities=None if coupled else tuple(probabilities))


@pytest.fixture
def smallest_uniform(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler.verify, "uniform", lambda seed, position, purpose: 0.0)


@pytest.fixture
def largest_uniform(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler.verify, "uniform", lambda seed, position, purpose: JUST_BELOW_ONE)


class TestBothRules:
    @pytest.mark.parametrize("rule", Verification)
    @pytest.mark.parametrize("seed", range(30))
    def test_a_forbidden_token_at_position_two_of_four(self, rule: Verification, seed: int) -> None:
        law = law_of(rule, seed=seed)
        history = history_of(law)
        target_RV = rows(5, seed)
        proposal = drawn_proposal(law, target_RV[:4], history)
        target_RV[1, proposal.token_ids[1]] = FORBIDDEN
        verdict = judge(law, target_RV, history, proposal)
        assert verdict.num_accepted == 1
        assert verdict.token_ids[0] == proposal.token_ids[0]
        assert len(verdict.token_ids) == 2
        assert verdict.token_ids[1] != proposal.token_ids[1]

    @pytest.mark.parametrize("rule", Verification)
    @pytest.mark.parametrize("seed", range(20))
    def test_a_draft_equal_to_the_target_is_accepted_whole(self, rule: Verification, seed: int) -> None:
        law = law_of(rule, seed=seed, top_p=0.9, temperature=0.7)
        history = history_of(law)
        target_RV = rows(5, seed)
        proposal = drawn_proposal(law, target_RV[:4], history)
        verdict = judge(law, target_RV, history, proposal)
        assert verdict.num_accepted == 4
        assert verdict.token_ids[:4] == proposal.token_ids
        assert len(verdict.token_ids) == 5

    @pytest.mark.parametrize("rule", Verification)
    def test_the_bonus_token_comes_from_the_row_beyond_the_block(self, rule: Verification) -> None:
        law = law_of(rule)
        history = history_of(law)
        target_RV = rows(3)
        proposal = drawn_proposal(law, target_RV[:2], history)
        for bonus in range(VOCAB):
            target_RV[2] = FORBIDDEN
            target_RV[2, bonus] = 0.0
            assert judge(law, target_RV, history, proposal).token_ids == (*proposal.token_ids, bonus)

    @pytest.mark.parametrize("rule", Verification)
    def test_without_a_proposal_one_token_is_drawn(self, rule: Verification) -> None:
        law = law_of(rule, seed=3)
        history = history_of(law)
        target_RV = rows(1)
        purpose = Purpose.SHARED if rule is Verification.COUPLED else Purpose.TARGET
        verdict = judge(law, target_RV, history, Proposal())
        assert verdict.num_accepted == 0
        assert verdict.token_ids == (law.apply(target_RV[0], history).draw(3, len(PROMPT), purpose),)

    @pytest.mark.parametrize("rule", Verification)
    def test_rows_behind_the_first_disagreement_are_not_looked_at(self, rule: Verification) -> None:
        law = law_of(rule)
        history = history_of(law)
        target_RV = rows(4)
        proposal = drawn_proposal(law, target_RV[:3], history)
        target_RV[0, proposal.token_ids[0]] = FORBIDDEN
        target_RV[1:] = float("nan")
        assert judge(law, target_RV, history, proposal).num_accepted == 0

    @pytest.mark.parametrize("rule", Verification)
    def test_rows_are_not_written_to(self, rule: Verification) -> None:
        law = law_of(rule, top_k=3, presence_penalty=0.5)
        history = history_of(law)
        target_RV, draft_RV = rows(5, 1), rows(4, 2)
        proposal = drawn_proposal(law, draft_RV, history)
        kept = [target_RV.clone(), *(row_V.clone() for row_V in proposal.probabilities or ())]
        judge(law, target_RV, history, proposal, num_logprobs=2)
        assert all(torch.equal(*pair) for pair in zip(kept, [target_RV, *(proposal.probabilities or ())], strict=True))

    @pytest.mark.parametrize("rule", Verification)
    @pytest.mark.parametrize("proposed_id", range(VOCAB))
    def test_greedy_keeps_the_argmax_and_nothing_else(self, rule: Verification, proposed_id: int) -> None:
        law = law_of(rule, temperature=0.0)
        target_RV = rows(2)
        one_hot_V = torch.nn.functional.one_hot(torch.tensor(proposed_id), VOCAB).float()
        verdict = judge(law, target_RV, history_of(law), Proposal(token_ids=(proposed_id,), probabilities=(one_hot_V,)))
        assert verdict.token_ids[0] == int(target_RV[0].argmax())
        assert verdict.num_accepted == int(proposed_id == int(target_RV[0].argmax()))


class TestCoupled:
    @pytest.mark.parametrize("seed", range(40))
    def test_emits_what_one_token_decoding_draws(self, seed: int) -> None:
        law = law_of(Verification.COUPLED, seed=seed, temperature=0.8, top_p=0.95)
        history = history_of(law)
        target_RV = rows(5, seed)
        for draft_seed in range(3):
            proposal = drawn_proposal(law, target_RV[:4] + rows(4, 1000 + draft_seed), history)
            verdict = judge(law, target_RV, history, proposal)
            for row, token_id in enumerate(verdict.token_ids):
                alone = history_of(law).extended(verdict.token_ids[:row])
                assert judge(law, target_RV[row : row + 1], alone, Proposal()).token_ids == (token_id,)

    def test_accepts_more_than_independent_noise_would(self) -> None:
        accepted = 0
        for seed in range(400):
            law = law_of(Verification.COUPLED, seed=seed)
            proposal = drawn_proposal(law, rows(1, 1) * 1.1, history_of(law))
            accepted += judge(law, rows(2, 1), history_of(law), proposal).num_accepted
        assert accepted > 320  # nearly equal laws; two independent draws would agree about 110 times


class TestRejection:
    def one_token(
        self, target_V: list[float], draft_V: list[float], token_id: int
    ) -> tuple[SamplingLaw, torch.Tensor, TokenHistory, Proposal]:
        law = SamplingLaw(
            SamplingSettings(temperature=1.0, verification=Verification.REJECTION), vocab_size=len(target_V)
        )
        target_RV = torch.tensor([target_V, [0.0] * len(target_V)]).log()
        return (
            law,
            target_RV,
            law.start_history((0,)),
            Proposal(token_ids=(token_id,), probabilities=(torch.tensor(draft_V),)),
        )

    @pytest.mark.usefixtures("smallest_uniform")
    def test_uniform_zero_does_not_accept_what_the_target_forbids(self) -> None:
        block = self.one_token([0.0, 0.5, 0.5], [0.8, 0.1, 0.1], 0)
        verdict = judge(*block)
        assert verdict.num_accepted == 0
        assert verdict.token_ids[0] in (1, 2)

    @pytest.mark.usefixtures("smallest_uniform")
    def test_uniform_zero_does_not_accept_a_copied_token_that_the_target_forbids(self) -> None:
        law, target_RV, history, _ = self.one_token([0.0, 0.5, 0.5], [1.0, 0.0, 0.0], 0)
        assert judge(law, target_RV, history, Proposal(token_ids=(0,))).num_accepted == 0

    @pytest.mark.usefixtures("largest_uniform")
    @given(
        weights=st.lists(st.integers(1, 10_000), min_size=3, max_size=8),
        draft_weights=st.lists(st.integers(1, 10_000), min_size=8, max_size=8),
        data=st.data(),
    )
    def test_a_rejected_token_is_never_drawn_again(
        self, weights: list[int], draft_weights: list[int], data: st.DataObject
    ) -> None:
        target_V = torch.tensor(weights, dtype=torch.float32)
        draft_V = torch.tensor(draft_weights[: len(weights)], dtype=torch.float32)
        target_V, draft_V = target_V / target_V.sum(), draft_V / draft_V.sum()
        token_id = data.draw(st.integers(0, len(weights) - 1))
        law, target_RV, history, proposal = self.one_token(target_V.tolist(), draft_V.tolist(), token_id)
        judged_V = law.apply(target_RV[0], history).probabilities_V()
        accepted = JUST_BELOW_ONE * float(draft_V[token_id]) < float(judged_V[token_id])
        target_RV[1] = 0.0
        verdict = judge(law, target_RV, history, proposal)
        assert verdict.num_accepted == int(accepted)
        if not accepted:
            assert judged_V[verdict.token_ids[0]] > draft_V[verdict.token_ids[0]]

    def test_equal_probabilities_are_accepted_by_every_uniform(self, largest_uniform: None) -> None:
        law = law_of(Verification.REJECTION)
        history = history_of(law)
        target_RV = rows(2)
        draft_V = law.apply(target_RV[0], history).probabilities_V()
        for token_id in range(VOCAB):
            assert judge(
                law, target_RV, history, Proposal(token_ids=(token_id,), probabilities=(draft_V,))
            ).num_accepted

    def test_nothing_left_over_means_the_target_itself(self, monkeypatch: pytest.MonkeyPatch) -> None:
        # q above p everywhere, by rounding: a rejection then leaves no residual at all.
        enumerator = Enumerator(monkeypatch)
        law = law_of(Verification.REJECTION)
        history = history_of(law)
        target_RV = rows(2)
        target_V = law.apply(target_RV[0], history).probabilities_V()
        proposal = Proposal(token_ids=(2,), probabilities=(target_V * (1 + 1e-3),))
        law_of_first = dict.fromkeys(range(VOCAB), 0.0)
        rejected = 0.0
        for verdict, weight in enumerator.outcomes(lambda: judge(law, target_RV, history, proposal)):
            if verdict.token_ids[0] != 2:
                law_of_first[verdict.token_ids[0]] += weight
                rejected += weight
        assert rejected == pytest.approx((1 - 1 / 1.001) * (1 - float(target_V[2])), rel=1e-3)
        for token_id in set(range(VOCAB)) - {2}:
            share = float(target_V[token_id]) / (1 - float(target_V[2]))
            assert law_of_first[token_id] / rejected == pytest.approx(share, rel=1e-4)

    def test_q_is_zero_where_the_draft_cannot_propose(self) -> None:
        law = law_of(Verification.REJECTION, top_k=3)
        for seed in range(50):
            law = law_of(Verification.REJECTION, top_k=3, seed=seed)
            proposal = drawn_proposal(law, rows(3, seed), history_of(law))
            for token_id, draft_V in zip(proposal.token_ids, proposal.probabilities, strict=True):
                assert int((draft_V > 0).sum()) == 3
                assert draft_V.dtype == torch.float32
                assert draft_V[token_id] > 0

    def test_what_judges_depends_on_seed_and_position_alone(self) -> None:
        law = law_of(Verification.REJECTION, seed=17)
        history = history_of(law)
        target_RV = rows(2)
        target_V = law.apply(target_RV[0], history).probabilities_V()
        # q chosen so that the very uniform of this position decides, by a hair to either side.
        share = uniform(17, len(PROMPT), Purpose.ACCEPT)
        for nudge, accepted in [(0.999, True), (1.001, False)]:
            draft_V = torch.zeros(VOCAB)
            draft_V[1] = float(target_V[1]) / share * nudge
            proposal = Proposal(token_ids=(1,), probabilities=(draft_V,))
            assert (judge(law, target_RV, history, proposal).num_accepted == 1) == accepted


class TestLogprobs:
    def test_are_the_targets_own_before_any_transform(self) -> None:
        law = law_of(Verification.COUPLED, temperature=0.3, top_k=2, presence_penalty=1.0)
        history = history_of(law)
        target_RV = rows(4, 5)
        proposal = drawn_proposal(law, target_RV[:3], history)
        verdict = judge(law, target_RV, history, proposal, num_logprobs=3)
        assert [report.token_id for report in verdict.logprobs] == list(verdict.token_ids)
        for report, row_V in zip(verdict.logprobs, target_RV, strict=False):
            wanted_V = row_V.double() - row_V.double().logsumexp(0)
            assert report.logprob == pytest.approx(float(wanted_V[report.token_id]), abs=1e-5)
            assert [token_id for token_id, _ in report.top] == wanted_V.topk(3).indices.tolist()
            assert [logprob for _, logprob in report.top] == pytest.approx(wanted_V.topk(3).values.tolist(), abs=1e-5)

    @pytest.mark.parametrize(("num_logprobs", "num_top"), [(0, 0), (1, 1), (100, VOCAB)])
    def test_as_many_alternatives_as_there_are(self, num_logprobs: int, num_top: int) -> None:
        law = law_of(Verification.COUPLED)
        (report,) = judge(law, rows(1), history_of(law), Proposal(), num_logprobs=num_logprobs).logprobs
        assert len(report.top) == num_top
        assert math.isfinite(report.logprob)

    def test_none_reports_nothing(self) -> None:
        law = law_of(Verification.COUPLED)
        assert judge(law, rows(1), history_of(law), Proposal()).logprobs == ()

    def test_do_not_change_the_verdict(self) -> None:
        law = law_of(Verification.REJECTION)
        history = history_of(law)
        proposal = drawn_proposal(law, rows(3, 8), history)
        plain = judge(law, rows(4, 9), history, proposal)
        assert dataclasses.replace(judge(law, rows(4, 9), history, proposal, num_logprobs=2), logprobs=()) == plain
