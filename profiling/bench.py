"""Decoding speed beside other runtimes and beside plain decoding: `python -m profiling.bench`.

Owns the order of the runs and the report. All systems hold the same weights, as far as each reads them; for each
prompt, at each temperature, they run one after the other, in an order that rotates and turns round, and every
comparison is a ratio of two runs on one prompt with one seed; plain decoding runs twice, which shows how
much of a ratio is noise. Each reads the same token ids, reuses nothing of earlier prompts, and writes the
same number of tokens, past any end. What counts is the time a token after the first (`tpot`), so reading the prompt
does not.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from tqdm import tqdm

from models import SlipstreamError
from profiling.bench_aims import format_aims, judge_aims
from profiling.bench_options import BenchSettings, bench_parser, parse_bench
from profiling.bench_plot import write_plot
from profiling.bench_rates_plot import write_rates_plot
from profiling.bench_run import PeerRecord, PeerState, Run
from profiling.bench_sources import Assistant, check_sources
from profiling.bench_speedups import PromptSpeedup, format_speedups, prompt_speedups, summarise_speedups
from profiling.bench_standing import format_standings, standings
from profiling.bench_summary import TEXT_NOTE, SummaryRow, format_decisions, format_peers, format_table, summarise
from profiling.bench_systems import WARM_UP, RunMissingError, System, Turn, line_up
from profiling.machine import describe_machine
from profiling.peers.process import PeerLostError
from profiling.plots import check_plots
from profiling.program import FAILED, run_program
from profiling.prompts import PromptKind, bench_prompts
from profiling.round_cost import format_round_costs, measure_round_costs

_BUSY_SHARE = 0.05
"""A process that takes more of a core while others have their turn slows them down."""


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """All runs, and what is said of the peers."""

    runs: list[Run]
    records: list[PeerRecord]


async def measure(settings: BenchSettings, assistant: Assistant) -> Measurement:
    """Run every system on every prompt, at each number of threads and each temperature."""
    runs: list[Run] = []
    records: list[PeerRecord] = []
    for threads in settings.threads:
        async with AsyncExitStack() as stack:
            prompts = [prompt for kind in PromptKind for prompt in bench_prompts(kind)[: settings.num_prompts]]
            lined_up = await line_up(settings, threads, assistant, prompts, stack)
            lost: dict[str, str] = {}
            missed: dict[str, list[str]] = {}
            warming = Turn(prompt=WARM_UP, index=0, temperature=settings.temperatures[0], seed=0)
            for system in lined_up.systems:
                await _ask(system, warming, lost, {})
            turns = list(_turns(settings, lined_up.systems))
            progress = tqdm(
                total=sum(len(called) for _, called in turns),
                desc=f"{threads} thread(s)",
                unit="run",
                disable=None,
                file=sys.stderr,
            )
            for turn, called in turns:
                for system in called:
                    run = await _ask(system, turn, lost, missed)
                    runs += [] if run is None else [run]
                    progress.update()
            progress.close()
            records += _with_losses(lined_up.records, threads, lost, missed)
    return Measurement(runs=runs, records=records)


async def _ask(system: System, turn: Turn, lost: dict[str, str], missed: dict[str, list[str]]) -> Run | None:
    """One run; None of a system that is lost, is lost by this, or gave no time."""
    if system.name in lost:
        return None
    try:
        return await system.run(turn)
    except RunMissingError as error:
        missed.setdefault(system.name, []).append(f"{turn.prompt.kind} {turn.index}: {error}")
    except PeerLostError as error:
        lost[system.name] = str(error)
    except (SlipstreamError, ValueError, RuntimeError) as error:
        # One of ours: what the others are measured for is not to be lost with it.
        lost[system.name] = " ".join(f"{type(error).__name__}: {error}".split())
    return None


def _with_losses(
    records: Sequence[PeerRecord], threads: int, lost: dict[str, str], missed: dict[str, list[str]]
) -> list[PeerRecord]:
    """The records, and those of our systems that were lost, with what is known by now."""
    known = {record.system for record in records}
    ours = dict.fromkeys(name for name in (*lost, *missed) if name not in known)
    all_records = [
        *records,
        *(PeerRecord(system=name, threads=threads, state=PeerState.MEASURED) for name in ours),
    ]
    return [
        replace(record, state=PeerState.FAILED, reason=lost[record.system])
        if record.system in lost
        else replace(record, state=PeerState.INCOMPLETE, reason="; ".join(missed[record.system]))
        if record.system in missed
        else record
        for record in all_records
    ]


def _turns(settings: BenchSettings, systems: Sequence[System]) -> Iterator[tuple[Turn, list[System]]]:
    """What is asked, and of whom in which order.

    At each temperature the systems take turns at being first, and every other turn goes the other way round, so that
    nobody always follows the same one. Who decodes plainly is asked the same again, at the end of a greedy turn.
    """
    prompts = [
        (index, prompt)
        for kind in PromptKind
        for index, prompt in enumerate(bench_prompts(kind)[: settings.num_prompts])
    ]
    for seed, (index, prompt) in enumerate(prompts):
        for number, temperature in enumerate(settings.temperatures):
            called = [system for system in systems if temperature == 0 or not system.greedy_only]
            if not called:
                continue
            first = (seed + number) // 2 % len(called)
            order = called[first:] + called[:first]
            order = order[::-1] if (seed + number) % 2 else order
            turn = Turn(prompt=prompt, index=index, temperature=temperature, seed=seed)
            yield turn, order
            if temperature == 0:
                yield replace(turn, repeat=1), [system for system in order if system.label.is_plain]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the tables, and print one line of JSON last.

    Raises:
        SlipstreamError: if a model cannot be loaded, or a plot is wanted that cannot be drawn.
    """
    settings, output = parse_bench(arguments)
    if output.folder is not None:
        check_plots("leave out --out-dir")
    try:
        assistant = check_sources(settings)
    except ValueError as error:
        bench_parser().error(str(error))
    machine = describe_machine()
    costs = measure_round_costs(num_rounds=settings.num_rounds) if settings.num_rounds else []
    measured = asyncio.run(measure(settings, assistant))
    rows = summarise(measured.runs)
    speedups = prompt_speedups(measured.runs)
    speedup_rows = summarise_speedups(speedups)
    found = standings(measured.runs)
    aims = judge_aims(found)
    report = {
        "machine": machine,
        "max_tokens": settings.max_tokens,
        "num_prompts": settings.num_prompts,
        "temperatures": settings.temperatures,
        "drafts": {choice.label: choice.sources for choice in settings.drafts},
        "rows": [asdict(row) for row in rows],
        "peers": [asdict(record) for record in measured.records],
        "standings": [standing.as_dict() for standing in found],
        "aims": [{**asdict(result), "outcome": result.outcome} for result in aims],
        "speedups": [row.as_dict() for row in speedup_rows],
        "prompts": [speedup.as_dict() for speedup in speedups],
        "round_costs": [asdict(cost) for cost in costs],
    }
    print(format_table(rows, measured.records))
    if len({(row.owner, row.weights) for row in rows}) > 1:
        print(TEXT_NOTE)
    print("\nSpeed over plain decoding, prompt by prompt:\n" + format_speedups(speedup_rows))
    print("\nWhat was decided where it was left open:\n" + format_decisions(rows))
    if any(record.version for record in measured.records):
        print("\nThe peers, as they ran:\n" + format_peers(measured.records))
    if found:
        print("\nAhead of whom, behind whom, where:\n" + format_standings(found))
        print("\nThe aims:\n" + format_aims(aims))
    for line in _disturbances(measured.runs):
        print(line)
    if costs:
        print("\nThe scheduler's own cost, a round with models that cost nothing:\n" + format_round_costs(costs))
    output.write(json.dumps(report, indent=1), lambda path: _draw(rows, speedups, path))
    print(json.dumps(report))
    return 0 if measured.runs else FAILED


def _draw(rows: Sequence[SummaryRow], speedups: Sequence[PromptSpeedup], path: Path) -> None:
    if speedups:
        write_plot(speedups, path)
    if any(row.temperature == 0 for row in rows):
        write_rates_plot(rows, path.with_name(f"{path.stem}-rates{path.suffix}"))


def _disturbances(runs: Sequence[Run]) -> list[str]:
    """Which systems did not rest while others had their turn."""
    shares: dict[str, float] = {}
    for run in runs:
        told = (
            (run.system, run.idle_cpu_share),
            ("the benchmark's own process, with our systems,", run.bench_cpu_share),
        )
        for system, share in told:
            if share is not None:
                shares[system] = max(share, shares.get(system, 0.0))
    return [
        f"\n{system} took {share:.0%} of a core while others had their turn, which makes those slower than they are"
        for system, share in shares.items()
        if share > _BUSY_SHARE
    ]


if __name__ == "__main__":
    run_program(main)
