"""Simulated decoding and its drawing: worked examples, what costs must do, and the program's output."""

from __future__ import annotations

import json

import pytest

from profiling.drawing import draw_timeline
from profiling.simulation import Simulation, SimulationSettings, simulate
from profiling.timeline import main
from scheduler import RoundMode, TimelineEntry, expected_tokens, summarize_timeline

FREE_HOST = {"host_latency_ms": 0.0, "call_ms": 0.0, "draft_contention": 1.0, "target_contention": 1.0}


def entry(stream: str, label: str, start_ms: float, end_ms: float, *, skipped: bool = False) -> TimelineEntry:
    return TimelineEntry(stream=stream, label=label, start_ms=start_ms, end_ms=end_ms, skipped=skipped)


class TestDrawing:
    def test_a_small_one(self) -> None:
        drawn = draw_timeline(
            [
                entry("target", "verify", 4, 14),
                entry("draft", "propose", 0, 4),
                entry("draft", "skip", 4, 4, skipped=True),
                entry("draft", "roll back", 14, 15),
                entry("draft", "nothing", 10, 10),
                entry("draft", "propose", 15, 20),
            ],
            width=20,
        )
        assert drawn.splitlines() == [
            " draft p━━━×·········rp━━━━",
            "target ····v━━━━━━━━━······",
            "    ms 0",
        ]

    def test_the_axis_has_round_numbers_at_their_places(self) -> None:
        axis = draw_timeline([entry("main", "work", 0, 250)], width=100).splitlines()[-1]
        assert axis == "  ms 0                   50                  100                 150                 200"

    def test_a_window_cuts_what_lies_outside(self) -> None:
        entries = [entry("main", "a", 0, 10), entry("main", "b", 10, 30), entry("main", "c", 30, 40)]
        drawn = draw_timeline(entries, width=20, start_ms=5, end_ms=25)
        assert drawn.splitlines()[0] == "main ━━━━━b━━━━━━━━━━━━━━"

    def test_even_the_shortest_launch_can_be_seen(self) -> None:
        entries = [entry("main", "a", 0, 100), entry("main", "b", 100, 100.1), entry("main", "c", 150, 200)]
        assert draw_timeline(entries, width=20).splitlines()[0] == "main a━━━━━━━━━b····c━━━━"

    @pytest.mark.parametrize(
        ("options", "match"),
        [({"width": 0}, "width must be at least 1 column"), ({"width": 10, "start_ms": 7}, "end_ms must lie behind")],
    )
    def test_refuses_to_draw_nothing(self, options: dict[str, float], match: str) -> None:
        with pytest.raises(ValueError, match=match):
            draw_timeline([entry("main", "work", 0, 7)], **options)


class TestSimulation:
    def test_plain_decoding_takes_its_steps_and_no_longer(self) -> None:
        run = simulate(RoundMode.PLAIN, SimulationSettings(num_tokens=10, **FREE_HOST))
        # The first step reads both tokens of the prompt.
        assert run.total_ms == pytest.approx(10 * 40 + 1)
        assert run.tokens_per_s == pytest.approx(10 / 0.401)
        assert run.summary.busy_ms == {"target": pytest.approx(401)}
        assert (run.num_rounds, run.num_proposed) == (10, 0)

    def test_a_perfect_draft_in_turns(self) -> None:
        settings = SimulationSettings(acceptance=1.0, gamma=4, num_tokens=20, **FREE_HOST)
        run = simulate(RoundMode.SEQUENTIAL, settings)
        # Four rounds of 4 steps at 4 ms and one verify of 5 tokens at 44 ms; the first reads a token more.
        assert run.total_ms == pytest.approx(4 * (16 + 44) + 1)
        assert (run.num_rounds, run.num_proposed, run.num_accepted) == (4, 16, 16)
        assert run.summary.overlap_ms == 0

    def test_a_draft_that_is_never_right_costs_its_time_and_no_tokens(self) -> None:
        settings = SimulationSettings(acceptance=0.0, gamma=2, num_tokens=5, **FREE_HOST)
        run = simulate(RoundMode.SEQUENTIAL, settings)
        # Near the end a round has less room: 2, 2, 2, 1 and 0 proposals.
        assert run.total_ms == pytest.approx(3 * (8 + 42) + (4 + 41) + 40 + 1)
        assert (run.num_rounds, run.num_proposed, run.num_accepted) == (5, 7, 0)

    def test_acceptance_is_what_it_says(self) -> None:
        settings = SimulationSettings(acceptance=0.7, gamma=4, num_tokens=2_000)
        run = simulate(RoundMode.SEQUENTIAL, settings)
        assert run.num_tokens == 2_000
        # Over 700 rounds; one length has a standard deviation of about 1.6, their mean one of 0.06.
        assert run.num_tokens / run.num_rounds == pytest.approx(expected_tokens(4, 0.7), abs=0.2)

    def test_a_perfect_draft_beside_the_target_is_hidden_behind_it(self) -> None:
        settings = SimulationSettings(acceptance=1.0, gamma=4, num_tokens=200, **FREE_HOST)
        run = simulate(RoundMode.PIPELINED, settings)
        in_turns = simulate(RoundMode.SEQUENTIAL, settings)
        assert run.num_tokens == in_turns.num_tokens == 200
        assert run.num_hits >= run.num_rounds - 3
        # The target hardly ever stands idle, the draft works beside it, and drafting takes no time of its own.
        assert run.summary.busy_ms["target"] / run.summary.span_ms > 0.97
        assert run.summary.overlap_ms > 0.3 * run.summary.span_ms
        assert run.total_ms < in_turns.total_ms * 0.8

    def test_contention_slows_the_lanes_down_by_what_it_says(self) -> None:
        free = SimulationSettings(acceptance=1.0, num_tokens=100, **FREE_HOST)
        slow = SimulationSettings(acceptance=1.0, num_tokens=100, **{**FREE_HOST, "target_contention": 1.5})
        by_settings = [simulate(RoundMode.PIPELINED, settings) for settings in (free, slow)]
        assert 1.1 < by_settings[1].total_ms / by_settings[0].total_ms < 1.5
        # In turns nothing contends.
        in_turns = [simulate(RoundMode.SEQUENTIAL, settings).total_ms for settings in (free, slow)]
        assert in_turns[0] == in_turns[1]

    @pytest.mark.parametrize("mode", RoundMode)
    def test_the_same_settings_give_the_same_timeline(self, mode: RoundMode) -> None:
        settings = SimulationSettings(num_tokens=40, seed=3)
        run, again = simulate(mode, settings), simulate(mode, settings)
        assert run == again
        assert run.summary == summarize_timeline(run.timeline)

    def test_where_the_draft_is_right_depends_on_the_seed(self) -> None:
        runs = [simulate(RoundMode.SEQUENTIAL, SimulationSettings(num_tokens=40, seed=seed)) for seed in range(4)]
        assert len({run.num_accepted for run in runs} | {run.num_rounds for run in runs}) > 2

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("draft_ms", -1.0),
            ("verify_ms", 0.0),
            ("target_contention", 0.9),
            ("acceptance", 1.5),
            ("gamma", 0),
            ("max_lead", 0),
            ("num_awaited", -1),
            ("num_tokens", 0),
            ("call_ms", float("nan")),
            ("seed", -1),
        ],
    )
    def test_refuses_impossible_settings(self, field: str, value: float) -> None:
        with pytest.raises(ValueError, match=field):
            SimulationSettings(**{field: value})


class TestProgram:
    def test_draws_both_modes(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["--num-tokens", "20", "--width", "60", "--acceptance", "0.9"]) == 0
        sequential, pipelined = capsys.readouterr().out.split("\n\n")
        for mode, drawn in (("sequential", sequential), ("pipelined", pipelined)):
            head, draft, target, axis, busy, counts = drawn.strip().splitlines()
            assert head.startswith(f"{mode}: ")
            assert "tokens/s (20 tokens in " in head
            assert draft.startswith(" draft d")
            assert target.startswith("target ")
            assert "v━━" in target
            assert len(draft) == len(target) == 60 + len("target ")
            assert axis.startswith("    ms 0")
            assert "both" in busy
            assert "neither" in busy
            assert counts.startswith("proposed ")

    def test_prints_json_that_adds_up(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["--mode", "pipelined", "--num-tokens", "20", "--json", "--gamma", "3"]) == 0
        printed = json.loads(capsys.readouterr().out)
        assert printed["settings"]["gamma"] == 3
        (run,) = printed["runs"]
        expected = simulate(RoundMode.PIPELINED, SimulationSettings(num_tokens=20, gamma=3))
        assert isinstance(expected, Simulation)
        assert run["mode"] == "pipelined"
        assert run["tokens_per_s"] == expected.tokens_per_s
        entries = [TimelineEntry(**item) for item in run["timeline"]]
        assert tuple(entries) == expected.timeline

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--gamma", "0"], "gamma must be between 1 and 64, got 0"),
            (["--width", "0"], "--width must be at least 1"),
            (["--show-ms", "0"], "--show-ms must be above 0"),
            (["--mode", "other"], "invalid choice: 'other'"),
            (["--verify-ms", "long"], "invalid float value: 'long'"),
        ],
    )
    def test_refuses_bad_arguments(
        self, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        assert caught.value.code == 2
        assert message in capsys.readouterr().err
