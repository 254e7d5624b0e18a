"""Which readings of a shared device count, and for how long: on a made-up clock."""

from __future__ import annotations

import dataclasses
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, cast

import pytest

from runtime.overlap_watch import KEPT_S, LOOK_INTERVAL_S, OverlapWatch
from scheduler import BlockCosts, Controller, Occupancy, OccupancyField, OccupancyProbe, SourceCosts


class PlantedProbe:
    """Says what it was told to; counts how often it was asked."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.reading = Occupancy.unknown("nobody asked", taken_at_s=self.now_s)
        self.num_asked = 0
        self.working = False

    def plant(self, other_percent: float | None) -> None:
        share: OccupancyField[float] = OccupancyField(value=other_percent, reason="planted")
        unknown = Occupancy.unknown("planted", taken_at_s=self.now_s)
        self.reading = dataclasses.replace(unknown, other_sm_percent=share)

    def latest(self) -> Occupancy:
        self.num_asked += 1
        return self.reading

    @contextmanager
    def own_work(self) -> Generator[None, None, None]:
        self.working = True
        try:
            yield
        finally:
            self.working = False


class Watched:
    """A watch over one controller."""

    def __init__(self) -> None:
        self.probe = PlantedProbe()
        costs = SourceCosts(verify=BlockCosts({1: 10.0}), draft=None)
        self.controller = Controller(max_gamma=4, costs=costs)
        probe = cast(OccupancyProbe, cast(Any, self.probe))
        self.watch = OverlapWatch(probe, [self.controller], clock=lambda: self.probe.now_s)

    @property
    def may_overlap(self) -> bool:
        return self.controller.no_overlap is None


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_a_request_begins_with_the_last_reading(watched: Watched) -> None:
    watched.probe.plant(90.0)
    with watched.watch.over_request():
        assert watched.probe.working
        assert "other processes' kernels run 90 % of the time" in str(watched.controller.no_overlap)
    assert not watched.probe.working


def test_a_reading_that_comes_while_the_request_runs_counts(watched: Watched) -> None:
    with watched.watch.over_request() as look:
        assert watched.may_overlap
        for percent in (90.0, 1.0, 90.0):
            watched.probe.now_s += LOOK_INTERVAL_S
            watched.probe.plant(percent)
            look()
            assert watched.may_overlap == (percent < 20)


def test_a_reading_that_knows_nothing_of_others_overrules_none(watched: Watched) -> None:
    watched.probe.plant(90.0)
    for _ in range(2):
        with watched.watch.over_request() as look:
            for _ in range(3):
                watched.probe.now_s += LOOK_INTERVAL_S
                watched.probe.plant(None)
                look()
                assert not watched.may_overlap


def test_what_was_long_ago_is_forgotten(watched: Watched) -> None:
    watched.probe.plant(90.0)
    with watched.watch.over_request():
        assert not watched.may_overlap
    watched.probe.now_s += KEPT_S + 1
    with watched.watch.over_request() as look:
        assert watched.may_overlap, "the reading is as old as the finding"
        look()
        watched.probe.now_s += LOOK_INTERVAL_S
        look()
        assert watched.may_overlap


def test_rounds_do_not_ask_more_often_than_that(watched: Watched) -> None:
    with watched.watch.over_request() as look:
        assert watched.probe.num_asked == 1
        for _ in range(10):
            watched.probe.now_s += LOOK_INTERVAL_S / 5
            look()
        assert 2 <= watched.probe.num_asked <= 3
