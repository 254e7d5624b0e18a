"""What the command line of `python -m profiling.trace` asks for, checked before anything is loaded.

Owns the options, the names of the files that come of `--out`, and what cannot be combined. Knows nothing of running.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from profiling.machine import new_file
from profiling.trace.nsys import REPORT_ENDING, UNDER_NSYS
from runtime import GenerationOptions, LoadSettings, Mode
from runtime import arguments as runtime_arguments
from scheduler import check_number

PROGRAM = "python -m profiling.trace"
DEFAULT_PROMPT = "Write a Python function that returns the n-th Fibonacci number, and explain it."
"""The demo model's draft is right about it now and then: the trace has hits, misses and rollbacks."""
DEFAULT_MAX_TOKENS = 64
DEFAULT_NAME = "slipstream-trace"
JSON_ENDINGS = (".json.gz", ".json")
NO_CONTENTION = 1.0

_OVERLAP_OPTIONS = ("max_lead", "num_awaited")
_LOAD_OPTIONS = ("target", "draft", "mode", "gamma", *_OVERLAP_OPTIONS, "weights", "threads", "device")
_DESCRIPTION = """Record one request and see it: a trace of every launch and round, and where the time went.
Loading and a request that warms up come before it and are not in the trace.
With Nsight Systems (nsys) on PATH and a GPU the trace is a report of that; else it is a Chrome trace."""
_EPILOG = f"""examples:
  {PROGRAM}
  {PROGRAM} --out run.json.gz --mode sequential --prompt "Why is the sky blue?"
  {PROGRAM} --print-command --cuda-graph-trace

exit status: 0 done, 1 failed, 2 wrong usage, 130 interrupted; that of nsys where it failed"""


class StreamKind(StrEnum):
    """What the lanes run on, where it is not left to the device."""

    THREADS = "threads"
    """Worker threads of the CPU."""
    VIRTUAL = "virtual"
    """A virtual clock, by which each call takes what it was measured to take alone."""


@dataclass(frozen=True, kw_only=True)
class TraceArguments:
    """A checked command line."""

    settings: LoadSettings
    prompt: str
    max_tokens: int
    out: Path
    picture: Path | None
    """Where a picture of some rounds goes."""
    rounds: tuple[int, int] | None
    """Numbers of its first and its last round; None takes some that show much."""
    streams: StreamKind | None
    contention: float
    """On virtual streams: how many times longer a lane takes beside the other."""
    torch: bool
    """Whether torch's own profiler is to record the request once more."""
    print_command: bool
    no_nsys: bool
    under_nsys: bool
    """Whether this process is the one that nsys watches."""
    cuda_graph_trace: bool
    json: bool

    @property
    def report_path(self) -> Path:
        """Where nsys writes to: `out`, with nsys's own ending."""
        return self.out.with_name(self._stem + REPORT_ENDING)

    @property
    def chrome_path(self) -> Path:
        """Where a Chrome trace goes: `out`, unless it ends as a report of nsys does, or in nothing."""
        keeps_name = self.out.suffix and not self.out.name.endswith(REPORT_ENDING)
        return self.out if keeps_name else self.out.with_name(self._stem + JSON_ENDINGS[-1])

    @property
    def torch_path(self) -> Path:
        """Where the trace of torch's profiler goes: beside the Chrome trace."""
        return self.out.with_name(f"{self._stem}.torch{JSON_ENDINGS[0]}")

    @property
    def _stem(self) -> str:
        name = self.out.name
        ending = next((ending for ending in (REPORT_ENDING, *JSON_ENDINGS) if name.endswith(ending)), "")
        return name.removesuffix(ending) or DEFAULT_NAME


def parse_arguments(argv: Sequence[str] | None = None) -> TraceArguments:
    """Read and check a command line, that of the process by default.

    Raises:
        SystemExit: after printing what is wrong with the usage, or what `--help` asks for.
    """
    parser = _parser()
    given = vars(parser.parse_args(argv))
    if given["rounds"] is not None:
        given["rounds"] = tuple(given["rounds"])
    load = {"mode": Mode.PIPELINED.value, **runtime_arguments.load_keywords(given)}
    try:
        if given["streams"] is not None:
            load["device"] = _device_of_streams(given["streams"], load.get("device"))
        settings = LoadSettings.from_keywords(load)
        GenerationOptions(max_tokens=given["max_tokens"])
        check_number("--contention", given["contention"], low=1.0, high=1e3, advice="1 is no slow-down")
        _check_overlap(load, settings.mode)
        _check_prompt(given["prompt"])
    except (TypeError, ValueError) as error:
        parser.error(str(error))
    arguments = TraceArguments(
        settings=settings, **{name: value for name, value in given.items() if name not in _LOAD_OPTIONS}
    )
    if problem := _contradiction(arguments):
        parser.error(problem)
    try:
        for path in (arguments.report_path, arguments.chrome_path, *((arguments.torch_path,) * arguments.torch)):
            new_file(str(path))
    except argparse.ArgumentTypeError as error:
        parser.error(f"argument --out: {error}")
    return arguments


def _device_of_streams(streams: StreamKind, device: str | None) -> str:
    if device not in (None, "auto", "cpu"):
        raise ValueError(f"--streams {streams.value} runs on the CPU, not on {device}; leave out one of them")
    return "cpu"


def _check_overlap(load: Mapping[str, object], mode: Mode) -> None:
    name = next((name for name in _OVERLAP_OPTIONS if name in load), None)
    if name is not None and not mode.overlaps:
        raise ValueError(f"--{name.replace('_', '-')} has no meaning in {mode.value} mode; leave out one of them")


def _check_prompt(prompt: str) -> None:
    if not prompt.strip():
        raise ValueError("--prompt is empty; give some text, or leave it out")
    try:
        prompt.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"--prompt is not text that UTF-8 can write: {error}") from error


def _contradiction(arguments: TraceArguments) -> str | None:
    without = next((flag for flag, given in _without_nsys(arguments).items() if given), None)
    only_nsys = {"--print-command": arguments.print_command, "--cuda-graph-trace": arguments.cuda_graph_trace}
    for flag, given in only_nsys.items():
        if given and without:
            return f"{flag} is for nsys, and {without} does without; leave out one of them"
    if arguments.print_command and arguments.json:
        return "--print-command prints a command line and no figures; leave out it or --json"
    if problem := _rounds_problem(arguments) or _picture_problem(arguments):
        return problem
    if arguments.contention != NO_CONTENTION and arguments.streams is not StreamKind.VIRTUAL:
        return f"--contention is for simulated lanes; add --streams {StreamKind.VIRTUAL.value}, or leave it out"
    return None


def _rounds_problem(arguments: TraceArguments) -> str | None:
    if arguments.rounds is None:
        return None
    first, last = arguments.rounds
    if arguments.picture is None:
        return "--rounds says what the picture shows; add --picture FILE, or leave it out"
    if not 0 <= first <= last:
        return f"--rounds must name a first and a last round, counted from 0, got {first} and {last}"
    return None


def _picture_problem(arguments: TraceArguments) -> str | None:
    if arguments.picture is None:
        return None
    others = [arguments.report_path, arguments.chrome_path, *((arguments.torch_path,) * arguments.torch)]
    if arguments.picture.resolve() in [path.resolve() for path in others]:
        return f"--picture {arguments.picture} is where the trace goes; give one of them another name"
    return None


def _without_nsys(arguments: TraceArguments) -> dict[str, bool]:
    """The options that make no use of nsys, and whether they were given."""
    return {
        "--no-nsys": arguments.no_nsys,
        "--torch": arguments.torch,
        "--streams": arguments.streams is not None,
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--out",
        type=new_file,
        metavar="FILE",
        default=Path(DEFAULT_NAME),
        help=f"the trace; an existing one is replaced, and a name in .gz is compressed (default: {DEFAULT_NAME}.json, "
        f"or {DEFAULT_NAME}{REPORT_ENDING} of nsys)",
    )
    parser.add_argument(
        "--prompt", metavar="TEXT", default=DEFAULT_PROMPT, help="what is asked (default: a function in Python)"
    )
    parser.add_argument(
        "--max-tokens",
        type=int,
        metavar="N",
        default=DEFAULT_MAX_TOKENS,
        help=f"most tokens of the answer (default: {DEFAULT_MAX_TOKENS})",
    )
    runtime_arguments.add_load_options(
        parser.add_argument_group("models and decoding"), _LOAD_OPTIONS, defaults={"mode": Mode.PIPELINED.value}
    )
    group = parser.add_argument_group("how it is traced")
    group.add_argument(
        "--streams",
        type=StreamKind,
        choices=list(StreamKind),
        default=None,
        help="what the lanes run on: threads of the CPU, or a virtual clock, by which each call takes what it was "
        "measured to take alone (default: what the device has)",
    )
    group.add_argument(
        "--contention",
        type=float,
        metavar="FACTOR",
        default=NO_CONTENTION,
        help="with --streams virtual: how many times longer either lane takes beside the other (default: 1)",
    )
    group.add_argument(
        "--picture", type=new_file, metavar="FILE", default=None, help="also draw some rounds, as .png, .svg or .pdf"
    )
    group.add_argument(
        "--rounds",
        type=int,
        nargs=2,
        metavar=("A", "B"),
        default=None,
        help="with --picture: the first and the last round to draw (default: a few that show a hit, a miss and its "
        "rollback)",
    )
    group.add_argument(
        "--torch",
        action="store_true",
        help="have torch's profiler record the same request once more, into a file of its own; without nsys",
    )
    group.add_argument("--no-nsys", action="store_true", help="write a Chrome trace even where there is nsys")
    group.add_argument(
        "--cuda-graph-trace", action="store_true", help="have nsys look into CUDA graphs, node by node; costs more"
    )
    group.add_argument("--print-command", action="store_true", help="print the command line for nsys, and run nothing")
    group.add_argument("--json", action="store_true", help="print the figures as one JSON object on the last line")
    group.add_argument(UNDER_NSYS, dest="under_nsys", action="store_true", help=argparse.SUPPRESS)
    return parser
