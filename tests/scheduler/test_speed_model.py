"""Expected speed: worked examples, and bounds that hold for all costs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler import LaneCosts, RoundMode, RoundPlan, SpeedModel, expected_tokens

PLAIN = RoundPlan(mode=RoundMode.PLAIN)


def sequential(gamma: int) -> RoundPlan:
    return RoundPlan(mode=RoundMode.SEQUENTIAL, gamma=gamma)


def pipelined(gamma: int, lead: int) -> RoundPlan:
    return RoundPlan(mode=RoundMode.PIPELINED, gamma=gamma, lead=lead)


def lane_costs(draft_ms: float = 4.0, first_ms: float = 40.0, extra_ms: float = 0.0, max_gamma: int = 8) -> LaneCosts:
    widths = range(1, max_gamma + 2)
    return LaneCosts(draft_ms=draft_ms, verify_ms={width: first_ms + (width - 1) * extra_ms for width in widths})


def model(draft_ms: float = 4.0, *, contention: float = 1.0, host_ms: float = 0.0, extra_ms: float = 0.0) -> SpeedModel:
    together = lane_costs(draft_ms * contention, 40.0 * contention, extra_ms * contention)
    return SpeedModel(alone=lane_costs(draft_ms, extra_ms=extra_ms), together=together, host_ms=host_ms)


def round_ms(speed: SpeedModel, plan: RoundPlan, alpha: float) -> float:
    return expected_tokens(plan.gamma, alpha) / speed.tokens_per_ms(plan, alpha)


class TestInTurn:
    def test_plain_is_one_verify_a_token(self) -> None:
        assert model(host_ms=2.0).tokens_per_ms(PLAIN, 0.3) == pytest.approx(1 / 42)

    def test_sequential_is_the_formula(self) -> None:
        speed = model(host_ms=2.0, extra_ms=1.0)
        # 1 + 0.5 + 0.25 + 0.125 tokens; three steps, one verify of four tokens, the host.
        assert speed.tokens_per_ms(sequential(3), 0.5) == pytest.approx(1.875 / (12 + 43 + 2))

    def test_contention_does_not_matter(self) -> None:
        for plan in (PLAIN, sequential(4)):
            assert model(contention=3.0).tokens_per_ms(plan, 0.7) == model().tokens_per_ms(plan, 0.7)


class TestPipelined:
    def test_a_perfect_draft_is_hidden_behind_the_target(self) -> None:
        assert round_ms(model(host_ms=0.5), pipelined(4, 8), 1.0) == pytest.approx(40.5)

    def test_without_a_hit_the_draft_starts_anew_each_time(self) -> None:
        # Ten steps fit beside the verify, five are wanted: the draft stands still at the verdict.
        assert round_ms(model(), pipelined(4, 5), 0.0) == pytest.approx(40 + 4 * 4)

    def test_a_step_that_has_begun_is_waited_for(self) -> None:
        # 40 / 12 = 3.33 steps: two thirds of the fourth are left.
        assert round_ms(model(12.0), pipelined(2, 8), 0.0) == pytest.approx(40 + 8 + 24)
        assert round_ms(model(12.0), pipelined(2, 3), 0.0) == pytest.approx(40 + 24)

    def test_lanes_slow_down_only_while_both_run(self) -> None:
        # The guess takes 8 ms beside the verify, a tenth of what that would take throughout; the rest is done alone.
        speed = model(contention=2.0)
        assert round_ms(speed, pipelined(4, 1), 0.0) == pytest.approx(8 + 0.9 * 40 + 16)
        # Twelve tokens do not fit: ten run beside the verify, which takes twice as long throughout.
        assert round_ms(speed, pipelined(4, 12), 0.0) == pytest.approx(80 + 16)

    def test_the_guess_is_waited_for(self) -> None:
        # The target is done at 40, the guess at 50.
        assert round_ms(model(50.0), pipelined(1, 1), 0.0) == pytest.approx(50 + 50)

    def test_a_draft_that_gets_no_further_than_its_guess_is_not_asked_for_any(self) -> None:
        speed = model(30.0, contention=2.0)
        assert round_ms(speed, pipelined(2, 4), 0.9) == pytest.approx(40 + 60)

    def test_what_was_drafted_ahead_begins_the_next_block(self) -> None:
        # Always right: 40 / 16 = 2.5 tokens ahead, the first of them the guess; of two more, half a step is missing.
        assert round_ms(model(16.0), pipelined(2, 8), 1.0) == pytest.approx(40 + 0.5 * 16)

    def test_runs_of_hits_are_weighed_by_how_often_they_happen(self) -> None:
        # A hit is two tokens right, 0.25. 2.5 steps fit beside a verify: half a token more is left over after each hit,
        # up to the lead. A miss waits for half a step in odd rounds, and for none in even ones; a hit for nothing.
        speed = model(16.0)
        hit, total, share, num_ahead = 0.25, 0.0, 1.0, 0.0
        for _ in range(40):
            at_verdict = min(8.0, num_ahead + 2.5)
            left = (at_verdict % 1 == 0.5) * 8.0
            total += share * (1 - hit) * (40 + (1 - hit) * (left + 16))
            share, num_ahead = share * hit, at_verdict - 2
        assert round_ms(speed, pipelined(1, 8), 0.5) == pytest.approx(total, rel=1e-3)

    def test_the_host_is_hidden_by_the_first_step_after_a_miss(self) -> None:
        assert round_ms(model(host_ms=3.0), pipelined(4, 5), 0.0) == pytest.approx(40 + 16)
        assert round_ms(model(host_ms=6.0), pipelined(4, 5), 0.0) == pytest.approx(40 + 6 + 12)

    def test_a_draft_that_costs_nothing(self) -> None:
        assert round_ms(model(0.0, host_ms=1.0), pipelined(4, 8), 0.5) == pytest.approx(41)

    def test_a_draft_that_gains_next_to_nothing_is_reckoned_with_quickly(self) -> None:
        # Always right, and a billionth of a step faster than the target: it would take for ever to get anywhere.
        assert round_ms(model(40 / (2 + 1e-8)), pipelined(1, 16), 1.0) == pytest.approx(40)

    @given(
        draft_ms=st.floats(0.01, 100),
        contention=st.floats(1, 3),
        alpha=st.floats(0, 1),
        gamma=st.integers(1, 8),
        lead=st.integers(1, 16),
        host_ms=st.floats(0, 20),
    )
    def test_stays_between_what_no_schedule_beats_and_the_slowest(
        self, draft_ms: float, contention: float, alpha: float, gamma: int, lead: int, host_ms: float
    ) -> None:
        speed = model(draft_ms, contention=contention, host_ms=host_ms)
        took_ms = round_ms(speed, pipelined(gamma, lead), alpha)
        assert took_ms >= 40 * (1 - 1e-9)
        assert took_ms <= (40 * contention + (gamma + 2) * draft_ms + host_ms) * (1 + 1e-9)

    @given(draft_ms=st.floats(0.1, 40), alpha=st.floats(0, 1), gamma=st.integers(1, 8))
    def test_a_guess_costs_nothing_where_lanes_do_not_disturb_each_other(
        self, draft_ms: float, alpha: float, gamma: int
    ) -> None:
        speed = model(draft_ms)
        in_turn = speed.tokens_per_ms(sequential(gamma), alpha)
        assert speed.tokens_per_ms(pipelined(gamma, 1), alpha) >= in_turn * (1 - 1e-9)


class TestPlans:
    def test_lanes_that_cannot_run_at_once(self) -> None:
        speed = SpeedModel(alone=lane_costs())
        assert speed.leads(4, 12) == ()
        with pytest.raises(ValueError, match="cannot run at once"):
            speed.tokens_per_ms(pipelined(4, 4), 0.9)

    @pytest.mark.parametrize("alpha", [0.0, 0.4, 0.7, 0.95])
    @pytest.mark.parametrize("contention", [1.0, 1.2])
    def test_no_lead_that_is_not_looked_at_is_faster(self, alpha: float, contention: float) -> None:
        speed = model(contention=contention, extra_ms=1.0)
        for gamma in range(1, 6):
            best = max(speed.tokens_per_ms(pipelined(gamma, lead), alpha) for lead in speed.leads(gamma, 6))
            for lead in range(1, 7):
                # They differ by the odd step that a miss waits for.
                assert speed.tokens_per_ms(pipelined(gamma, lead), alpha) <= best * 1.01

    def test_leads_that_are_looked_at(self) -> None:
        # 40 / 12 steps fit beside a verify.
        assert model(12.0).leads(4, 12) == (1, 3, 5, 12)
        assert model(12.0).leads(4, 2) == (1, 2)
        assert model(100.0).leads(1, 1) == (1,)


class TestBadInput:
    @pytest.mark.parametrize(
        ("make", "error", "match"),
        [
            (lambda: RoundPlan(mode=RoundMode.PLAIN, gamma=1), ValueError, "gamma"),
            (lambda: RoundPlan(mode=RoundMode.SEQUENTIAL), ValueError, "gamma"),
            (lambda: RoundPlan(mode=RoundMode.SEQUENTIAL, gamma=2, lead=1), ValueError, "lead"),
            (lambda: RoundPlan(mode=RoundMode.PIPELINED, gamma=2), ValueError, "lead"),
            (lambda: LaneCosts(draft_ms=-1.0, verify_ms={1: 1.0}), ValueError, "draft_ms"),
            (lambda: LaneCosts(draft_ms=1.0, verify_ms={1: 1.0, 3: 1.0}), ValueError, "every width"),
            (lambda: LaneCosts(draft_ms=1.0, verify_ms={}), ValueError, "every width"),
            (lambda: LaneCosts(draft_ms=1.0, verify_ms={1: 0.0}), ValueError, r"verify_ms\[1\]"),
            (lambda: LaneCosts(draft_ms=float("nan"), verify_ms={1: 1.0}), ValueError, "draft_ms"),
            (lambda: SpeedModel(alone=lane_costs(), together=lane_costs(max_gamma=3)), ValueError, "widths"),
            (lambda: SpeedModel(alone=lane_costs(), host_ms=-1.0), ValueError, "host_ms"),
            (lambda: model().tokens_per_ms(PLAIN, 1.5), ValueError, "alpha"),
            (lambda: model().tokens_per_ms(sequential(9), 0.5), ValueError, "gamma"),
        ],
    )
    def test_is_refused(self, make: Any, error: type[Exception], match: str) -> None:
        with pytest.raises(error, match=match):
            make()
