"""The chain on the draft's stream: whose tokens it holds, what a verdict does to it, how it remembers errors."""

from __future__ import annotations

import pytest

from scheduler import Leads, SamplingLaw, SamplingSettings, TokenHistory
from scheduler.chain import Chain
from scheduler.decoding import Decoding
from tests.support.drafts import ScriptedSource, judgement_of
from tests.support.loops import request_of

PROMPT = (10, 11, 12)


class Begun:
    """A chain at the beginning of a request."""

    def __init__(
        self, *sources: ScriptedSource, max_lead: int = 3, max_tokens: int = 50, warmup_tokens: int = 0
    ) -> None:
        self.sources = sources
        self.chain = Chain(sources, leads=Leads(least=max_lead, most=max_lead))
        self.decoding = Decoding(
            request=request_of(PROMPT, max_tokens),
            law=SamplingLaw(SamplingSettings(), vocab_size=1000),
            end=len(PROMPT) + max_tokens,
            max_gamma=8,
            warmup_tokens=warmup_tokens,
        )
        self.history = self.decoding.start_history()
        self.chain.begin(self.decoding, self.history)

    def settle(
        self, block: tuple[int, ...], guess: int | None, num_accepted: int, next_id: int = 99, *, source: int = 0
    ) -> None:
        judgement = judgement_of(block, guess, num_accepted, next_id, self.history, source=source)
        self.history = judgement.history
        self.chain.settle(judgement)

    def steps(self, count: int) -> list[int]:
        return [token_id for _ in range(count) for token_id in self.chain.step().proposal.token_ids]


class TestSources:
    def test_a_step_is_one_token_of_a_model(self) -> None:
        begun = Begun(ScriptedSource(gamma=2))
        assert begun.steps(3) == [13, 14, 15]
        (source,) = begun.sources
        assert source.asked("extend") == [(3, (), 1), (3, (13,), 1), (3, (13, 14), 1)]
        # Asked once, however long the chain.
        assert len(source.asked("choose")) == 1

    def test_a_look_up_gives_gamma_and_lead_at_once(self) -> None:
        begun = Begun(ScriptedSource(gamma=2, instant=True), max_lead=3)
        drafted = begun.chain.look_up()
        assert drafted.proposal.token_ids == (13, 14, 15, 16, 17)
        assert drafted.gamma == 2
        assert begun.chain.look_up().proposal.token_ids == ()

    def test_of_equal_promises_the_first_that_has_something_to_offer_drafts_alone(self) -> None:
        silent, instant, model = ScriptedSource(gamma=0), ScriptedSource(gamma=2, instant=True), ScriptedSource(gamma=4)
        begun = Begun(silent, instant, model)
        assert begun.chain.look_up().proposal.source == 1
        assert begun.steps(2) == []
        assert [len(source.asked("choose")) for source in begun.sources] == [1, 1, 1]
        assert model.asked("extend") == silent.asked("extend") == []

    def test_a_model_drafts_where_a_look_up_finds_nothing(self) -> None:
        begun = Begun(ScriptedSource(gamma=0, instant=True), ScriptedSource(gamma=4))
        looked_up = begun.chain.look_up()
        assert looked_up.proposal.token_ids == ()
        assert looked_up.gamma == 4, "who drafts is known, and how much"
        step = begun.chain.step()
        assert (step.proposal.token_ids, step.proposal.source) == ((13,), 1)

    def test_nobody_wants_to(self) -> None:
        begun = Begun(ScriptedSource(gamma=0), ScriptedSource(gamma=0, instant=True))
        assert begun.chain.step().gamma == begun.chain.look_up().gamma == 0
        # A later chain asks again.
        begun.sources[0].gamma = 3
        assert begun.steps(1) == []
        begun.settle((), None, 0, 50)
        assert begun.steps(1) == [51]

    def test_ends_with_the_request(self) -> None:
        begun = Begun(ScriptedSource(gamma=8), max_tokens=2)
        assert begun.steps(5) == [13, 14]
        begun = Begun(ScriptedSource(gamma=8, instant=True), max_tokens=2)
        assert begun.chain.look_up().proposal.token_ids == (13, 14)

    def test_plain_while_warming_up(self) -> None:
        begun = Begun(ScriptedSource(gamma=2), warmup_tokens=2)
        assert begun.steps(1) == []
        assert begun.sources[0].asked("choose") == []
        begun.settle((), None, 0, 50)
        assert begun.steps(1) == []
        begun.settle((), None, 0, 51)
        assert begun.steps(1) == [52]

    def test_says_whether_its_source_still_reads(self) -> None:
        begun = Begun(ScriptedSource(gamma=2, behind=True, most=0))
        assert begun.chain.step().behind
        assert begun.chain.look_up().behind
        begun.sources[0].behind = False
        assert not begun.chain.step().behind

    def test_every_source_catches_up_as_any_may_be_next(self) -> None:
        sources = ScriptedSource(gamma=0), ScriptedSource(gamma=2)
        begun = Begun(*sources)
        begun.chain.catch_up()
        assert [source.asked("catch_up") for source in sources] == [[(3,)], [(3,)]]
        assert [source.asked("choose") for source in sources] == [[], []]


class TestWholeBlocks:
    def test_of_the_first_source_that_has_one(self) -> None:
        # The first has to read before it can propose, and takes its time for that.
        begun = Begun(ScriptedSource(gamma=3, most=0), ScriptedSource(gamma=4))
        drafted = begun.chain.draft_block(2)
        assert (drafted.proposal.token_ids, drafted.proposal.source) == ((13, 14), 1)
        assert drafted.proposal.draft_ms == 2.0

    def test_none(self) -> None:
        begun = Begun(ScriptedSource(gamma=0), ScriptedSource(gamma=3, most=0))
        drafted = begun.chain.draft_block(4)
        assert (drafted.proposal.token_ids, drafted.proposal.draft_ms) == ((), 1.0)
        assert begun.chain.draft_block(0).proposal.token_ids == ()


class TestSettling:
    def test_after_a_hit_the_rest_stands(self) -> None:
        begun = Begun(ScriptedSource(gamma=2))
        begun.steps(5)
        begun.settle((13, 14), 15, 3)
        (source,) = begun.sources
        assert source.asked("observe") == [(3, 3)]
        assert source.asked("roll_back") == []
        assert begun.steps(1) == [18]
        assert source.asked("extend")[-1] == (6, (16, 17), 1)

    def test_gamma_is_chosen_anew_after_a_hit(self) -> None:
        begun = Begun(ScriptedSource(gamma=2))
        begun.steps(4)
        begun.sources[0].gamma = 5
        begun.settle((13, 14), 15, 3)
        assert begun.chain.step().gamma == 5

    def test_a_chain_that_was_used_up_asks_all_sources_again(self) -> None:
        instant, model = ScriptedSource(gamma=0, instant=True), ScriptedSource(gamma=2)
        begun = Begun(instant, model)
        begun.steps(3)
        instant.gamma = 2
        begun.settle((13, 14), 15, 3, source=1)
        assert begun.chain.look_up().proposal.source == 0
        assert model.asked("roll_back") == []

    def test_after_a_miss_every_source_forgets_it(self) -> None:
        instant, model = ScriptedSource(gamma=0, instant=True), ScriptedSource(gamma=4)
        begun = Begun(instant, model)
        begun.steps(5)
        begun.settle((13, 14, 15), 16, 1, 70, source=1)
        assert instant.asked("roll_back") == model.asked("roll_back") == [(4,)]
        assert instant.asked("observe") == []
        assert model.asked("observe") == [(4, 1)]
        assert begun.steps(1) == [71]
        assert model.asked("extend")[-1] == (5, (), 1)

    def test_a_refuted_guess_is_a_miss(self) -> None:
        begun = Begun(ScriptedSource(gamma=2))
        begun.steps(4)
        begun.settle((13, 14), 15, 2, 70)
        assert begun.sources[0].asked("roll_back") == [(5,)]
        assert begun.steps(1) == [71]

    def test_so_is_a_whole_block_without_a_guess(self) -> None:
        # What was drafted behind it rests on a token that nobody has judged.
        begun = Begun(ScriptedSource(gamma=2))
        begun.steps(4)
        begun.settle((13, 14), None, 2, 15)
        assert begun.sources[0].asked("roll_back") == [(5,)]
        assert begun.steps(1) == [16]

    def test_where_nothing_was_proposed_nobody_learns(self) -> None:
        begun = Begun(ScriptedSource(gamma=2))
        begun.settle((), None, 0, 50)
        assert begun.sources[0].asked("observe") == []

    def test_look_ups_go_on_past_the_chain(self) -> None:
        begun = Begun(ScriptedSource(gamma=2, instant=True), max_lead=3)
        assert len(begun.chain.look_up().proposal) == 5
        begun.settle((13, 14), 15, 3)
        assert begun.chain.look_up().proposal.token_ids == (18, 19, 20)
        assert begun.sources[0].asked("extend")[-1] == (6, (16, 17), 3)


class TestErrors:
    @pytest.mark.parametrize("method", ["choose", "extend"])
    def test_a_failure_comes_back_with_whatever_is_asked_next(self, method: str) -> None:
        begun = Begun(ScriptedSource(gamma=2))
        begun.sources[0].errors[method] = ValueError("planted")
        with pytest.raises(ValueError, match="planted"):
            begun.chain.step()
        begun.sources[0].errors.clear()
        num_calls = len(begun.sources[0].calls)
        for ask in (begun.chain.step, begun.chain.look_up):
            with pytest.raises(ValueError, match="planted"):
                ask()
        assert len(begun.sources[0].calls) == num_calls

    @pytest.mark.parametrize("method", ["observe", "roll_back"])
    def test_also_one_while_it_was_settled(self, method: str) -> None:
        begun = Begun(ScriptedSource(gamma=2))
        begun.steps(2)
        begun.sources[0].errors[method] = ValueError("planted")
        with pytest.raises(ValueError, match="planted"):
            begun.settle((13,), 14, 0)
        begun.sources[0].errors.clear()
        with pytest.raises(ValueError, match="planted"):
            begun.chain.step()

    def test_a_new_request_forgets_it(self) -> None:
        begun = Begun(ScriptedSource(gamma=2))
        begun.steps(2)
        begun.sources[0].errors["extend"] = ValueError("planted")
        with pytest.raises(ValueError, match="planted"):
            begun.chain.step()
        begun.sources[0].errors.clear()
        begun.chain.begin(begun.decoding, TokenHistory([40]))
        assert begun.steps(2) == [41, 42]

    def test_a_source_that_cannot_begin_fails_the_request_and_not_the_next(self) -> None:
        begun = Begun(ScriptedSource(gamma=2))
        begun.sources[0].errors["begin"] = ValueError("planted")
        with pytest.raises(ValueError, match="planted"):
            begun.chain.begin(begun.decoding, begun.history)
        with pytest.raises(ValueError, match="planted"):
            begun.chain.step()
        begun.sources[0].errors.clear()
        begun.chain.begin(begun.decoding, begun.history)
        assert begun.steps(1) == [13]
