"""Where speculation pays, and where overlap does: `python -m profiling.simulate`.

Owns options, worker processes and files. The loops are real and the clock is virtual (`profiling.simulation`), so no
model and no particular machine is needed.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import signal
import sys
from collections.abc import Sequence
from functools import partial
from multiprocessing.pool import Pool

import torch
from tqdm import tqdm

from models import MissingDependencyError
from profiling.machine import dated_name, new_folder
from profiling.program import run_program
from profiling.simulation_grid import Grid, PointResult, full_grid, groups, quick_grid, simulate_group
from profiling.simulation_plot import write_plot
from profiling.simulation_report import as_json, format_report


def run_grid(grid: Grid, *, num_processes: int) -> list[PointResult]:
    """Simulate all points, in order; each process takes a group of them at a time."""
    work = partial(simulate_group, grid=grid)
    results: list[PointResult] = []
    with (
        _start_workers(num_processes) as pool,
        tqdm(total=len(grid.points), unit="point", disable=not sys.stderr.isatty(), file=sys.stderr) as progress,
    ):
        for group in pool.imap_unordered(work, groups(grid)):
            results += group
            progress.update(len(group))
    return sorted(results, key=lambda result: result.point)


def _start_workers(num_processes: int) -> Pool:
    """Workers that an interrupt from the terminal does not reach: it goes to all processes, and the first ends them."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        return multiprocessing.get_context("spawn").Pool(num_processes, initializer=_prepare_worker)
    finally:
        signal.signal(signal.SIGINT, before)


def _prepare_worker() -> None:
    # Tensors of eight numbers: more threads only wait for each other.
    torch.set_num_threads(1)


def main(arguments: Sequence[str] | None = None) -> int:
    """Simulate the grid, print what it says and write it down."""
    parser = argparse.ArgumentParser(
        prog="python -m profiling.simulate",
        description="Decode on simulated machines: the speed of every mode by draft cost, acceptance and contention.",
    )
    parser.add_argument("--quick", action="store_true", help="a few points on short texts")
    parser.add_argument("--processes", type=int, default=2, metavar="N", help="how many work at once (default: 2)")
    parser.add_argument(
        "--out-dir", type=new_folder, metavar="DIR", help="write JSON and a plot there, named by the date"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of maps")
    chosen = parser.parse_args(arguments)
    if chosen.processes < 1:
        parser.error(f"--processes must be at least 1, got {chosen.processes}")
    grid = quick_grid() if chosen.quick else full_grid()
    results = run_grid(grid, num_processes=chosen.processes)
    written = json.dumps(as_json(results, grid), indent=1)
    print(written if chosen.json else format_report(results))
    if chosen.out_dir is not None:
        name = dated_name(chosen.out_dir, "simulate")
        (chosen.out_dir / f"{name}.json").write_text(written + "\n", encoding="utf-8")
        try:
            write_plot(results, chosen.out_dir / f"{name}.png")
        except MissingDependencyError as error:
            print(f"{error}, or leave out --out-dir", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    run_program(main)
