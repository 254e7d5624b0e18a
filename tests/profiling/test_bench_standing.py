"""Ahead of whom: the ratios, the verdicts and the aims by hand, on made-up runs."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from profiling.bench_aims import AIMS, format_aims, judge_aims
from profiling.bench_run import Run
from profiling.bench_standing import Against, Standing, format_standings, median_noise, standings
from profiling.prompts import PromptKind
from tests.support.bench_labels import label_of

AUTO, PIPELINED = "slipstream float16, auto", "slipstream int8, pipelined"
LLAMA, LLAMA_LOOKUP, LLAMA_LONG = (
    f"llama.cpp Q4_1, {mode}" for mode in ("plain", "prompt lookup 2", "prompt lookup 10")
)


def runs_of(
    system: str, tpots_ms: Sequence[float], *, kind: PromptKind = PromptKind.COPY, threads: int = 1, repeat: int = 0
) -> list[Run]:
    return [
        Run(
            label=label_of(system),
            threads=threads,
            kind=kind,
            prompt=prompt,
            tpot_ms=tpot_ms,
            ttft_ms=1,
            token_ids=(1,),
            repeat=repeat,
        )
        for prompt, tpot_ms in enumerate(tpots_ms)
    ]


def copies() -> list[Run]:
    return [
        *runs_of(AUTO, [10, 10, 10]),
        *runs_of(PIPELINED, [4, 8, 12]),
        *runs_of(LLAMA, [16, 12, 6]),
        *runs_of(LLAMA_LOOKUP, [30, 20, 20]),
        *runs_of(LLAMA_LONG, [40, 40, 10]),
    ]


def found_against(found: Sequence[Standing], against: Against) -> Standing:
    (standing,) = [one for one in found if one.against is against]
    return standing


def test_what_we_choose_is_held_against_each_of_theirs_prompt_by_prompt() -> None:
    """Theirs by the lowest median: the lookup of two tokens, with 20 ms; ours that turned out fastest is beside it."""
    found = standings(copies())
    speculative = found_against(found, Against.SPECULATIVE)
    assert (speculative.own_system, speculative.peer_system) == (AUTO, LLAMA_LOOKUP)
    assert speculative.ratios == (3, 2, 2)
    assert speculative.fastest_system == PIPELINED
    assert speculative.fastest_ratios == (30 / 4, 20 / 8, 20 / 12)
    assert (speculative.median, speculative.fastest_median, speculative.noise) == (2, 2.5, None)
    assert speculative.verdict == "ahead on every prompt"
    plain = found_against(found, Against.PLAIN)
    assert (plain.peer_system, plain.ratios, plain.fastest_median) == (LLAMA, (1.6, 1.2, 0.6), 1.5)
    assert plain.verdict == "ahead"
    best = found_against(found, Against.BEST)
    assert (best.peer_system, best.ratios) == (plain.peer_system, plain.ratios)
    assert {one.kind for one in found} == {PromptKind.COPY}


def test_each_kind_of_weights_stands_for_itself() -> None:
    runs = [*copies(), *runs_of(AUTO.replace("float16", "int8"), [40, 40, 40])]
    results = [result for result in judge_aims(standings(runs)) if result.aim == AIMS[2].text]
    assert [(result.own_system, result.outcome) for result in results] == [
        (AUTO, "met"),
        ("slipstream int8, auto", "missed"),
    ]
    assert {one.fastest_system for one in standings(runs)} == {PIPELINED}


def test_noise_is_what_two_runs_of_one_system_differ_by() -> None:
    """Two ratios of e^0.1 and e^-0.1: one ratio deviates by 0.1, a median of three by sqrt(pi / 6) of that."""
    first = runs_of(LLAMA, [10, 10])
    again = runs_of(LLAMA, [10 * math.exp(0.1), 10 * math.exp(-0.1)], repeat=1)
    assert median_noise([*first, *again], 1, 1) == pytest.approx(math.exp(0.196) - 1)
    assert median_noise([*first, *again], 1, 3) == pytest.approx(math.exp(0.196 * math.sqrt(math.pi / 6)) - 1)
    assert median_noise(first, 1, 3) is None
    assert median_noise([*first, *again], 2, 3) is None

    def verdict(own_ms: float) -> str:
        runs = [*first, *again, *runs_of(AUTO, [own_ms, own_ms])]
        (plain,) = [one for one in standings(runs) if one.against is Against.PLAIN]
        assert plain.ratios == (10 / own_ms, 10 / own_ms)
        return plain.verdict

    assert [verdict(own_ms) for own_ms in (8, 9, 11, 13)] == [
        "ahead on every prompt",
        "level",
        "level",
        "behind on every prompt",
    ]
    (result,) = [one for one in judge_aims(standings([*first, *again, *runs_of(AUTO, [9, 9])])) if one.level]
    assert (result.outcome, result.level) == ("not met, level", ("llama.cpp on copy, x1.11",))
    assert "llama.cpp on copy, x1.11 level" in format_aims([result])


def test_verdicts() -> None:
    def verdict(own: Sequence[float], theirs: Sequence[float]) -> str:
        return found_against(standings([*runs_of(AUTO, own), *runs_of(LLAMA, theirs)]), Against.PLAIN).verdict

    assert verdict([1, 1, 1], [2, 2, 0.5]) == "ahead"
    assert verdict([1, 1, 1], [0.5, 0.5, 2]) == "behind"
    assert verdict([1, 1, 1], [0.5, 0.5, 0.9]) == "behind on every prompt"
    assert verdict([1, 1, 1], [0.5, 1, 2]) == "level"


def test_only_prompts_that_both_answered_are_compared_and_never_across_threads() -> None:
    runs = [*runs_of(AUTO, [10, 10, 10]), *runs_of(LLAMA, [20]), *runs_of(LLAMA, [99], threads=2)]
    (plain,) = [one for one in standings(runs) if one.against is Against.PLAIN]
    assert (plain.threads, plain.ratios) == (1, (2,))
    assert standings(runs_of(LLAMA, [20])) == []
    assert standings(runs_of(AUTO, [20])) == []


def test_aims_are_met_missed_or_not_measured() -> None:
    results = judge_aims(standings(copies()))
    assert [result.aim for result in results] == [aim.text for aim in AIMS]
    speculation, best, plain = results
    assert speculation.outcome == "met where measured"
    assert "llama.cpp on copy" not in speculation.not_measured
    assert "transformers on copy" in speculation.not_measured
    assert best.outcome == "not measured"
    assert (plain.outcome, plain.not_measured) == ("met", ())
    missed = judge_aims(standings([*runs_of(AUTO, [10, 10]), *runs_of(LLAMA, [9, 8])]))[2]
    assert (missed.outcome, missed.missed) == ("missed", ("llama.cpp on copy, x0.85",))
    assert judge_aims([]) == []


def test_tables_have_a_line_for_each() -> None:
    found = standings(copies())
    header, *lines = format_standings(found).splitlines()
    assert (len(lines), len(found)) == (2, 3)
    assert [line.split(LLAMA_LOOKUP if LLAMA_LOOKUP in line else LLAMA)[1].split()[0] for line in lines] == [
        "speculation",
        "plain,",
    ]
    assert header.split()[0] == "threads"
    speculative = next(line for line in lines if LLAMA_LOOKUP in line)
    assert " ".join(speculative.split(AUTO)[1].split()) == f"2.00 2.00 - ahead on every prompt 2.50 ({PIPELINED})"
    assert format_aims(judge_aims(found)).splitlines()[2] == f"1 thread(s), {AUTO}, {AIMS[2].text}: met"
