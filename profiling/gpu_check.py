"""Is everything right on this GPU, and how fast is it: `python -m profiling.gpu_check`.

Owns options and exit status. Correctness comes first, then figures; all with random weights, so that nothing but this
package is needed. The JSON is on disk after every check.

Exit status: 0 if nothing failed, 1 if a check did, 2 without a GPU.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from profiling.gpu_checks.bench import GpuBench
from profiling.gpu_checks.identity import describe_device
from profiling.gpu_checks.plan import ALL_CHECKS
from profiling.gpu_checks.record import Record
from profiling.gpu_checks.runner import Runner
from profiling.machine import describe_machine, new_file
from profiling.program import run_program
from scheduler import DeviceUnavailableError

DEFAULT_MINUTES = 8.0
DEFAULT_FILE = "gpu_check.json"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the checks that were asked for, print a table and write the record."""
    parser = _parser()
    chosen = parser.parse_args(arguments)
    if not chosen.minutes > 0:
        parser.error(f"--minutes must be above 0, got {chosen.minutes:g}")
    path: Path | None = chosen.out
    if path is None and not chosen.dry_run:
        path = Path(DEFAULT_FILE)
    threads = torch.get_num_threads()
    if chosen.dry_run:
        # Tensors of a few hundred numbers: more threads only wait for each other.
        torch.set_num_threads(1)
    try:
        bench = GpuBench.dry() if chosen.dry_run else GpuBench.on_gpu(chosen.device)
        record = Record(machine=describe_machine(), device=describe_device(bench), dry_run=chosen.dry_run, path=path)
        wanted = chosen.only or [check.name for check in ALL_CHECKS]
        runner = Runner(bench, record, minutes=chosen.minutes, tell=_teller())
        runner.run([check for check in ALL_CHECKS if check.name in wanted])
    except DeviceUnavailableError as error:
        print(f"no GPU to check: {error}. `--dry-run` runs the same checks on the CPU.", file=sys.stderr)
        return 2
    finally:
        torch.set_num_threads(threads)
    print(record.table())
    if path is not None:
        print(f"written to {path}")
    return 0 if record.passed else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m profiling.gpu_check",
        description="Check decoding on a GPU, correctness first, then measure it. Needs no checkpoint and no network.",
    )
    parser.add_argument(
        "--minutes",
        type=float,
        default=DEFAULT_MINUTES,
        metavar="M",
        help=f"time for all checks; what does not fit is listed as skipped (default: {DEFAULT_MINUTES:g})",
    )
    parser.add_argument("--dry-run", action="store_true", help="the same program on the CPU, at toy sizes")
    parser.add_argument(
        "--out",
        type=new_file,
        metavar="FILE",
        help=f"where the JSON goes (default: {DEFAULT_FILE}; none for a dry run)",
    )
    parser.add_argument(
        "--only",
        nargs="+",
        choices=[check.name for check in ALL_CHECKS],
        metavar="NAME",
        help="these checks alone: " + ", ".join(check.name for check in ALL_CHECKS),
    )
    parser.add_argument("--device", default="cuda", metavar="DEVICE", help="which GPU (default: cuda)")
    return parser


def _teller() -> Callable[[str], None]:
    """Progress for whoever is watching."""
    if not sys.stderr.isatty():
        return lambda line: None
    return lambda line: print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    run_program(main)
