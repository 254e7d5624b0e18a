"""What the command line asks for, checked before anything is loaded.

Owns the options' names, their help, and defaults where a first try on a laptop wants other ones than `WritingSettings`
and `TrainingSettings` have. Knows nothing of running.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import NoReturn

from models.close_match import closest_name
from models.distill.settings import Loss, TrainingSettings, WritingSettings
from models.distill.text_kind import TextKind
from models.draft_folder import DraftDesign

PROGRAM = "python -m models.distill"
_TOKENS, _WAVE, _MINUTES = 150_000, 64, 20.0

_DESCRIPTION = """Make a draft for a target: the target writes text, and a few layers learn to foretell it.
No data set is needed. An interrupted run goes on where it was when the same command is given again."""
_EPILOG = f"""examples:
  {PROGRAM} --target ./model --out ./draft --estimate
  {PROGRAM} --target ./model --out ./draft
  {PROGRAM} --target ./model --out ./draft --tokens 2000000 --epochs 4 --own-steps 3
  {PROGRAM} --target ./base-model --out ./draft --kinds text --read-text handbook.md notes.txt

exit status: 0 done, 1 failed, 2 wrong usage, 130 interrupted"""


class UsageError(Exception):
    """The command line asks for something that cannot be meant; the message says what to write instead."""


class Precision(StrEnum):
    """Of matrix products while text is written and drafts are trained."""

    AUTO = "auto"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


class DeviceChoice(StrEnum):
    """Where to compute."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """A checked command line."""

    target: str | None
    """None is the demo model."""
    out: Path
    work: Path
    writing: WritingSettings
    training: TrainingSettings
    kinds_named: bool
    """Whether the kinds were asked for; else those that the target cannot write may be left out."""
    read_files: tuple[Path, ...]
    num_workers: int
    precision: Precision
    device: DeviceChoice
    estimate: bool
    anyway: bool
    """Begin also where memory or disk are too small by the estimate."""
    json: bool


def parse_arguments(argv: Sequence[str] | None = None) -> Arguments:
    """Read and check a command line, that of the process by default.

    Raises:
        UsageError: for unknown options and bad values.
        SystemExit: after printing what `--help` asks for.
    """
    parser = _parser()
    given, left = parser.parse_known_args(argv)
    if left:
        raise UsageError(_explain_left(parser, left))
    minutes = given.minutes
    if minutes is None and given.epochs is None:
        minutes = _MINUTES
    try:
        writing = WritingSettings(
            num_tokens=given.tokens,
            sequence_length=given.sequence_length,
            sequences_per_wave=given.wave,
            kinds=WritingSettings().kinds if given.kinds is None else tuple(dict.fromkeys(map(TextKind, given.kinds))),
            temperatures=tuple(given.temperatures),
            text_files=tuple(path.absolute() for path in given.text),
            seed=given.seed,
        )
        training = TrainingSettings(
            design=DraftDesign(given.design),
            num_layers=given.layers,
            num_head_tokens=given.head_tokens,
            num_epochs=TrainingSettings().num_epochs if given.epochs is None else given.epochs,
            minutes=minutes,
            batch_sequences=given.batch,
            learning_rate=given.learning_rate,
            loss=Loss(given.loss),
            num_own_steps=given.own_steps,
            own_steps_after=given.own_steps_after,
            seed=given.seed,
        )
    except ValueError as error:
        raise UsageError(_with_flag(str(error))) from error
    if given.workers < 1:
        raise UsageError(f"--workers must be at least 1, got {given.workers}")
    return Arguments(
        target=given.target,
        out=given.out,
        work=given.out / ".work" if given.work is None else given.work,
        writing=writing,
        training=training,
        kinds_named=given.kinds is not None,
        read_files=tuple(path.absolute() for path in given.read_text),
        num_workers=given.workers,
        precision=Precision(given.dtype),
        device=DeviceChoice(given.device),
        estimate=given.estimate,
        anyway=given.anyway,
        json=given.json,
    )


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog=PROGRAM,
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--target", metavar="MODEL", help="a folder, a hub id or a GGUF file (default: the demo model)")
    parser.add_argument("--out", metavar="DIR", type=Path, required=True, help="where the draft will lie")
    parser.add_argument(
        "--work", metavar="DIR", type=Path, help="written text and checkpoints, kept to go on from (default: OUT/.work)"
    )
    _add_text_options(parser.add_argument_group("the text"))
    _add_training_options(parser.add_argument_group("the draft and its training"))
    _add_machine_options(parser.add_argument_group("the machine"))
    return parser


def _add_text_options(group: argparse._ArgumentGroup) -> None:
    defaults = WritingSettings()
    _add(group, "--tokens", int, _TOKENS, "tokens that the target writes")
    _add(group, "--sequence-length", int, defaults.sequence_length, "tokens of each text")
    _add(group, "--wave", int, _WAVE, "texts that each worker writes side by side")
    group.add_argument(
        "--kinds",
        nargs="+",
        choices=list(TextKind),
        help=f"what is written (default: {' '.join(defaults.kinds)}; text for a target without a chat template)",
    )
    group.add_argument(
        "--temperatures",
        nargs="+",
        type=float,
        metavar="X",
        default=list(defaults.temperatures),
        help="of answers, in turn (default: 1)",
    )
    group.add_argument(
        "--text",
        nargs="+",
        type=Path,
        metavar="FILE",
        default=[],
        help="text files that requests quote from (default: Python's own modules)",
    )
    group.add_argument(
        "--read-text",
        nargs="+",
        type=Path,
        metavar="FILE",
        default=[],
        help="text files to learn as they are, beside what the target writes: reading is several times faster",
    )


def _add_training_options(group: argparse._ArgumentGroup) -> None:
    defaults = TrainingSettings()
    budget = group.add_mutually_exclusive_group()
    budget.add_argument(
        "--minutes", type=float, metavar="X", help=f"how long to train (default: {_MINUTES:g}, without --epochs)"
    )
    budget.add_argument("--epochs", type=float, metavar="X", help="passes over the text instead")
    designs = [design.value for design in DraftDesign]
    group.add_argument(
        "--design",
        choices=designs,
        default=defaults.design.value,
        help=f"what the draft reads: tokens, or the target's hidden states too (default: {defaults.design.value})",
    )
    _add(group, "--layers", int, defaults.num_layers, "decoder layers of the draft")
    _add(group, "--head-tokens", int, defaults.num_head_tokens, "most frequent tokens that it can propose; 0 for all")
    _add(group, "--own-steps", int, defaults.num_own_steps, "proposals in a row that a feature draft is trained for")
    _add(group, "--own-steps-after", float, defaults.own_steps_after, "share of the training before these come in")
    group.add_argument(
        "--loss",
        choices=list(Loss),
        default=defaults.loss,
        help=f"forward KL divergence or total variation (default: {defaults.loss})",
    )
    _add(group, "--learning-rate", float, defaults.learning_rate, "the highest one")
    _add(group, "--batch", int, defaults.batch_sequences, "texts of a training step")


def _add_machine_options(group: argparse._ArgumentGroup) -> None:
    _add(group, "--seed", int, 0, "of all draws")
    group.add_argument(
        "--workers", type=int, metavar="N", default=num_cores(), help="cores to use on a CPU (default: all)"
    )
    group.add_argument(
        "--dtype",
        choices=list(Precision),
        default=Precision.AUTO,
        help="of matrix products; auto is bfloat16 on CUDA and float32 on a CPU, where bfloat16 is "
        "faster if the processor has AMX units for it",
    )
    group.add_argument(
        "--device", choices=list(DeviceChoice), default=DeviceChoice.AUTO, help="auto is CUDA where torch can use it"
    )
    group.add_argument(
        "--estimate", action="store_true", help="say how long it takes and how much memory and disk, and end"
    )
    group.add_argument("--anyway", action="store_true", help="begin although memory or disk seem too small")
    group.add_argument("--json", action="store_true", help="print the result as one JSON object")


def _add(
    group: argparse._ArgumentGroup, flag: str, kind: type[int] | type[float], default: float, description: str
) -> None:
    group.add_argument(
        flag,
        type=kind,
        metavar="N" if kind is int else "X",
        default=default,
        help=f"{description} (default: {default:{',' if kind is int else 'g'}})",
    )


_FLAGS = {
    "num_tokens": "--tokens",
    "sequence_length": "--sequence-length",
    "sequences_per_wave": "--wave",
    "temperatures": "--temperatures",
    "num_layers": "--layers",
    "num_head_tokens": "--head-tokens",
    "num_epochs": "--epochs",
    "minutes": "--minutes",
    "batch_sequences": "--batch",
    "learning_rate": "--learning-rate",
    "num_own_steps": "--own-steps",
    "own_steps_after": "--own-steps-after",
    "seed": "--seed",
}
"""What the settings' fields are called on the command line."""


def _with_flag(message: str) -> str:
    field, _, rest = message.partition(" ")
    return f"{_FLAGS.get(field, field)} {rest}"


def _explain_left(parser: argparse.ArgumentParser, left: Sequence[str]) -> str:
    """What is wrong with arguments that no option took."""
    name = next((argument.partition("=")[0] for argument in left if argument.startswith("-")), None)
    if name is None:
        return f"{left[0]!r} belongs to no option; {PROGRAM} --help lists them"
    close = closest_name(name, parser.format_help().split())
    return f"unknown option {name}" + (f" (did you mean {close}?)" if close else f"; {PROGRAM} --help lists them")
