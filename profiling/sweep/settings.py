"""What the command line of a sweep asks for, checked before anything is loaded.

Owns the options, their defaults and what makes no sense. Knows nothing of running.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from profiling.machine import new_folder
from profiling.prompts import PromptKind, bench_prompts
from runtime import GenerationOptions, LoadSettings, Mode
from runtime import arguments as runtime_arguments

MAX_GAMMA = 15
MODES = (Mode.SEQUENTIAL, Mode.PIPELINED)
_LOAD_NAMES = ("target", "draft", "weights", "threads", "device")
_DEFAULT_MAX_GAMMA = LoadSettings().max_gamma
_NUM_PROMPTS = min(len(bench_prompts(kind)) for kind in PromptKind)


@dataclass(frozen=True, kw_only=True)
class _Extent:
    """How much is measured, unless more or less was asked for."""

    gammas: tuple[int, ...]
    prompts: int
    max_tokens: int


_FULL = _Extent(gammas=(2, 4, 6, 8, 10), prompts=5, max_tokens=96)
_QUICK = _Extent(gammas=(2, 4, 8), prompts=1, max_tokens=32)


@dataclass(frozen=True, kw_only=True)
class SweepSettings:
    """What is measured."""

    load: Mapping[str, Any] = field(default_factory=dict)
    """Keywords of `Runtime.load` that were given: the pair, and how it is loaded."""
    gammas: tuple[int, ...] = _FULL.gammas
    """Ascending, each once."""
    modes: tuple[Mode, ...] = MODES
    temperatures: tuple[float, ...] = (0.0,)
    kinds: tuple[PromptKind, ...] = tuple(PromptKind)
    num_prompts: int = _FULL.prompts
    """Of each kind."""
    max_tokens: int = _FULL.max_tokens
    """Of each answer."""

    @property
    def max_gamma(self) -> int:
        """Most tokens that any round proposes: mode `auto` shall have the choice that it has by default."""
        return max(self.gammas[-1], _DEFAULT_MAX_GAMMA)

    def as_dict(self) -> dict[str, Any]:
        """Every field, ready for JSON."""
        return {
            **{name: self.load.get(name) for name in _LOAD_NAMES},
            "gammas": list(self.gammas),
            "modes": [mode.value for mode in self.modes],
            "temperatures": list(self.temperatures),
            "kinds": [kind.value for kind in self.kinds],
            "prompts": self.num_prompts,
            "max_tokens": self.max_tokens,
        }

    def load_arguments(self) -> list[str]:
        """What was given of the pair, as a command line has it."""
        given = {name: value if isinstance(value, list) else [value] for name, value in self.load.items()}
        return [word for name, values in given.items() for value in values for word in (f"--{name}", str(value))]

    def load_options(self) -> dict[str, Any]:
        """Keywords of `Runtime.load`: one runtime serves every cell."""
        return {
            **self.load,
            # It serves all other modes too, on the same streams.
            "mode": Mode.AUTO.value,
            "max_gamma": self.max_gamma,
            # The report says more than the warning would.
            "acceptance_threshold": 0.0,
        }


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """A checked command line."""

    settings: SweepSettings
    out_dir: Path | None
    plots: bool


def parse_arguments(arguments: Sequence[str] | None = None) -> Arguments:
    """Read and check a command line.

    Raises:
        SystemExit: for usage that cannot be meant, and after `--help`.
    """
    parser = _parser()
    chosen = parser.parse_args(arguments)
    for name, value in asdict(_QUICK if chosen.quick else _FULL).items():
        if getattr(chosen, name) is None:
            setattr(chosen, name, value)
    gammas = tuple(sorted(set(chosen.gammas)))
    if gammas[0] < 1 or gammas[-1] > MAX_GAMMA:
        parser.error(f"--gammas must be 1 to {MAX_GAMMA}, got {' '.join(map(str, chosen.gammas))}")
    if not 1 <= chosen.prompts <= _NUM_PROMPTS:
        parser.error(f"--prompts must be 1 to {_NUM_PROMPTS}, as many as there are of each kind, got {chosen.prompts}")
    longest = max(gammas[-1], _DEFAULT_MAX_GAMMA)
    least_tokens = 2 * (longest + 1)
    if chosen.max_tokens < least_tokens:
        parser.error(
            f"--max-tokens must be at least {least_tokens}, two rounds of gamma {longest}, got {chosen.max_tokens}"
        )
    load = runtime_arguments.load_keywords(vars(chosen))
    if "draft" in load:
        load["draft"] = [draft for text in chosen.draft for draft in text.split(",")]
    settings = SweepSettings(
        load=load,
        gammas=gammas,
        modes=tuple(mode for mode in MODES if mode.value in chosen.modes),
        temperatures=tuple(dict.fromkeys(chosen.temperatures)),
        kinds=tuple(kind for kind in PromptKind if kind.value in chosen.kinds),
        num_prompts=chosen.prompts,
        max_tokens=chosen.max_tokens,
    )
    try:
        for temperature in settings.temperatures:
            GenerationOptions(temperature=temperature)
        if not LoadSettings.from_keywords(settings.load_options()).draft_specs():
            parser.error(f"--draft {','.join(load['draft'])} names no draft, and there is no gamma without one")
    except (TypeError, ValueError) as error:
        parser.error(str(error))
    return Arguments(settings=settings, out_dir=chosen.out_dir, plots=not chosen.no_plots)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m profiling.sweep",
        description="Measure which gamma is the fastest for a pair: speed over plain decoding, acceptance and "
        "milliseconds a token, by kind of prompt and mode, at batch size 1.",
        epilog="exit status: 0 done, 1 failed, or on a CPU an output that is not plain decoding's, 2 wrong usage, "
        "130 interrupted; with --out-dir the same command goes on",
    )
    runtime_arguments.add_load_options(parser.add_argument_group("the pair"), _LOAD_NAMES)
    parser.add_argument(
        "--gammas",
        type=int,
        nargs="+",
        metavar="GAMMA",
        help=f"tokens proposed a round, 1 to {MAX_GAMMA} (default: {_listed('gammas')})",
    )
    parser.add_argument(
        "--modes",
        nargs="+",
        choices=[mode.value for mode in MODES],
        default=[mode.value for mode in MODES],
        help="how rounds are run (default: both); auto is always measured beside them",
    )
    parser.add_argument(
        "--temperatures",
        nargs="+",
        type=float,
        default=[0.0],
        metavar="T",
        help="every prompt is answered at each, with a seed of its own (default: 0)",
    )
    parser.add_argument(
        "--kinds",
        nargs="+",
        choices=[kind.value for kind in PromptKind],
        default=[kind.value for kind in PromptKind],
        help="kinds of prompts (default: all)",
    )
    parser.add_argument(
        "--prompts", type=int, help=f"of each kind, 1 to {_NUM_PROMPTS} (default: {_listed('prompts')})"
    )
    parser.add_argument("--max-tokens", type=int, help=f"of each answer (default: {_listed('max_tokens')})")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="measure less, to see whether it runs at all; too few runs to recommend anything",
    )
    parser.add_argument(
        "--out-dir",
        type=new_folder,
        metavar="DIR",
        help="write JSON, plots and an HTML page there, named by the date; what was measured is kept there meanwhile",
    )
    parser.add_argument("--no-plots", action="store_true", help="leave the plots out, which need matplotlib")
    return parser


def _listed(name: str) -> str:
    full, quick = (getattr(extent, name) for extent in (_FULL, _QUICK))
    if isinstance(full, tuple):
        full, quick = (" ".join(map(str, value)) for value in (full, quick))
    return f"{full}; with --quick {quick}"
