"""Ahead of whom: the ratios, the verdicts and the aims by hand, on made-up runs."""

from __future__ import annotations

from collections.abc import Sequence

from profiling.bench_run import Run
from profiling.bench_standing import AIMS, Against, Standing, format_aims, format_standings, judge_aims, standings
from profiling.prompts import PromptKind

AUTO, PIPELINED = "slipstream float16, auto", "slipstream int8, pipelined"
LLAMA, LLAMA_LOOKUP, LLAMA_LONG = (
    f"llama.cpp Q4_1, {mode}" for mode in ("plain", "prompt lookup 2", "prompt lookup 10")
)


def runs_of(
    system: str, tpots_ms: Sequence[float], *, kind: PromptKind = PromptKind.COPY, threads: int = 1
) -> list[Run]:
    return [
        Run(system=system, threads=threads, kind=kind, prompt=prompt, tpot_ms=tpot_ms, ttft_ms=1, token_ids=(1,))
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


def test_our_fastest_is_held_against_each_of_theirs_prompt_by_prompt() -> None:
    """By the lowest median: int8 pipelined with 8 ms, their lookup of two tokens with 20."""
    found = standings(copies())
    speculative = found_against(found, Against.SPECULATIVE)
    assert (speculative.own_system, speculative.peer_system) == (PIPELINED, LLAMA_LOOKUP)
    assert speculative.ratios == (30 / 4, 20 / 8, 20 / 12)
    assert (speculative.median, speculative.auto_median) == (2.5, 2.0)
    assert speculative.verdict == "ahead on every prompt"
    plain = found_against(found, Against.PLAIN)
    assert (plain.peer_system, plain.ratios, plain.auto_median) == (LLAMA, (4, 1.5, 0.5), 1.2)
    assert plain.verdict == "ahead"
    best = found_against(found, Against.BEST)
    assert (best.peer_system, best.ratios) == (plain.peer_system, plain.ratios)
    assert {one.kind for one in found} == {PromptKind.COPY}


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
    assert " ".join(speculative.split(PIPELINED)[1].split()) == "2.50 1.67 2.00 ahead on every prompt"
    assert format_aims(judge_aims(found)).splitlines()[2] == f"1 thread(s), {AIMS[2].text}: met"
