"""`python -m tests.fuzz`: seed after seed of every combination, over some processes, until all are played or Ctrl-C.

The last line of the output is one JSON object. The exit status is 0 if nothing was found, 1 if anything was, 130 after
Ctrl-C.
"""

from __future__ import annotations

import argparse
import sys
import time

from tqdm import tqdm

from tests.fuzz.case import Case
from tests.fuzz.noise import precomputed_noise
from tests.fuzz.play import play
from tests.fuzz.tally import Tally
from tests.fuzz.workers import tallies_of

_SECONDS_PER_LINE = 20.0
_MOST_SHOWN = 10
_INTERRUPTED = 130


def main(arguments: list[str] | None = None) -> int:
    """Run the program; returns its exit status."""
    options = _parser().parse_args(arguments)
    if options.case is not None:
        return _replay(options.case)
    tally, num_seeds = Tally(), 0
    started = time.monotonic()
    interrupted = False
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    try:
        with tallies_of(seeds, options.workers, thin=options.thin) as tallies, _Progress(len(seeds)) as progress:
            for found in tallies:
                _show(found, len(tally.failures))
                tally.merge(found)
                num_seeds += 1
                progress.show(tally, num_seeds)
    except KeyboardInterrupt:
        interrupted = True
        print(f"\nstopped; go on with --first-seed {options.first_seed + num_seeds}", file=sys.stderr)
    print(f"{num_seeds} seeds, {tally.counts['runs']} runs, {len(tally.failures)} failures")
    for pattern, distances in tally.sample.distances().items():
        far = [distance for distance in distances if not distance.is_fair]
        print(f"law under rejection, drafts right {pattern}: {'as it should be' if not far else f'NOT the law: {far}'}")
    print(tally.as_json(num_seeds=num_seeds, duration_s=time.monotonic() - started))
    if tally.has_failed:
        return 1
    return _INTERRUPTED if interrupted else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz", description="Play the pipelined loop in every legal order that a seed draws."
    )
    parser.add_argument("--seeds", type=_positive, default=2000, help="seeds to play, 288 combinations each (2000)")
    parser.add_argument(
        "--thin", type=_positive, default=1, help="play every THIN-th pair of gamma and lead of each seed (1: all)"
    )
    parser.add_argument("--first-seed", type=int, default=0, help="where to begin, or to go on (0)")
    parser.add_argument("--workers", type=_positive, default=2, help="processes (2)")
    parser.add_argument("--case", type=_case, help="play one case, as a failure names it: 17/coupled/never/3/2")
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number


def _case(text: str) -> Case:
    try:
        return Case.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _replay(case: Case) -> int:
    print(f"{case}: {case.setup()}")
    for request in case.requests():
        print(f"  {request}")
    with precomputed_noise():
        print(f"  {play(case)}")
    return 0


def _show(found: Tally, num_shown: int) -> None:
    for failure in found.failures[: max(0, _MOST_SHOWN - num_shown)]:
        tqdm.write(str(failure), file=sys.stderr)


class _Progress:
    """A bar on a terminal, else a line every now and then; on stderr."""

    def __init__(self, num_seeds: int) -> None:
        self._num_seeds = num_seeds
        self._bar = tqdm(total=num_seeds, unit="seed", disable=not sys.stderr.isatty())
        self._shown = time.monotonic()

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def show(self, tally: Tally, num_seeds: int) -> None:
        self._bar.set_postfix(runs=tally.counts["runs"], failures=len(tally.failures), refresh=False)
        self._bar.update()
        if self._bar.disable and time.monotonic() - self._shown > _SECONDS_PER_LINE:
            self._shown = time.monotonic()
            print(
                f"{num_seeds} of {self._num_seeds} seeds, {tally.counts['runs']} runs, {len(tally.failures)} failures",
                file=sys.stderr,
            )


if __name__ == "__main__":
    sys.exit(main())
