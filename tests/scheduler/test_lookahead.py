"""The host's view of the chain: what a block is made of, what is launched, and what is counted as thrown away."""

from __future__ import annotations

import pytest

from scheduler import FinishReason, Leads, Lineage, RoundReport, TokenHistory
from scheduler.block import Piece
from scheduler.lookahead import Lookahead
from tests.support.drafts import HandLaunch, hand_piece, judgement_of

REPORT = RoundReport(token_ids=(1,))
LAST_REPORT = RoundReport(token_ids=(1,), finish_reason=FinishReason.LENGTH)


class Chain:
    """A lookahead with pieces that the test runs by hand."""

    def __init__(self, *, max_lead: int = 3, num_awaited: int = 0, behind: bool = False) -> None:
        self.lineage = Lineage()
        self.lead = max_lead
        leads = Leads(least=max_lead, most=max_lead)
        self.view = Lookahead(self.lineage.begin(), leads=leads, num_awaited=num_awaited, behind=behind)
        self.launches: list[HandLaunch] = []
        self.pieces: list[Piece] = []

    def add(self, *token_ids: int, **options: object) -> HandLaunch:
        launch, piece = hand_piece(*token_ids, generation=self.view.generation, **{"lead": self.lead, **options})  # type: ignore[arg-type]  # checked by hand_piece
        self.view.add(piece)
        self.launches.append(launch)
        self.pieces.append(piece)
        return launch

    def ready(self, *token_ids: int, **options: object) -> None:
        """Steps of one token each that have run and were seen."""
        for token_id in token_ids:
            self.add(token_id, **options).run()
        self.view.look()

    def next_generation(self) -> None:
        self.view.generation = self.lineage.begin()

    def judge(self, block: tuple[int, ...], guess: int | None, num_accepted: int) -> None:
        self.view.commit(judgement_of(block, guess, num_accepted, 99, TokenHistory([0])))


class TestPlan:
    def test_without_anything_ready_the_first_step_is_the_guess(self) -> None:
        chain = Chain()
        chain.add(5)
        chain.add(6)
        plan = chain.view.plan(8)
        assert plan.pieces == ()
        assert plan.guesses == tuple(chain.pieces[:1])
        chain.launches[0].run()
        assert plan.block().token_ids == ()
        assert plan.guess().token_ids == (5,)

    def test_takes_what_is_ready_and_the_token_behind_it_as_guess(self) -> None:
        chain = Chain()
        chain.ready(5, 6)
        chain.add(7)
        plan = chain.view.plan(8)
        assert plan.pieces == tuple(chain.pieces[:2])
        assert plan.guesses == tuple(chain.pieces[2:])
        chain.launches[2].run()
        assert plan.block().token_ids == (5, 6)
        assert plan.guess().token_ids == (7,)

    @pytest.mark.parametrize(
        ("gamma", "room", "block"), [(2, 8, (5, 6)), (4, 1, (5,)), (3, 3, (5, 6, 7)), (4, 8, (5, 6, 7, 8))]
    )
    def test_a_block_ends_at_gamma_and_at_the_room_there_is(
        self, gamma: int, room: int, block: tuple[int, ...]
    ) -> None:
        chain = Chain()
        chain.ready(5, 6, 7, 8, gamma=gamma)
        pending = chain.add(9, gamma=gamma)
        plan = chain.view.plan(room)
        assert plan.block().token_ids == block
        # A guess that is there already costs no waiting.
        assert (plan.guesses == ()) == (len(block) < 4)
        pending.run()
        assert plan.guess().token_ids == (block[-1] + 1,)

    def test_waits_for_as_many_steps_as_the_setting_says(self) -> None:
        chain = Chain(num_awaited=3)
        chain.ready(5)
        for token_id in (6, 7, 8, 9):
            chain.add(token_id)
        plan = chain.view.plan(8)
        assert plan.pieces == tuple(chain.pieces[:3])
        assert plan.guesses == (chain.pieces[3],)

    def test_a_look_up_counts_as_no_step_and_is_always_waited_for(self) -> None:
        chain = Chain(num_awaited=1)
        chain.add(5, 6, 7, instant=True)
        chain.add(instant=False)
        plan = chain.view.plan(8)
        assert plan.pieces == tuple(chain.pieces)
        alone = Chain(num_awaited=0)
        alone.add(5, 6, 7, instant=True)
        alone.add()
        assert alone.view.plan(8).pieces == tuple(alone.pieces[:1])

    def test_a_guess_is_looked_for_up_to_the_first_step(self) -> None:
        chain = Chain()
        chain.ready(5)
        chain.add(instant=True)
        chain.add(6)
        chain.add(7)
        assert chain.view.plan(8).guesses == tuple(chain.pieces[1:3])

    def test_no_room_no_block_and_no_guess(self) -> None:
        chain = Chain(num_awaited=2)
        chain.ready(5, 6)
        plan = chain.view.plan(0)
        assert (plan.pieces, plan.guesses, plan.may_guess) == ((), (), False)
        assert not plan.block()
        assert not plan.guess()

    def test_a_draft_that_still_reads_is_not_waited_for(self) -> None:
        chain = Chain(num_awaited=3, behind=True)
        chain.add()
        plan = chain.view.plan(8)
        assert (plan.pieces, plan.guesses, plan.may_guess) == ((), (), False)
        # Once a step has found that it caught up, it is.
        chain.launches[0].run()
        chain.add(5)
        chain.view.look()
        assert chain.view.plan(8).pieces == tuple(chain.pieces[1:])

    def test_a_piece_that_has_run_by_now_counts_only_once_it_was_looked_at(self) -> None:
        # What a block holds must not change between launching its steps and launching it.
        chain = Chain()
        chain.add(5).run()
        assert chain.view.plan(8).pieces == ()
        chain.view.look()
        assert chain.view.plan(8).pieces == tuple(chain.pieces)


class TestSteps:
    def test_enough_for_block_and_lead(self) -> None:
        chain = Chain(max_lead=3)
        chain.ready(5, 6)
        assert chain.view.num_missing(8) == 1
        assert chain.view.num_ahead_missing(8) == 3
        chain.add(7)
        assert chain.view.num_missing(8) == 0
        assert chain.view.num_ahead_missing(8) == 2

    def test_what_is_awaited_is_launched(self) -> None:
        chain = Chain(max_lead=2, num_awaited=3)
        assert chain.view.num_missing(8) == 4
        assert chain.view.num_ahead_missing(8) == 5
        assert chain.view.num_missing(1) == 2

    def test_a_look_up_is_no_step(self) -> None:
        chain = Chain(max_lead=2)
        chain.add(5, 6, 7, instant=True)
        assert chain.view.num_ahead_missing(8) == 2
        chain.launches[0].run()
        chain.view.look()
        assert chain.view.num_ahead_missing(8) == 2

    def test_none_without_room_or_where_nobody_wants_to_draft(self) -> None:
        chain = Chain()
        assert chain.view.num_ahead_missing(0) == 0
        chain.add(gamma=0).run()
        chain.view.look()
        assert chain.view.num_missing(8) == chain.view.num_ahead_missing(8) == 0
        # The step behind the next verdict finds out if that has changed.
        chain.ready(5)
        assert chain.view.num_ahead_missing(8) > 0

    @pytest.mark.parametrize("max_lead", range(1, 7))
    def test_never_more_than_the_lead_beyond_a_block(self, max_lead: int) -> None:
        chain = Chain(max_lead=max_lead)
        for num_ready in range(7):
            block_size = len(chain.view.plan(8).block())
            num_tokens = len(chain.pieces) + chain.view.num_ahead_missing(8)
            assert num_tokens - block_size <= max(max_lead, num_ready - block_size)
            chain.ready(num_ready)


class TestCommit:
    def test_after_a_hit_the_rest_is_the_next_block(self) -> None:
        chain = Chain()
        chain.ready(5, 6, 7, 8, gamma=2)
        chain.judge((5, 6), 7, 3)
        plan = chain.view.plan(8)
        assert plan.block().token_ids == (8,)
        assert chain.view.bill(REPORT).num_discarded == 0

    def test_a_piece_of_several_tokens_is_used_up_bit_by_bit(self) -> None:
        chain = Chain()
        chain.add(5, 6, 7, 8, 9, gamma=1, instant=True, draft_ms=2.0).run()
        chain.view.look()
        chain.judge((5,), 6, 2)
        assert chain.view.plan(8).block().token_ids == (7,)
        assert chain.view.plan(8).guess().token_ids == (8,)
        assert chain.view.bill(REPORT).draft_ms == 0.0
        chain.judge((7,), 8, 2)
        assert chain.view.plan(8).block().token_ids == (9,)
        # Without a guess there is no hit; what is left of the piece, here nothing, is thrown away, and paid for.
        chain.next_generation()
        chain.judge((9,), None, 1)
        report = chain.view.bill(REPORT)
        assert (report.num_discarded, report.draft_ms) == (0, 2.0)

    def test_a_miss_throws_away_all_but_what_was_launched_behind_the_verdict(self) -> None:
        chain = Chain()
        chain.ready(5, 6, 7, 8, 9, gamma=2)
        late = chain.add(10)
        chain.next_generation()
        chain.add(20)
        late.skip()
        chain.judge((5, 6), 7, 1)
        plan = chain.view.plan(8)
        assert plan.guesses == (chain.pieces[6],)
        assert plan.pieces == ()
        report = chain.view.bill(REPORT)
        # 7, 8 and 9: the block's own rejected tokens are none, and neither is what never ran.
        assert (report.num_discarded, report.draft_ms) == (3, 5.0)

    def test_what_ran_late_is_counted_when_it_is_seen(self) -> None:
        chain = Chain()
        chain.ready(5)
        late, later = chain.add(6), chain.add(7)
        chain.next_generation()
        chain.judge((5,), 6, 0)
        assert chain.view.bill(REPORT).num_discarded == 0
        late.run()
        assert chain.view.bill(REPORT).num_discarded == 1
        assert chain.view.bill(REPORT).num_discarded == 0
        later.skip()
        assert chain.view.bill(REPORT).num_discarded == 0

    def test_new_pieces_that_have_run_already_stay(self) -> None:
        chain = Chain()
        chain.ready(5, 6)
        chain.next_generation()
        chain.ready(20)
        chain.judge((5,), 6, 0)
        assert chain.view.plan(8).block().token_ids == (20,)
        assert chain.view.bill(REPORT).num_discarded == 1

    def test_the_end_throws_everything_away(self) -> None:
        chain = Chain()
        chain.ready(5, 6, 7, 8)
        chain.add(9)
        chain.next_generation()
        chain.judge((5,), 6, 2)
        report = chain.view.bill(LAST_REPORT)
        assert (report.num_discarded, report.draft_ms) == (2, 4.0)
        assert report.finish_reason is FinishReason.LENGTH

    def test_time_without_a_token_counts(self) -> None:
        chain = Chain()
        chain.add(behind=True, draft_ms=7.0).run()
        chain.view.look()
        assert chain.view.bill(REPORT).draft_ms == 7.0

    def test_errors_are_kept_until_the_report_is_out(self) -> None:
        chain = Chain()
        chain.add(5).run(ValueError("planted"))
        chain.view.look()
        assert isinstance(chain.view.error, ValueError)

        chain = Chain()
        chain.ready(5)
        late = chain.add(6)
        chain.next_generation()
        chain.judge((5,), 6, 0)
        late.run(ValueError("planted"))
        assert chain.view.error is None
        chain.view.bill(REPORT)
        assert isinstance(chain.view.error, ValueError)
