"""What a sweep makes of its figures: paired ratios, noise, chance, acceptance and the gamma it recommends, on made-up
runs.
"""

from __future__ import annotations

import random
import shlex
from dataclasses import replace

import pytest

from profiling.prompts import PromptKind
from profiling.sweep.acceptance import Acceptance, acceptance_along
from profiling.sweep.evidence import MAX_FALSE_RATE, fewest_turns, least_wins
from profiling.sweep.recommendation import Recommendation, recommend
from profiling.sweep.rows import ALL_KINDS, SweepRow, noise_of, num_different, sweep_rows
from profiling.sweep.run import PLAIN, PLAIN_AGAIN, Cell, Round, SweepRun, Turn
from profiling.sweep.settings import SweepSettings
from runtime import Mode
from runtime import arguments as runtime_arguments
from tests.support.sweeps import PLAIN_MS, planted_runs, run_of, settings_of

SEQUENTIAL, PIPELINED = Mode.SEQUENTIAL, Mode.PIPELINED


def row_of(rows: list[SweepRow], mode: Mode, gamma: int | None, kind: str = ALL_KINDS) -> SweepRow:
    (row,) = [row for row in rows if (row.mode, row.gamma, row.kind) == (mode, gamma, kind)]
    return row


def found_for(runs: list[SweepRun], mode: Mode | None, kind: str = ALL_KINDS) -> Recommendation:
    found = recommend(sweep_rows(runs), noise_of(runs).median)
    (own,) = [one for one in found if (one.mode, one.kind) == (mode, kind)]
    return own


class TestRows:
    def test_ratios_are_paired_before_their_median_is_taken(self) -> None:
        """Times of three prompts: the ratio of the medians would be 20/10 instead of 1."""
        settings = settings_of([2], kinds=[PromptKind.CODE], num_prompts=3)
        times = {PLAIN: (10.0, 20.0, 30.0), Cell(mode=SEQUENTIAL, gamma=2): (10.0, 40.0, 6.0)}

        def tpot_ms(turn: Turn, cell: Cell) -> float:
            return times.get(replace(cell, again=False), times[PLAIN])[turn.prompt]

        rows = sweep_rows(planted_runs(settings, tpot_ms))
        row = row_of(rows, SEQUENTIAL, 2, "code")
        assert row.speedups == (1.0, 0.5, 5.0)
        assert (row.median, row.tpot_ms) == (1.0, 10.0)
        assert row_of(rows, Mode.PLAIN, None, "code").speedups == (1.0, 1.0, 1.0)

    def test_the_base_is_the_mean_of_both_plain_runs_and_their_difference_the_noise(self) -> None:
        settings = settings_of([2], kinds=[PromptKind.CODE], num_prompts=3)
        again_ms = (20.0, 22.0, 25.0)

        def tpot_ms(turn: Turn, cell: Cell) -> float:
            return again_ms[turn.prompt] if cell.again else PLAIN_MS if cell == PLAIN else 10.0

        runs = planted_runs(settings, tpot_ms)
        assert row_of(sweep_rows(runs), SEQUENTIAL, 2, "code").speedups == (2.0, 2.1, 2.25)
        assert noise_of(runs).median == pytest.approx(0.1)
        assert noise_of(runs).highest == pytest.approx(0.25)

    def test_kinds_and_temperatures_are_never_mixed_but_for_the_row_over_all_kinds(self) -> None:
        settings = replace(settings_of([2], num_prompts=1), temperatures=(0.0, 1.0))
        slower = {"code": 1.0, "chat": 2.0, "copy": 4.0}

        def tpot_ms(turn: Turn, cell: Cell) -> float:
            return PLAIN_MS if cell.gamma is None else PLAIN_MS * slower[turn.kind] / (1 + turn.temperature)

        rows = [row for row in sweep_rows(planted_runs(settings, tpot_ms)) if row.mode is SEQUENTIAL]
        assert [(row.temperature, row.kind, row.speedups) for row in rows] == [
            (0, "code", (1.0,)),
            (0, "chat", (0.5,)),
            (0, "copy", (0.25,)),
            (0, "all", (1.0, 0.5, 0.25)),
            (1, "code", (2.0,)),
            (1, "chat", (1.0,)),
            (1, "copy", (0.5,)),
            (1, "all", (2.0, 1.0, 0.5)),
        ]

    def test_one_other_token_is_counted_and_marks_its_row(self) -> None:
        runs = planted_runs(settings_of([2], num_prompts=1), {2: 1.5})
        assert num_different(runs) == 0
        assert all(row.identical_to_plain for row in sweep_rows(runs))
        number = next(number for number, run in enumerate(runs) if run.cell == Cell(mode=PIPELINED, gamma=2))
        runs[number] = replace(runs[number], token_ids=(*runs[number].token_ids[:-1], 9999))
        assert num_different(runs) == 1
        different = [(row.mode, row.kind) for row in sweep_rows(runs) if not row.identical_to_plain]
        assert different == [(PIPELINED, "code"), (PIPELINED, "all")]

    def test_a_second_plain_run_that_differs_is_seen_as_well(self) -> None:
        runs = planted_runs(settings_of([2], num_prompts=1), {2: 1.5})
        number = next(number for number, run in enumerate(runs) if run.cell == PLAIN_AGAIN)
        runs[number] = replace(runs[number], token_ids=(1,))
        assert num_different(runs) == 1
        assert not row_of(sweep_rows(runs), Mode.PLAIN, None, "code").identical_to_plain


class TestAcceptance:
    def test_counts_by_position(self) -> None:
        """Blocks of 3, 3 and 1 tokens, of which 3, 1 and 0 are accepted, and a plain round."""
        counts = Acceptance.of([Round(4, 3, 3), Round(2, 3, 1), Round(1, 1, 0), Round(1, 0, 0)])
        assert counts.rate == pytest.approx(4 / 7)
        assert counts.mean_length == pytest.approx(1 + 4 / 3)
        assert counts.tokens_per_round == 2
        assert counts.rate_per_position == pytest.approx((2 / 3, 1 / 2, 1 / 2))

    def test_without_proposals_there_is_no_rate(self) -> None:
        counts = Acceptance.of([Round(1, 0, 0)])
        assert (counts.rate, counts.mean_length, counts.rate_per_position) == (None, None, ())

    def test_along_the_output_a_round_belongs_where_it_begins(self) -> None:
        outputs = [[Round(5, 4, 4), Round(1, 4, 0), Round(1, 0, 0), Round(1, 2, 0)], [Round(4, 4, 3), Round(4, 3, 3)]]
        # The first output's rounds begin at 0, 5, 6 and 7, the second's at 0 and 4.
        assert acceptance_along(outputs, num_tokens=8, num_parts=4) == [7 / 8, None, 3 / 7, 0.0]
        assert acceptance_along([[Round(1, 0, 0)] * 8], num_tokens=8, num_parts=2) == [None, None]


class TestChoice:
    @pytest.mark.parametrize(
        ("speedups", "gamma"),
        [
            ({2: 1.3, 4: 1.46, 6: 1.44}, 4),
            ({2: 1.3, 4: 1.46, 6: 1.6}, 6),
            ({2: 1.3, 4: 1.2, 6: 1.1}, 2),
            ({2: 1.3, 4: 1.305, 6: 1.3}, 2),  # within 1 % the smallest
            ({2: 1.3, 4: 1.32, 6: 1.325}, 4),
        ],
    )
    def test_the_fastest_is_recommended_of_equals_the_smallest(self, speedups: dict[int, float], gamma: int) -> None:
        found = found_for(planted_runs(settings_of(), speedups), SEQUENTIAL)
        assert (found.gamma, found.best.median) == (gamma, pytest.approx(speedups[gamma]))

    def test_the_reason_is_told_in_figures(self) -> None:
        """From gamma 4 to 6 a round brings 4 tokens in place of 3, at 1.44/1.46 of the speed."""

        def tpot_ms(turn: Turn, cell: Cell) -> float:
            return {None: 20.0, 2: 20.0 / 1.31, 4: 20.0 / 1.46, 6: 20.0 / 1.44}[cell.gamma]

        runs = [
            run_of(run.turn, run.cell, run.tpot_ms, num_accepted=2 if run.cell.gamma == 4 else 3)
            for run in planted_runs(settings_of(), tpot_ms)
        ]
        assert found_for(runs, SEQUENTIAL).text == (
            "sequential: gamma 4: 1.46x plain decoding's speed (1.46 to 1.46 by prompt); 2 gives 1.31x; "
            "6 is slower (1.44x), since acceptance at position 5 is 0 %, so a round brings 33 % more tokens and takes "
            "35 % more time."
        )

    def test_a_larger_gamma_within_the_noise_gains_nothing(self) -> None:
        found = found_for(planted_runs(settings_of(), {2: 1.3, 4: 1.46, 6: 1.44}, noise=0.03), SEQUENTIAL)
        assert found.gamma == 4
        assert "6 gains nothing (1.44x)" in found.text

    def test_of_gammas_within_the_noise_the_smallest_is_taken_and_the_fastest_named(self) -> None:
        found = found_for(planted_runs(settings_of(), {2: 1.3, 4: 1.31, 6: 1.33}, noise=0.05), SEQUENTIAL)
        assert found.gamma == 2
        assert "4 gains no more than the noise (1.31x)" in found.text
        assert "6 gives 1.33x, which is within the noise of it" in found.text
        assert found_for(planted_runs(settings_of(), {2: 1.3, 4: 1.31, 6: 1.33}, noise=0.01), SEQUENTIAL).gamma == 6

    def test_a_gamma_that_does_not_pay_wins_no_tie_with_one_that_does(self) -> None:
        found = found_for(planted_runs(settings_of(), {2: 1.04, 4: 1.08, 6: 1.0}, noise=0.05), SEQUENTIAL)
        assert (found.gamma, found.pays) == (4, True)
        assert "2 gives 1.04x, which is within the noise of it" in found.text

    def test_the_largest_that_was_tried_is_not_called_the_best_there_is(self) -> None:
        found = found_for(planted_runs(settings_of(), {2: 1.2, 4: 1.4, 6: 1.6}), SEQUENTIAL)
        assert "it is the largest that was tried, and a larger one may gain more: up to 15" in found.text

    def test_where_nothing_beats_plain_decoding_nothing_is_recommended(self) -> None:
        runs = planted_runs(settings_of(), {2: 0.97, 4: 0.9, 6: 0.8})
        for mode in (SEQUENTIAL, PIPELINED):
            found = found_for(runs, mode)
            assert (found.gamma, found.pays, found.best.gamma) == (None, False, 2)
            assert "no gamma pays: the best, 2, gives 0.97x" in found.text
            assert "acceptance at position 1 is 100 %, and a round brings 2.00 tokens in 2.06 times" in found.text
        overall = found_for(runs, None)
        assert overall.as_dict()["mode"] == "plain"
        assert overall.gamma is None
        assert overall.text.startswith("take no gamma: nothing that was tried is sure to beat plain decoding here")

    @pytest.mark.parametrize(("noise", "pays"), [(0.02, True), (0.04, False)])
    def test_a_gain_within_the_noise_is_none(self, noise: float, pays: bool) -> None:
        found = found_for(planted_runs(settings_of([2, 4]), {2: 1.03, 4: 1.0}, noise=noise), SEQUENTIAL)
        assert found.pays is pays
        assert ("no gamma is sure to pay" in found.text and "within the noise of 4.0 %" in found.text) is not pays

    def test_one_gamma_alone_is_judged_as_well(self) -> None:
        found = found_for(planted_runs(settings_of([4]), {4: 1.5}), SEQUENTIAL)
        assert found.gamma == 4
        assert "largest" not in found.text


class TestChance:
    def test_what_chance_allows(self) -> None:
        """One of three equal runs is the fastest in a third of all turns: 10 cells in 5 turns, 10 / 3**5 = 4.1 %."""
        assert least_wins(4, 10) is None
        assert (least_wins(5, 10), fewest_turns(10)) == (5, 5)
        # P(Binomial(12, 1/3) >= 8) = 1.88 %, at least 7: 6.6 %.
        assert least_wins(12, 1) == 8
        assert least_wins(12, 3) == 9
        assert (fewest_turns(1), fewest_turns(6)) == (3, 5)

    @pytest.mark.parametrize("spikes", [False, True])
    @pytest.mark.parametrize("num_prompts", [4, 6])
    def test_where_nothing_gains_something_is_recommended_in_fewer_than_one_sweep_of_twenty(
        self, spikes: bool, num_prompts: int
    ) -> None:
        """Simulated sweeps of one kind with 2 and 6 cells, in which all runs take equally long but for noise."""
        draw = random.Random(num_prompts)
        settings = settings_of([2] if num_prompts == 4 else [2, 4, 6], kinds=[PromptKind.CHAT], num_prompts=num_prompts)

        def tpot_ms(turn: Turn, cell: Cell) -> float:
            return (
                20 + (draw.random() < 0.2) * 20 * draw.random() + 0.1 * draw.random() if spikes else draw.gauss(20, 0.6)
            )

        num_sweeps, num_false, num_above_noise = 300, 0, 0
        for _ in range(num_sweeps):
            runs = planted_runs(settings, tpot_ms)
            num_false += found_for(runs, None, "chat").pays
            best = max(row.median for row in sweep_rows(runs) if row.gamma is not None)
            num_above_noise += best > 1 + noise_of(runs).median
        assert num_false / num_sweeps < MAX_FALSE_RATE
        # The noise alone is no guard.
        assert num_above_noise / num_sweeps > MAX_FALSE_RATE

    def test_a_large_gain_is_found_though_one_prompt_in_six_loses(self) -> None:
        def tpot_ms(turn: Turn, cell: Cell) -> float:
            return PLAIN_MS if cell.gamma is None else PLAIN_MS / (0.9 if turn.prompt == 0 else 1.4)

        found = found_for(planted_runs(settings_of([2], num_prompts=6), tpot_ms), None)
        assert (found.gamma, found.best.num_wins) == (2, 15)

    def test_a_gain_in_too_few_prompts_may_be_chance(self) -> None:
        def tpot_ms(turn: Turn, cell: Cell) -> float:
            return PLAIN_MS if cell.gamma is None else PLAIN_MS / (1.4 if turn.prompt < 3 else 0.99)

        found = found_for(
            planted_runs(settings_of([2], kinds=[PromptKind.CODE], num_prompts=5), tpot_ms), SEQUENTIAL, "code"
        )
        assert (found.gamma, found.enough_runs) == (None, True)
        assert "beats both plain runs of only 3 of 5 prompts, which may be chance; 5 would not" in found.text

    def test_one_turn_is_too_few_whatever_it_says(self) -> None:
        runs = planted_runs(settings_of(kinds=[PromptKind.CODE], num_prompts=1), {2: 3.0, 4: 4.0, 6: 5.0})
        found = found_for(runs, None, "code")
        assert (found.gamma, found.enough_runs) == (None, False)
        assert found.text.startswith(
            "too few runs to recommend anything: 1 cannot tell the fastest of 6 from chance, 5 can"
        )
        assert "the best so far is sequential, gamma 6, at 5.00x" in found.text
        assert "too few runs" in found_for(runs, SEQUENTIAL, "code").text


class TestOverModes:
    def runs_of(self, pipelined: float, *, chat: float = 1.0, noise: float = 0.01) -> list[SweepRun]:
        def tpot_ms(turn: Turn, cell: Cell) -> float:
            if cell.gamma is None:
                return PLAIN_MS * (1 + noise * cell.again)
            speedup = pipelined if cell.mode is PIPELINED else 1.5
            return PLAIN_MS / speedup / (chat if turn.kind is PromptKind.CHAT else 1.0)

        return planted_runs(settings_of([2], num_prompts=4), tpot_ms)

    @pytest.mark.parametrize(
        ("pipelined", "noise", "mode"),
        [(1.7, 0.01, PIPELINED), (1.3, 0.01, SEQUENTIAL), (1.51, 0.01, SEQUENTIAL), (1.6, 0.08, SEQUENTIAL)],
    )
    def test_of_two_modes_that_cannot_be_told_apart_the_simpler_is_taken(
        self, pipelined: float, noise: float, mode: Mode
    ) -> None:
        found = found_for(self.runs_of(pipelined, noise=noise), None)
        assert (found.best.mode, found.gamma) == (mode, 2)
        assert f"python -m runtime --mode {mode} --gamma 2" in found.text
        assert ("which is within the noise of it" in found.text) is (pipelined in (1.51, 1.6))

    def test_a_mode_that_does_not_pay_wins_no_tie_with_one_that_does(self) -> None:
        def tpot_ms(turn: Turn, cell: Cell) -> float:
            if cell.gamma is None:
                return PLAIN_MS * (1 + 0.02 * cell.again)
            return PLAIN_MS * 1.01 / (1.019 if cell.mode is SEQUENTIAL else 1.035)

        runs = planted_runs(settings_of([2]), tpot_ms)
        assert not found_for(runs, SEQUENTIAL).pays
        found = found_for(runs, None)
        assert (found.best.mode, found.gamma) == (PIPELINED, 2)
        assert found.text.startswith("take gamma 2, pipelined: 1.03x")
        assert "sequential at its best, gamma 2, gives 1.02x, which is within the noise of it" in found.text

    @pytest.mark.parametrize(
        ("auto", "words"),
        [
            (1.42, "auto, the default, is at 1.42x"),
            (1.5, "auto, the default, is at 1.50x, which is within the noise of it"),
            (1.9, "auto, the default, is at 1.90x"),
        ],
    )
    def test_the_default_is_compared_with_and_never_recommended(self, auto: float, words: str) -> None:
        runs = planted_runs(settings_of([2]), {2: 1.5}, auto=auto)
        found = found_for(runs, None)
        assert (found.gamma, found.best.mode) == (2, SEQUENTIAL)
        assert f"; {words} (python -m runtime" in found.text
        assert found.as_dict()["auto_speedup"] == pytest.approx(auto)
        slow = found_for(planted_runs(settings_of([2]), {2: 0.9}, auto=auto), None)
        assert slow.gamma is None
        assert f"auto, the default, is at {auto:.2f}x." in slow.text
        assert {one.mode for one in recommend(sweep_rows(runs), 0.01)} == {SEQUENTIAL, PIPELINED, None}

    def test_the_command_names_the_pair_that_was_given(self) -> None:
        rows = sweep_rows(planted_runs(settings_of([2]), {2: 1.5}))
        load = {"target": "my models/big", "draft": ["ngram", "small"], "weights": "int8", "threads": 2}
        arguments = replace(settings_of([2]), load=load).load_arguments()
        text = recommend(rows, 0.01, load_arguments=arguments)[-1].text
        command = (
            "(python -m runtime --target 'my models/big' --draft ngram --draft small --weights int8 --threads 2 "
            "--mode sequential --gamma 2)"
        )
        assert command in text
        words = shlex.split(text[text.index("(python") + 1 : text.rindex(")")])
        assert runtime_arguments.parse_arguments(words[3:]).load == {**load, "mode": "sequential", "gamma": 2}

    def test_a_kind_that_loses_is_named(self) -> None:
        assert "it loses on chat (0.75x)" in found_for(self.runs_of(1.2, chat=0.5), None).text
        assert "loses" not in found_for(self.runs_of(1.2), None).text

    def test_each_kind_has_a_choice_of_its_own(self) -> None:
        runs = self.runs_of(1.2, chat=0.5)
        assert found_for(runs, None, "code").gamma == 2
        assert found_for(runs, None, "chat").gamma is None

    def test_a_single_kind_has_no_row_over_all(self) -> None:
        settings = SweepSettings(gammas=(2,), kinds=(PromptKind.CHAT,), num_prompts=1)
        found = recommend(sweep_rows(planted_runs(settings, {2: 1.5})), 0.01)
        assert {one.kind for one in found} == {"chat"}
