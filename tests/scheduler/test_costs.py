"""What a block costs: measured, smoothed, interpolated."""

from __future__ import annotations

import pytest

from scheduler import BlockCosts, MachinePace


def test_nothing_measured_is_nothing_known() -> None:
    assert BlockCosts().estimate(1) is None


def test_measured_widths_are_taken_as_they_are() -> None:
    costs = BlockCosts({1: 10.0, 5: 14.0})
    assert (costs.estimate(1), costs.estimate(5)) == (10.0, 14.0)
    assert costs.as_dict() == {1: 10.0, 5: 14.0}


@pytest.mark.parametrize(("width", "expected"), [(2, 11.0), (3, 12.0), (4, 13.0), (7, 18.0)])
def test_between_two_widths_the_line_through_them(width: int, expected: float) -> None:
    assert BlockCosts({1: 10.0, 5: 14.0, 9: 22.0}).estimate(width) == pytest.approx(expected)


def test_beyond_the_widest_each_token_costs_as_much() -> None:
    assert BlockCosts({1: 10.0, 5: 15.0}).estimate(10) == pytest.approx(30.0)


def test_below_the_narrowest_nothing_gets_cheaper() -> None:
    assert BlockCosts({4: 12.0}).estimate(1) == 12.0


def test_new_measurements_move_the_estimate() -> None:
    costs = BlockCosts({1: 10.0})
    for _ in range(60):
        costs.record(1, 20.0)
    assert costs.estimate(1) == pytest.approx(20.0, rel=0.01)


def test_one_slow_step_hardly_counts() -> None:
    costs = BlockCosts({1: 10.0})
    costs.record(1, 100_000.0)
    assert costs.estimate(1) == pytest.approx(12.0)


def test_a_slow_first_step_of_a_new_width_hardly_counts() -> None:
    costs = BlockCosts({1: 10.0, 9: 18.0})
    costs.record(5, 100_000.0)
    assert costs.estimate(5) == pytest.approx(14.0 * 1.2)


def test_a_width_outside_the_measured_range_is_taken_as_it_is() -> None:
    costs = BlockCosts({1: 10.0})
    costs.record(17, 12.0)
    assert costs.estimate(17) == 12.0
    assert costs.estimate(9) == pytest.approx(11.0)


@pytest.mark.parametrize(("width", "most"), [(1, 20.0), (9, 90.0)])
def test_a_slow_first_step_outside_the_measured_range_costs_what_was_expected_at_most(width: int, most: float) -> None:
    costs = BlockCosts({2: 20.0})
    costs.record(width, 100_000.0)
    assert costs.estimate(width) == most


def test_calibrating_forgets() -> None:
    costs = BlockCosts({1: 10.0, 9: 99.0})
    costs.calibrate({1: 5.0, 2: 6.0})
    assert costs.as_dict() == {1: 5.0, 2: 6.0}


def test_a_step_too_short_for_the_clock_still_costs_something() -> None:
    costs = BlockCosts({1: 0.0})
    costs.record(2, 0.0)
    assert min(costs.as_dict().values()) > 0


def test_what_was_given_is_copied() -> None:
    measured = {1: 10.0}
    costs = BlockCosts(measured)
    measured[1] = 99.0
    costs.as_dict()[1] = 99.0
    assert costs.estimate(1) == 10.0


class TestPace:
    """What tables of one machine have in common."""

    def test_a_machine_that_slows_down_makes_all_dearer_by_the_same(self) -> None:
        pace = MachinePace()
        run, idle = BlockCosts({1: 10.0, 9: 20.0}, pace=pace), BlockCosts({1: 2.0}, pace=pace)
        for _ in range(100):
            run.record(1, 15.0)
        assert run.estimate(1) == pytest.approx(15.0, rel=0.01)
        assert idle.estimate(1) == pytest.approx(3.0, rel=0.15)
        assert run.estimate(9) == pytest.approx(30.0, rel=0.15)

    def test_a_lane_that_is_in_the_way_does_not_make_the_machine_slow(self) -> None:
        pace = MachinePace()
        alone, together = BlockCosts({5: 10.0}, pace=pace), BlockCosts({5: 10.0}, pace=pace, beside_another=True)
        for _ in range(100):
            together.record(5, 18.0)
        assert together.estimate(5) == pytest.approx(18.0, rel=0.01)
        assert alone.estimate(5) == pytest.approx(10.0, rel=0.2)

    def test_one_slow_step_changes_no_ratio_much(self) -> None:
        pace = MachinePace()
        run, idle = BlockCosts({1: 10.0}, pace=pace), BlockCosts({1: 10.0}, pace=pace)
        run.record(1, 100_000.0)
        assert run.estimate(1) == pytest.approx(idle.estimate(1), rel=0.05)

    def test_what_is_measured_anew_is_taken_as_it_is(self) -> None:
        pace = MachinePace()
        costs = BlockCosts({1: 10.0}, pace=pace)
        for _ in range(50):
            costs.record(1, 25.0)
        costs.calibrate({1: 7.0})
        assert costs.estimate(1) == pytest.approx(7.0)
