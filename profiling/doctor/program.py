"""The command line of `python -m profiling.doctor`.

Owns options, progress and exit status. Knows nothing of single checks.

Exit status: 0 if nothing failed, 1 if a check did or the target cannot be loaded, 2 for wrong usage, 130 if
interrupted.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

from tqdm import tqdm

from models import BaseConsole, SlipstreamError
from profiling.doctor.check import Check, CheckResult, Verdict, worst
from profiling.doctor.effort import FULL, QUICK
from profiling.doctor.examination import examine
from profiling.doctor.loaded_pair import load_pair
from profiling.doctor.plan import ALL_CHECKS
from profiling.doctor.report import as_json, listing, table
from profiling.machine import describe_machine
from runtime import LoadSettings
from runtime import arguments as runtime_arguments

PROGRAM = "python -m profiling.doctor"
DONE, FAILED = 0, 1
_MOST_COLUMNS = 120
_LOAD_NAMES = ("target", "draft", "mode", "gamma", "max_gamma", "weights", "threads", "device", "context_length")


@dataclass(kw_only=True)
class _Examination:
    """What is known so far."""

    results: list[CheckResult] = field(default_factory=list)
    pair: dict[str, object] = field(default_factory=dict)
    interrupted: bool = False
    error: str | None = None
    """Why nothing could be loaded."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Load the pair, run the checks, print what they found.

    Raises:
        SlipstreamError: if the target cannot be loaded.
        KeyboardInterrupt: if interrupted, after printing what was found so far.
    """
    parser = _parser()
    chosen = parser.parse_args(arguments)
    width = min(_MOST_COLUMNS, shutil.get_terminal_size().columns)
    if chosen.list:
        print(listing(ALL_CHECKS, width=width))
        return DONE
    try:
        settings = _settings(chosen)
    except (TypeError, ValueError) as error:
        parser.error(str(error))
    checks = [check for check in ALL_CHECKS if not chosen.only or check.name in chosen.only]
    examination = _Examination()
    console = BaseConsole()
    # Before anything runs, so that the load is the machine's and not ours.
    machine = describe_machine()
    try:
        with console.warnings_shown():
            asyncio.run(_examine(settings, checks, examination, quick=chosen.quick))
    except SlipstreamError as error:
        examination.error = None if examination.pair else _in_a_line(error)
        raise
    except ValueError as error:
        if examination.pair:
            raise
        # What was asked for is not to be had from this model or device.
        examination.error = _in_a_line(error)
        parser.error(examination.error)
    except KeyboardInterrupt:
        examination.interrupted = True
        raise
    finally:
        if examination.results or examination.interrupted:
            console.result(table(examination.results, width=width, coloured=_is_coloured()))
        if chosen.json and (examination.results or examination.interrupted or examination.error):
            console.result(
                as_json(
                    examination.results,
                    machine=machine,
                    pair=examination.pair,
                    quick=chosen.quick,
                    interrupted=examination.interrupted,
                    error=examination.error,
                )
            )
    verdict = worst(result.finding.verdict for result in examination.results)
    return FAILED if verdict is Verdict.FAIL else DONE


async def _examine(settings: LoadSettings, checks: Sequence[Check], examination: _Examination, *, quick: bool) -> None:
    with tqdm(total=len(checks), desc="loading", unit="check", disable=None, file=sys.stderr, leave=False) as progress:
        pair = await load_pair(settings, QUICK if quick else FULL)
        try:
            examination.pair = {**pair.runtime.description.as_dict(), "mismatch": pair.mismatch}

            def put(result: CheckResult) -> None:
                examination.results.append(result)
                progress.update()

            await examine(pair, checks, put=put, tell=progress.set_description)
        finally:
            await pair.close()


def _settings(chosen: argparse.Namespace) -> LoadSettings:
    load = runtime_arguments.load_keywords(vars(chosen))
    if "draft" in load:
        load["draft"] = [draft for text in chosen.draft for draft in text.split(",")]
    # Drafts are heard here whether they are right or not, which needs no warning beside the check's verdict.
    return LoadSettings.from_keywords({**load, "acceptance_threshold": 0.0})


def _in_a_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _is_coloured() -> bool:
    return sys.stdout is not None and sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description="Find out why speculation is slow, or wrong, on this pair and machine: each check says what it "
        "measured, what that means and what to do.",
        epilog="exit status: 0 nothing failed, 1 a check failed or the target cannot be loaded, 2 wrong usage, 130 "
        "interrupted",
        allow_abbrev=False,
    )
    runtime_arguments.add_load_options(parser.add_argument_group("the pair"), _LOAD_NAMES)
    parser.add_argument(
        "--quick", action="store_true", help="fewer prompts and shorter texts: less than a minute on the demo model"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object on one line last")
    parser.add_argument(
        "--only",
        nargs="+",
        choices=[check.name for check in ALL_CHECKS],
        metavar="CHECK",
        help="these checks alone; --list names them",
    )
    parser.add_argument("--list", action="store_true", help="list the checks and what they are for")
    return parser
