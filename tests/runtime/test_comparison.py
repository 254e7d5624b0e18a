"""The order of a comparison's runs, what is made of their times, and how it reads."""

from __future__ import annotations

import json

import pytest

from runtime import FinishReason, GenerationOptions, GenerationResult, Metrics, Mode, Verification
from runtime.comparison import Comparison, compare
from runtime.report import comparison_table

MODES = (Mode.PLAIN, Mode.SEQUENTIAL)


def result(tpot_ms: float, *, token_ids: tuple[int, ...] = (1, 2, 3), ttft_ms: float = 5.0) -> GenerationResult:
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
    return await compare(Runs(plain_ms, speculative_ms, **changes), Mode.SEQUENTIAL)


async def test_modes_run_in_turn_and_the_first_runs_do_not_count() -> None:
    runs = Runs([900.0, 20.0], [800.0, 10.0])
    comparison = await compare(runs, Mode.SEQUENTIAL)
    assert comparison.num_repetitions >= 3
    timed = [tuple(runs.asked[index : index + 2]) for index in range(2, len(runs.asked), 2)]
    assert tuple(runs.asked[:2]) == MODES
    assert timed == [MODES if index % 2 == 0 else MODES[::-1] for index in range(comparison.num_repetitions)]
    assert comparison.plain.tpot_ms == pytest.approx(20.0)
    assert comparison.speculative.tpot_ms == pytest.approx(10.0)


async def test_figures_are_medians_and_the_speedup_is_their_ratio() -> None:
    long = 10_000.0  # so long a pair leaves room for three runs of each
    comparison = await compared([long, 30.0, 10.0, 20.0], [long, 1000.0, 5.0, 8.0])
    assert comparison.num_repetitions == 3
    assert comparison.plain.tpot_ms == pytest.approx(20.0)
    assert comparison.plain.tokens_per_s == pytest.approx(50.0)
    assert comparison.speculative.tpot_ms == pytest.approx(8.0)
    assert comparison.speedup == pytest.approx(2.5)
    assert comparison.speculative.draft_acceptance_rate == 0.75
    assert comparison.speculative.mean_acceptance_length == 4.0
    assert comparison.result.metrics.tpot_ms == pytest.approx(8.0)


async def test_short_outputs_are_repeated_more_often_but_not_endlessly() -> None:
    assert (await compared([1.0], [1.0])).num_repetitions == 9
    assert (await compared([600.0], [600.0])).num_repetitions == 6


async def test_one_run_that_differs_is_noticed() -> None:
    assert (await compared([1.0], [1.0])).identical
    runs = Runs([1.0] * 20, [1.0] * 20)
    runs._results[Mode.PLAIN][5] = result(1.0, token_ids=(1, 2, 4))
    assert not (await compare(runs, Mode.SEQUENTIAL)).identical


async def test_the_first_runs_can_be_shown() -> None:
    shown, timed = Runs([1.0], [1.0]), Runs([1.0], [1.0])
    await compare(timed, Mode.SEQUENTIAL, warm_up=shown)
    assert tuple(shown.asked) == MODES
    assert tuple(timed.asked[:2]) == MODES


async def test_outputs_of_one_token_have_no_speed() -> None:
    comparison = await compared([1.0], [1.0], token_ids=(1,))
    assert comparison.plain.tokens_per_s is None
    assert comparison.speedup is None
    assert "speed-up unknown, the outputs are too short" in comparison_table(comparison, GenerationOptions().resolved())


async def test_json_holds_both_sides() -> None:
    written = json.loads(json.dumps((await compared([20.0], [10.0])).as_dict()))
    assert written["speedup"] == pytest.approx(2.0)
    assert written["identical"] is True
    assert written["plain"]["tokens_per_s"] == pytest.approx(50.0)
    assert written["speculative"]["tokens_per_s"] == pytest.approx(100.0)
    assert (written["plain"]["mode"], written["speculative"]["mode"]) == MODES


async def test_the_table_lines_up_and_names_the_ratio() -> None:
    lines = comparison_table(await compared([20.0], [10.0]), GenerationOptions().resolved()).splitlines()
    assert len({len(line) for line in lines[:3]}) == 1
    assert lines[0].split() == ["mode", "tokens/s", "ms/token", "first", "token", "accepted", "tokens/round"]
    assert lines[1].split() == ["plain", "50.0", "20.00", "5.0", "ms", "75%", "4.00"]
    assert lines[2].split() == ["sequential", "100.0", "10.00", "5.0", "ms", "75%", "4.00"]
    assert lines[3] == "speed-up 2.00x; the tokens are identical"
    assert lines[4].startswith("medians of 9 runs each")


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
