"""Where a scripted draft is right: how often, in runs of which lengths, and from which token on."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby, pairwise

import pytest

from profiling.acceptance_pattern import AcceptanceSegment, balanced_pattern, draw_pattern
from profiling.simulation import SimulationSettings, simulate
from scheduler import RoundMode

Fill = Callable[[list[AcceptanceSegment], int], list[bool]]
BOTH = pytest.mark.parametrize("fill", [draw_pattern, balanced_pattern])


def segment(num_tokens: int, acceptance: float) -> AcceptanceSegment:
    return AcceptanceSegment(num_tokens=num_tokens, acceptance=acceptance)


@BOTH
@pytest.mark.parametrize("acceptance", [0.1, 0.5, 0.9])
def test_the_draft_is_right_as_often_as_it_should_be(fill: Fill, acceptance: float) -> None:
    pattern = fill([segment(20_000, acceptance)], 1)
    assert len(pattern) == 20_000
    # Drawn one by one its standard deviation is at most 0.0035.
    assert sum(pattern) / 20_000 == pytest.approx(acceptance, abs=0.015)


@BOTH
def test_stretches_follow_each_other(fill: Fill) -> None:
    pattern = fill([segment(50, 1.0), segment(30, 0.0), segment(20, 1.0)], 0)
    assert pattern == [True] * 50 + [False] * 30 + [True] * 20


@BOTH
def test_depends_on_the_seed_alone(fill: Fill) -> None:
    text = [segment(200, 0.7)]
    assert fill(text, 3) == fill(text, 3) != fill(text, 4)


def test_balanced_runs_have_the_lengths_that_they_should_have() -> None:
    pattern = balanced_pattern([segment(30_000, 0.8)], 0)
    # Each False ends a run, which may be empty.
    lengths, length = [], 0
    for right in pattern:
        if right:
            length += 1
        else:
            lengths.append(length)
            length = 0
    for least in range(12):
        share = sum(length >= least for length in lengths) / len(lengths)
        assert share == pytest.approx(0.8**least, abs=0.003)


def test_balanced_runs_are_in_random_order() -> None:
    lengths = [len(list(run)) for right, run in groupby(balanced_pattern([segment(2_000, 0.8)], 0)) if right]
    rises = sum(one < other for one, other in pairwise(lengths))
    assert 0.25 < rises / len(lengths) < 0.6


@pytest.mark.parametrize("balanced", [False, True])
def test_simulated_text_changes_where_its_segments_say(balanced: bool) -> None:
    settings = SimulationSettings(
        segments=(segment(30, 1.0), segment(1, 0.0)), num_tokens=60, gamma=4, balanced=balanced
    )
    run = simulate(RoundMode.SEQUENTIAL, settings)
    # Six rounds of five tokens, then a token a round.
    assert (run.num_tokens, run.num_rounds) == (60, 36)


@pytest.mark.parametrize(("fields", "match"), [((0, 0.5), "num_tokens"), ((1, 1.5), "acceptance")])
def test_refuses_impossible_segments(fields: tuple[int, float], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        segment(*fields)


def test_refuses_what_is_no_segment() -> None:
    with pytest.raises(TypeError, match="segments must hold AcceptanceSegment, not tuple"):
        SimulationSettings(segments=((30, 1.0),))  # type: ignore[arg-type]  # wrong on purpose
