"""The simulation report: the model's choice against the best fixed setting, a formula, and the program's output."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import pytest

from profiling import simulate as program
from profiling.simulation import SimulationSettings, simulate
from profiling.simulation_grid import Grid, GridPoint, PointResult, SimulatedPlan, full_grid, groups, simulate_group
from profiling.simulation_report import format_report, formula_speed_up, summarize
from scheduler import RoundMode, RoundPlan


def grid_point(draft_ratio: float, acceptance: float, contention: float, extra_ratio: float = 0.025) -> GridPoint:
    return GridPoint(draft_ratio=draft_ratio, acceptance=acceptance, contention=contention, extra_ratio=extra_ratio)


SMALL = Grid(
    points=(
        grid_point(0.1, 0.8, 1.0, 0.0),
        grid_point(0.3, 0.9, 1.0),
        grid_point(0.3, 0.9, 1.5),
        grid_point(1.0, 0.3, 1.1),
    ),
    num_misses=30,
    num_texts=1,
)


@pytest.fixture(scope="module")
def results() -> list[PointResult]:
    return [result for group in groups(SMALL) for result in simulate_group(group, SMALL)]


class TestGrid:
    def test_the_choice_is_as_fast_as_the_best_fixed_setting(self, results: list[PointResult]) -> None:
        for result in results:
            assert result.loss <= 0.03, (result.point, result.choice, result.best)

    def test_promises_are_kept(self, results: list[PointResult]) -> None:
        # Noise of so few misses included.
        assert summarize(results).worst_model_error < 0.08
        assert summarize(results).median_model_error < 0.03

    def test_what_the_model_leaves_out_is_not_the_fastest(self, results: list[PointResult]) -> None:
        assert summarize(results).best_left_out < 1.03

    def test_each_mode_is_the_fastest_somewhere(self, results: list[PointResult]) -> None:
        fastest = {result.point: result.best.plan.mode for result in results}
        assert fastest[grid_point(0.3, 0.9, 1.0)] is RoundMode.PIPELINED
        assert fastest[grid_point(0.3, 0.9, 1.5)] is RoundMode.SEQUENTIAL
        assert fastest[grid_point(1.0, 0.3, 1.1)] is RoundMode.PLAIN

    def test_overlap_pays_where_lanes_do_not_disturb_each_other(self, results: list[PointResult]) -> None:
        gains = {result.point: result.overlap_gain for result in results}
        assert gains[grid_point(0.3, 0.9, 1.0)] > 1.15
        assert gains[grid_point(0.3, 0.9, 1.5)] < 1.0

    def test_the_full_grid_has_every_contention_for_every_pair(self) -> None:
        points = full_grid().points
        assert len(set(points)) == len(points)
        assert {len(group) for group in groups(full_grid())} == {1, 4}
        assert sum(map(len, groups(full_grid()))) == len(points)


@pytest.mark.parametrize(("gamma", "acceptance", "draft_ratio"), [(1, 0.6, 0.2), (4, 0.8, 0.1), (8, 0.9, 0.02)])
def test_turns_are_as_fast_as_the_formula_says(gamma: int, acceptance: float, draft_ratio: float) -> None:
    settings = SimulationSettings(
        draft_ms=draft_ratio * 40,
        extra_token_ms=0.0,
        host_latency_ms=0.0,
        call_ms=0.0,
        acceptance=acceptance,
        balanced=True,
        gamma=gamma,
        num_tokens=1_000,
    )
    plain = simulate(RoundMode.PLAIN, dataclasses.replace(settings, num_tokens=100))
    speed_up = simulate(RoundMode.SEQUENTIAL, settings).tokens_per_s / plain.tokens_per_s
    assert speed_up == pytest.approx(formula_speed_up(gamma, acceptance, draft_ratio), rel=0.03)


def simulated(mode: RoundMode, *rates: float, promised: float = 1.0) -> SimulatedPlan:
    gamma, lead = int(mode is not RoundMode.PLAIN), int(mode is RoundMode.PIPELINED)
    return SimulatedPlan(
        plan=RoundPlan(mode=mode, gamma=gamma, lead=lead), promised_tokens_per_ms=promised, text_tokens_per_ms=rates
    )


class TestReport:
    RESULT = PointResult(
        point=grid_point(0.1, 0.8, 1.5),
        by_mode={
            RoundMode.PLAIN: simulated(RoundMode.PLAIN, 1.0, 1.0),
            RoundMode.SEQUENTIAL: simulated(RoundMode.SEQUENTIAL, 2.0, 2.0, promised=2.1),
            RoundMode.PIPELINED: simulated(RoundMode.PIPELINED, 1.5, 1.5, promised=1.5),
        },
        choice=simulated(RoundMode.PIPELINED, 1.5, 1.5, promised=1.5),
        left_out=0.9,
    )

    def test_a_loss_is_seen(self) -> None:
        summary = summarize([self.RESULT])
        assert (summary.num_points, summary.num_beyond_aim) == (1, 1)
        assert summary.worst_loss == summary.median_loss == pytest.approx(0.25)
        assert summary.worst_model_error == pytest.approx(0.05)
        assert (summary.worst_noise, summary.best_left_out) == (0.0, 0.9)

    def test_texts_count_by_their_time(self) -> None:
        # As many tokens in 1 and in 3 units of time.
        assert simulated(RoundMode.PLAIN, 3.0, 1.0).tokens_per_ms == pytest.approx(1.5)

    def test_maps_say_which_mode_and_how_much(self) -> None:
        lines = format_report([self.RESULT]).splitlines()
        assert lines[0].startswith("both lanes x1.5 while both run; further tokens of a verify 2.5%")
        assert lines[3].split() == ["0.8", "2.00s", "0.8", "0.75"]
        assert "loses 25.0% (median), 25.0% at worst; more than 3% at 1" in lines[-5]

    def test_without_matplotlib_the_figures_are_kept_and_the_command_is_named(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
        monkeypatch.setattr(program, "run_grid", lambda grid, num_processes: [self.RESULT])
        assert program.main(["--quick", "--out-dir", str(tmp_path)]) == 1
        assert "pip install 'slipstream[plot]', or leave out --out-dir" in capsys.readouterr().err
        assert [path.suffix for path in tmp_path.iterdir()] == [".json"]


def test_the_program_prints_json_and_writes_it_down_with_a_plot(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    tiny = Grid(points=(grid_point(0.1, 0.8, 1.0), grid_point(0.2, 0.8, 1.5)), num_misses=5, num_texts=1)
    monkeypatch.setattr(program, "quick_grid", lambda: tiny)
    assert program.main(["--quick", "--json", "--processes", "1", "--out-dir", str(tmp_path)]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert [(point["draft_ratio"], point["contention"]) for point in printed["points"]] == [(0.1, 1.0), (0.2, 1.5)]
    assert printed["summary"]["num_points"] == 2
    assert set(printed["points"][0]["fastest"]) == {"plain", "sequential", "pipelined"}
    (written,) = tmp_path.glob("*-simulate.json")
    assert json.loads(written.read_text(encoding="utf-8")) == printed
    (plot,) = tmp_path.glob("*-simulate.png")
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_the_program_refuses_to_work_with_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        program.main(["--processes", "0"])
    assert caught.value.code == 2
    assert "--processes must be at least 1, got 0" in capsys.readouterr().err
