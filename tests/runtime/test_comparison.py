"""The order of a comparison's runs, what is made of their times, and how it reads."""

from __future__ import annotations

import json

import pytest

from runtime import FinishReason, GenerationOptions, GenerationResult, Metrics, Mode, Verification
from runtime.comparison import Comparison, ModeFigures, compare
from runtime.report import comparison_table

MODES = (Mode.PLAIN, Mode.SEQUENTIAL)


def result(
    tpot_ms: float, *, token_ids: tuple[int, ...] = (1, 2, 3), ttft_ms: float = 5.0, **figures: int
) -> GenerationResult:
    """A run of as many tokens, the first after `ttft_ms`."""
    return GenerationResult(
        text="",
        token_ids=token_ids,
        finish_reason=FinishReason.LENGTH,
        metrics=Metrics(
            num_output_tokens=len(token_ids),
            ttft_ms=ttft_ms,
            total_ms=ttft_ms + tpot_ms * (len(token_ids) - 1),
            num_spec_steps=2,
            num_draft_tokens=8,
            num_accepted_draft_tokens=6,
            **figures,
        ),
    )


class Runs:
    """Gives out prepared results and keeps the order in which they were asked for."""

    def __init__(self, plain_ms: list[float], speculative_ms: list[float], **changes: object) -> None:
        self.asked: list[Mode] = []
        self._results = {
            Mode.PLAIN: [result(tpot_ms, **changes) for tpot_ms in plain_ms],  # type: ignore[arg-type]  # real fields
            Mode.SEQUENTIAL: [result(tpot_ms) for tpot_ms in speculative_ms],
        }

    async def __call__(self, mode: Mode) -> GenerationResult:
        self.asked.append(mode)
        results = self._results[mode]
        return results.pop(0) if len(results) > 1 else results[0]


async def compared(plain_ms: list[float], speculative_ms: list[float], **changes: object) -> Comparison:
    return await compare(Runs(plain_ms, speculative_ms, **changes), MODES)


def figures_of(comparison: Comparison) -> tuple[ModeFigures, ModeFigures]:
    plain, speculative = comparison.modes
    return plain, speculative


async def test_modes_run_in_turn_and_the_first_runs_do_not_count() -> None:
    runs = Runs([900.0, 20.0], [800.0, 10.0])
    comparison = await compare(runs, MODES)
    assert comparison.num_repetitions >= 3
    timed = [tuple(runs.asked[index : index + 2]) for index in range(2, len(runs.asked), 2)]
    assert tuple(runs.asked[:2]) == MODES
    assert timed == [MODES if index % 2 == 0 else MODES[::-1] for index in range(comparison.num_repetitions)]
    plain, speculative = figures_of(comparison)
    assert plain.tpot_ms == pytest.approx(20.0)
    assert speculative.tpot_ms == pytest.approx(10.0)


async def test_figures_are_medians_and_the_speedup_is_their_ratio() -> None:
    long = 10_000.0  # so long a pair leaves room for three runs of each
    comparison = await compared([long, 30.0, 10.0, 20.0], [long, 1000.0, 5.0, 8.0])
    assert comparison.num_repetitions == 3
    plain, speculative = figures_of(comparison)
    assert plain.tpot_ms == pytest.approx(20.0)
    assert plain.tokens_per_s == pytest.approx(50.0)
    assert speculative.tpot_ms == pytest.approx(8.0)
    assert comparison.speedup(speculative) == pytest.approx(2.5)
    assert comparison.speedup(plain) == 1.0
    assert speculative.draft_acceptance_rate == 0.75
    assert speculative.mean_acceptance_length == 4.0
    assert speculative.hit_rate is None
    assert speculative.num_discarded_draft_tokens is None
    assert comparison.result.metrics.tpot_ms == pytest.approx(8.0)


async def test_short_outputs_are_repeated_more_often_but_not_endlessly() -> None:
    assert (await compared([1.0], [1.0])).num_repetitions == 9
    assert (await compared([600.0], [600.0])).num_repetitions == 6


async def test_one_run_that_differs_is_noticed() -> None:
    assert (await compared([1.0], [1.0])).identical
    runs = Runs([1.0] * 20, [1.0] * 20)
    runs._results[Mode.PLAIN][5] = result(1.0, token_ids=(1, 2, 4))
    assert not (await compare(runs, MODES)).identical


async def test_the_first_runs_can_be_shown() -> None:
    shown, timed = Runs([1.0], [1.0]), Runs([1.0], [1.0])
    await compare(timed, MODES, warm_up=shown)
    assert tuple(shown.asked) == MODES
    assert tuple(timed.asked[:2]) == MODES


async def test_outputs_of_one_token_have_no_speed() -> None:
    comparison = await compared([1.0], [1.0], token_ids=(1,))
    plain, speculative = figures_of(comparison)
    assert plain.tokens_per_s is None
    assert comparison.speedup(speculative) is None
    assert "speed-up unknown, the outputs are too short" in comparison_table(comparison, GenerationOptions().resolved())


async def test_json_holds_every_mode() -> None:
    written = json.loads(json.dumps((await compared([20.0], [10.0])).as_dict()))
    assert written["identical"] is True
    assert tuple(written["modes"]) == MODES
    plain, speculative = written["modes"].values()
    assert plain["tokens_per_s"] == pytest.approx(50.0)
    assert speculative["tokens_per_s"] == pytest.approx(100.0)
    assert (plain["speedup"], speculative["speedup"]) == (1.0, pytest.approx(2.0))
    assert (plain["mode"], speculative["mode"]) == MODES


async def test_the_table_lines_up_and_names_the_ratio() -> None:
    lines = comparison_table(await compared([20.0], [10.0]), GenerationOptions().resolved()).splitlines()
    assert len({len(line) for line in lines[:3]}) == 1
    assert lines[0].split() == ["mode", "tokens/s", "ms/token", "first", "token", "accepted", "tokens/round"]
    assert lines[1].split() == ["plain", "50.0", "20.00", "5.0", "ms", "75%", "4.00"]
    assert lines[2].split() == ["sequential", "100.0", "10.00", "5.0", "ms", "75%", "4.00"]
    assert lines[3] == "speed-up over plain: sequential 2.00x; the tokens are identical"
    assert lines[4].startswith("medians of 9 runs each")


ALL_MODES = (*MODES, Mode.PIPELINED)


class PipelinedRuns(Runs):
    """Also of the pipelined mode, which guesses and throws away."""

    def __init__(self) -> None:
        super().__init__([20.0], [10.0])
        pipelined = result(8.0, num_hits=3, num_misses=1, num_discarded_draft_tokens=5)
        self._results[Mode.PIPELINED] = [pipelined]


async def test_every_mode_is_as_often_the_first() -> None:
    runs = PipelinedRuns()
    comparison = await compare(runs, ALL_MODES)
    turns = [tuple(runs.asked[index : index + 3]) for index in range(0, len(runs.asked), 3)]
    assert all(set(turn) == set(ALL_MODES) for turn in turns)
    assert [turn[0] for turn in turns[1:]] == [ALL_MODES[index % 3] for index in range(comparison.num_repetitions)]


async def test_three_modes_side_by_side() -> None:
    comparison = await compare(PipelinedRuns(), ALL_MODES)
    lines = comparison_table(comparison, GenerationOptions().resolved()).splitlines()
    assert len({len(line) for line in lines[:4]}) == 1
    assert lines[0].split()[-2:] == ["hits", "discarded"]
    assert lines[2].split() == ["sequential", "100.0", "10.00", "5.0", "ms", "75%", "4.00", "–", "–"]
    assert lines[3].split() == ["pipelined", "125.0", "8.00", "5.0", "ms", "75%", "4.00", "75%", "5"]
    assert lines[4] == "speed-up over plain: sequential 2.00x, pipelined 2.50x; the tokens are identical"
    written = json.loads(json.dumps(comparison.as_dict()))["modes"]["pipelined"]
    assert (written["hit_rate"], written["num_discarded_draft_tokens"]) == (0.75, 5)
    assert comparison.result.metrics.num_hits == 3


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (Verification.REJECTION, "the tokens differ, as they may"),
        (Verification.COUPLED, "THE TOKENS DIFFER, which must not happen"),
    ],
)
async def test_what_a_difference_means_depends_on_the_rule(rule: Verification, words: str) -> None:
    comparison = await compared([1.0], [1.0], token_ids=(7, 8, 9))
    options = GenerationOptions(temperature=1.0, verification=rule).resolved()
    assert words in comparison_table(comparison, options)
