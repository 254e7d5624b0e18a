"""Draft sources one by one: what they offer, what they keep, and that they never fall out of step."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
import torch

import scheduler.distribution
from scheduler import (
    FixedGamma,
    Lane,
    ModelProposer,
    NgramProposer,
    SamplingLaw,
    SamplingSettings,
    ThreadStream,
    TokenHistory,
    Verification,
    judge,
)
from scheduler.noise import Purpose
from tests.support.enumeration import target_rows
from tests.support.proposing import propose
from tests.support.table_model import TableModel

VOCAB = 10
PROMPT = (1, 2, 3, 4)


@pytest.fixture
def stream() -> Iterator[ThreadStream]:
    stream = ThreadStream("idle")
    yield stream
    stream.close()


class RecordingGamma(FixedGamma):
    """A fixed gamma that notes what it is told."""

    def __init__(self, gamma: int) -> None:
        super().__init__(gamma)
        self.gamma = gamma
        self.seen: list[tuple[int, int]] = []

    def choose(self) -> int:
        return self.gamma

    def observe(self, num_proposed: int, num_accepted: int) -> None:
        self.seen.append((num_proposed, num_accepted))


def law_of(**options: object) -> SamplingLaw:
    return SamplingLaw(SamplingSettings(**{"temperature": 1.0, **options}), vocab_size=VOCAB)


def draft(stream: ThreadStream, *, gamma: int = 3, capacity: int = 100, **options: object) -> ModelProposer:
    model = TableModel(**{"vocab_size": VOCAB, "seed": 6, **options})
    return ModelProposer(Lane("draft", model, stream, capacity=capacity), FixedGamma(gamma))


class TestModel:
    @pytest.mark.parametrize("rule", Verification)
    def test_tokens_are_draws_from_its_own_filtered_law(self, stream: ThreadStream, rule: Verification) -> None:
        law = law_of(verification=rule, top_k=4, seed=8, presence_penalty=0.5)
        history = law.start_history(PROMPT)
        proposer = draft(stream)
        proposer.begin(history)
        proposal = propose(proposer, law, history, 8)
        model = TableModel(vocab_size=VOCAB, seed=6)
        purpose = Purpose.SHARED if rule is Verification.COUPLED else Purpose.DRAFT
        assert len(proposal.token_ids) == 3
        for index, token_id in enumerate(proposal.token_ids):
            before = proposal.token_ids[:index]
            wanted = law.apply(model.logits_after([*PROMPT, *before]), history, before)
            assert token_id == wanted.draw(8, len(PROMPT) + index, purpose)
            if rule is Verification.REJECTION:
                assert torch.equal(proposal.probabilities[index], wanted.probabilities_V())
        assert (proposal.probabilities is None) == (rule is Verification.COUPLED)

    @pytest.mark.parametrize("rule", Verification)
    def test_a_cut_head_offers_the_same_with_less_noise(
        self, stream: ThreadStream, rule: Verification, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        head_ids_C = torch.arange(1, VOCAB, 3)

        class CutTable(TableModel):
            def forward(self, token_ids_T: torch.Tensor, cache: object, *, num_logits: int) -> torch.Tensor:
                logits_RV = super().forward(token_ids_T, cache, num_logits=num_logits)  # type: ignore[arg-type]  # handed on
                return torch.full_like(logits_RV, float("-inf")).index_copy(1, head_ids_C, logits_RV[:, head_ids_C])

        law = law_of(verification=rule, seed=8)
        history = law.start_history(PROMPT)
        drawn: list[int] = []
        noise = scheduler.distribution.gumbel_noise

        def counted(seed: int, position: int, purpose: Purpose, token_ids_N: torch.Tensor) -> torch.Tensor:
            drawn.append(len(token_ids_N))
            return noise(seed, position, purpose, token_ids_N)

        monkeypatch.setattr(scheduler.distribution, "gumbel_noise", counted)
        proposals = []
        for proposable_ids_C, num_drawn in ((None, VOCAB), (head_ids_C, len(head_ids_C))):
            lane = Lane("draft", CutTable(vocab_size=VOCAB, seed=6), stream, capacity=100)
            proposer = ModelProposer(lane, FixedGamma(3), proposable_ids_C=proposable_ids_C)
            proposer.begin(history)
            drawn.clear()
            proposals.append(propose(proposer, law, history, 8))
            assert drawn == [num_drawn] * 3
        whole, among = proposals
        assert among.token_ids == whole.token_ids
        assert set(among.token_ids) <= set(head_ids_C.tolist())
        for among_V, whole_V in zip(among.probabilities or (), whole.probabilities or (), strict=True):
            torch.testing.assert_close(among_V, whole_V)

    @pytest.mark.parametrize("rule", Verification)
    def test_its_cache_never_falls_out_of_step(self, stream: ThreadStream, rule: Verification) -> None:
        # After every kind of verdict it offers what a draft that has just read the whole text would offer.
        generator = random.Random(2)
        law = law_of(verification=rule, seed=4)
        target = TableModel(vocab_size=VOCAB, seed=6, sharpness=1.1)
        history = law.start_history(PROMPT)
        policy = RecordingGamma(3)
        lane = Lane("draft", TableModel(vocab_size=VOCAB, seed=6, max_block=64), stream, capacity=500)
        proposer = ModelProposer(lane, policy)
        proposer.begin(history)
        accepted = set()
        for _ in range(60):
            policy.gamma = generator.choice((0, 1, 3, 8))
            proposal = propose(proposer, law, history, 8)
            fresh = draft(stream, gamma=policy.gamma, capacity=500, max_block=500)
            fresh.begin(history)
            uncached = propose(fresh, law, history, 8)
            assert proposal.token_ids == uncached.token_ids
            assert len(proposal.token_ids) == policy.gamma
            for kept_V, wanted_V in zip(proposal.probabilities or (), uncached.probabilities or (), strict=True):
                assert torch.equal(kept_V, wanted_V)
            verdict = judge(law, target_rows(target.logits_after, history, proposal.token_ids), history, proposal)
            accepted.add(verdict.num_accepted - len(proposal.token_ids))
            proposer.roll_back(history.length + verdict.num_accepted)
            history = history.extended(verdict.token_ids)
            assert lane.num_held == lane._cache.length < history.length
            assert lane._cache.token_ids[: lane.num_held] == history.ids()[: lane.num_held]
        assert len(accepted) > 3  # whole blocks, and rejections at several places

    @pytest.mark.parametrize(("gamma", "room", "expected"), [(3, 8, 3), (3, 2, 2), (0, 8, 0), (8, 1, 1)])
    def test_proposes_no_more_than_asked(self, stream: ThreadStream, gamma: int, room: int, expected: int) -> None:
        law = law_of()
        history = law.start_history(PROMPT)
        proposer = draft(stream, gamma=gamma)
        proposer.begin(history)
        assert len(propose(proposer, law, history, room).token_ids) == expected

    def test_a_long_prompt_is_read_one_block_a_round(self, stream: ThreadStream) -> None:
        law = law_of()
        history = law.start_history(PROMPT * 5)
        proposer = draft(stream, max_block=8)
        proposer.begin(history)
        model = proposer._lane.model
        offers = []
        for _ in range(3):
            calls = model.num_calls
            offers.append(len(propose(proposer, law, history, 8).token_ids))
            assert model.num_calls - calls == (1 if offers[-1] == 0 else 3)
        assert offers == [0, 0, 3]

    def test_gamma_zero_costs_no_call(self, stream: ThreadStream) -> None:
        law = law_of()
        history = law.start_history(PROMPT)
        proposer = draft(stream, gamma=0)
        proposer.begin(history)
        propose(proposer, law, history, 8)
        assert proposer._lane.model.num_calls == 0

    @pytest.mark.parametrize("num_committed", range(1, 7))
    def test_stays_inside_its_own_context(self, stream: ThreadStream, num_committed: int) -> None:
        law = law_of()
        history = law.start_history((1,) * num_committed)
        proposer = draft(stream, gamma=8, capacity=5)
        proposer.begin(history)
        assert len(propose(proposer, law, history, 8).token_ids) == max(0, 5 - num_committed)

    @pytest.mark.parametrize("place", [0, 2, 3])
    def test_a_token_that_it_does_not_know_ends_its_offers(self, stream: ThreadStream, place: int) -> None:
        law = law_of()
        prompt = [1, 2, 3, 4]
        prompt[place] = VOCAB - 1
        proposer = draft(stream, vocab_size=VOCAB - 1)
        history = law.start_history(prompt)
        proposer.begin(history)
        for token_id in (1, 2, 3):
            assert propose(proposer, law, history, 8).token_ids == ()
            history = history.extended((token_id,))
        # The next text that it can read is welcome again.
        known = law.start_history((1, 2, 3))
        proposer.begin(known)
        assert len(propose(proposer, law, known, 8).token_ids) == 3

    def test_begins_again_with_what_is_still_true(self, stream: ThreadStream) -> None:
        law = law_of()
        proposer = draft(stream)
        lane = proposer._lane
        history = law.start_history(PROMPT)
        proposer.begin(history)
        propose(proposer, law, history, 8)
        proposer.begin(law.start_history((1, 2, 9, 9)))
        assert lane.num_held == 2
        propose(proposer, law, law.start_history((1, 2, 9, 9)), 8)
        proposer.begin(law.start_history((1, 2, 9, 9)))
        assert lane.num_held == 3

    def test_names_its_model_and_its_buffer(self, stream: ThreadStream) -> None:
        proposer = draft(stream, name="tiny")
        assert proposer.name == "tiny"
        assert proposer.buffers == ("draft.cache",)


class TestNgram:
    def ngram(self, gamma: int = 4, **options: int) -> tuple[NgramProposer, list[RecordingGamma]]:
        policies: list[RecordingGamma] = []

        def new_policy() -> RecordingGamma:
            policies.append(RecordingGamma(gamma))
            return policies[-1]

        return NgramProposer(new_policy, **options), policies

    def test_copies_what_followed_before(self) -> None:
        law = law_of()
        proposer, _ = self.ngram()
        history = law.start_history((5, 6, 7, 8, 9, 5, 6))
        proposer.begin(history)
        proposal = propose(proposer, law, history, 8)
        assert proposal.token_ids == (7, 8, 9, 5)
        assert proposal.probabilities is None

    def test_offers_nothing_without_a_match(self) -> None:
        law = law_of()
        proposer, _ = self.ngram()
        history = law.start_history((1, 2, 3, 4))
        proposer.begin(history)
        assert propose(proposer, law, history, 8).token_ids == ()

    def test_says_when_there_was_nothing_to_copy(self) -> None:
        law = law_of()
        proposer, policies = self.ngram()
        history = law.start_history((1, 2, 3))
        proposer.begin(history)
        assert proposer.explain() == policies[0].explain()
        propose(proposer, law, history, 8)
        assert "never stood together before" in proposer.explain()
        history = history.extended((1, 2))
        propose(proposer, law, history, 8)
        history = history.extended((4,))
        propose(proposer, law, history, 8)
        assert proposer.explain() == policies[0].explain()

    def test_follows_the_committed_text(self) -> None:
        law = law_of()
        proposer, _ = self.ngram()
        history = law.start_history((5, 6, 7))
        proposer.begin(history)
        assert propose(proposer, law, history, 8).token_ids == ()
        history = history.extended((8, 5, 6))
        assert propose(proposer, law, history, 2).token_ids == (7, 8)

    def test_forgets_the_text_before(self) -> None:
        law = law_of()
        proposer, _ = self.ngram()
        history = law.start_history((5, 6, 7, 5, 6))
        proposer.begin(history)
        assert propose(proposer, law, history, 8).token_ids
        other = law.start_history((1, 5, 6))
        proposer.begin(other)
        assert propose(proposer, law, other, 8).token_ids == ()

    @pytest.mark.parametrize(("match", "expected"), [(2, 0), (3, 0), (4, 1), (7, 1), (8, 2), (9, 2)])
    def test_each_class_of_match_learns_apart(self, match: int, expected: int) -> None:
        law = law_of()
        proposer, policies = self.ngram()
        repeated = tuple(range(20, 20 + match))
        history = TokenHistory((1, *repeated, 2, 3, 4, *repeated))
        proposer.begin(history)
        proposal = propose(proposer, law, history, 8)
        proposer.observe(len(proposal), 1)
        assert [policy.seen for policy in policies] == [[(4, 1)] if i == expected else [] for i in range(3)]

    @pytest.mark.parametrize(("next_id", "right"), [(7, 1), (9, 0)])
    def test_a_class_given_up_goes_on_guessing_for_itself(self, next_id: int, right: int) -> None:
        law = law_of()
        proposer, policies = self.ngram(gamma=0)
        history = law.start_history((5, 6, 7, 8, 5, 6))
        proposer.begin(history)
        assert propose(proposer, law, history, 8).token_ids == ()
        assert policies[0].seen == []
        history = history.extended((next_id, 1))
        propose(proposer, law, history, 8)
        assert policies[0].seen == [(1, right)]

    def test_a_guess_does_not_outlive_its_text(self) -> None:
        law = law_of()
        proposer, policies = self.ngram(gamma=0)
        history = law.start_history((5, 6, 7, 8, 5, 6))
        proposer.begin(history)
        propose(proposer, law, history, 8)
        other = law.start_history((1, 2, 3, 4, 1, 2, 9))
        proposer.begin(other)
        propose(proposer, law, other, 8)
        assert policies[0].seen == []
