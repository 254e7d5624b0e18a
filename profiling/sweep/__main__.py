"""Which gamma is the fastest for a pair: `python -m profiling.sweep`.

Owns the order of things: what cannot be drawn or gone on with is found out before anything is loaded; then one runtime
answers for all cells, and what was measured is told. `profiling.sweep.report` explains the JSON of the last line.

With `--out-dir` every run is kept in `sweep-unfinished.jsonl` as soon as it is made, and the same command goes on from
there; meanwhile no other sweep may use the folder. When all are made the report is written under a name with the day's
date, and the runs get that name as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tqdm import tqdm

from models import MissingDependencyError, new_figure, write_atomically
from profiling.machine import dated_name, describe_machine
from profiling.program import FAILED, run_program
from profiling.sweep.answering import Answerer
from profiling.sweep.identity import sweep_identity
from profiling.sweep.journal import SweepJournal
from profiling.sweep.lock import folder_lock
from profiling.sweep.page import sweep_page
from profiling.sweep.plots import write_plots
from profiling.sweep.report import SweepReport
from profiling.sweep.run import SweepRun
from profiling.sweep.settings import Arguments, SweepSettings, parse_arguments
from profiling.sweep.turns import complete_turns, measure, sweep_cells, sweep_turns
from runtime import Runtime


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the table, the recommendation and one line of JSON; returns the exit status.

    Raises:
        SlipstreamError: if a model cannot be loaded, a plot not be drawn, or the folder holds or serves another sweep.
    """
    chosen = parse_arguments(arguments)
    if chosen.out_dir is not None and chosen.plots:
        _check_plots()
    try:
        with contextlib.nullcontext() if chosen.out_dir is None else folder_lock(chosen.out_dir):
            return _sweep(chosen)
    except (TypeError, ValueError, OSError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return FAILED


def _sweep(chosen: Arguments) -> int:
    machine, settings, journal = describe_machine(), chosen.settings, None
    if chosen.out_dir is not None:
        journal = SweepJournal(chosen.out_dir, settings.as_dict(), machine, sweep_identity(settings.load))
    try:
        settings, runs, loaded = asyncio.run(_measure(settings, journal))
    except KeyboardInterrupt:
        if journal is not None and journal.runs:
            print(f"{len(journal.runs)} runs are kept in {journal.path}; the same command goes on", file=sys.stderr)
        raise
    report = SweepReport.of(runs, settings=settings, machine=machine, loaded=loaded)
    files = {} if journal is None else _write(report, journal, plots=chosen.plots)
    print(report.as_text())
    print(json.dumps(report.as_dict(files)))
    return FAILED if report.is_broken else 0


def _check_plots() -> None:
    """Find out beforehand, not after an hour of measuring."""
    try:
        new_figure()
    except MissingDependencyError as error:
        raise MissingDependencyError(f"{error}, or give --no-plots") from error


async def _measure(
    asked: SweepSettings, journal: SweepJournal | None
) -> tuple[SweepSettings, list[SweepRun], dict[str, Any]]:
    """What could be measured of what was asked for, all runs, those of an earlier call among them, and what was loaded.

    Raises:
        ValueError: if nothing could.
    """
    async with await Runtime.load(**asked.load_options()) as runtime:
        settings = _served(asked, runtime)
        cells = sweep_cells(settings)
        known = complete_turns(journal.runs, cells) if journal else []
        loaded = json.loads(json.dumps(runtime.description.as_dict()))
        answerer = Answerer(runtime, settings)
        if journal is not None:
            journal.begin(loaded, known)
        total = len(cells) * len(sweep_turns(settings))
        if known:
            print(f"going on: {len(known)} of {total} runs were made before", file=sys.stderr)
        if len(known) < total:
            await answerer.warm_up()
        with contextlib.closing(
            tqdm(total=total, initial=len(known), desc="sweep", unit="run", disable=None, file=sys.stderr)
        ) as progress:

            def record(run: SweepRun) -> None:
                if journal is not None:
                    journal.append(run)
                progress.update()

            runs = await measure(settings, answerer.answer, known=known, prepare=answerer.read, record=record)
    return settings, runs, loaded


def _served(settings: SweepSettings, runtime: Runtime) -> SweepSettings:
    """Without the modes that the runtime does not have: where nothing can overlap there is no pipelined one."""
    left_out = [mode for mode in settings.modes if mode not in runtime.modes]
    if not left_out:
        return settings
    reason = f"nothing can overlap here, so there is no {' or '.join(left_out)} mode to measure"
    modes = tuple(mode for mode in settings.modes if mode in runtime.modes)
    if not modes:
        raise ValueError(f"{reason}; it takes a draft that computes and two --threads, or else --modes sequential")
    print(f"note: {reason}", file=sys.stderr)
    return replace(settings, modes=modes)


def _write(report: SweepReport, journal: SweepJournal, *, plots: bool) -> dict[str, str]:
    """Write everything, the runs' lasting name last: were that not reached, the same command would write it anew."""
    folder = journal.path.parent
    name = dated_name(folder, "sweep")
    pictures = write_plots(report, folder, name) if plots else {}
    paths: dict[str, Path] = {
        "json": folder / f"{name}.json",
        "html": folder / f"{name}.html",
        "jsonl": folder / f"{name}.jsonl",
        **pictures,
    }
    files = {what: str(path) for what, path in paths.items()}
    write_atomically(paths["html"], sweep_page(report, pictures).encode())
    write_atomically(paths["json"], (json.dumps(report.as_dict(files), indent=1) + "\n").encode())
    journal.finish(paths["jsonl"])
    return files


if __name__ == "__main__":
    run_program(main)
