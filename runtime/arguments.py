"""What the command line asks for, checked before anything is loaded.

Owns the options' names, their help and the combinations that make no sense. Defaults are those of `LoadSettings` and
`GenerationOptions`, read from there. Knows nothing of running.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NoReturn

from models import WeightKind, closest_name
from runtime.load_settings import ADAPTIVE, MAX_GAMMA, MAX_LEAD, LoadSettings, Mode
from runtime.metrics_server import LOCALHOST, MAX_PORT
from runtime.options import GenerationOptions
from scheduler import Verification

PROGRAM = "python -m runtime"
EXAMPLE = f'{PROGRAM} "Why is the sky blue?"'
STANDARD_INPUT = "-"

_DESCRIPTION = """Ask a model: the answer streams to standard output, a summary follows on standard error.
Without --target it is the small demo model, fetched once."""
_EPILOG = f"""examples:
  {EXAMPLE}
  {PROGRAM} --compare --max-tokens 200 "Write a haiku about rivers, then repeat it."
  {PROGRAM} --chat --system "Answer in one sentence."
  {PROGRAM} --chat --metrics-port 9400
  {PROGRAM} --target ./model --draft ./small-model --temperature 0.8 --seed 1 --json - < prompt.txt

exit status: 0 done, 1 failed, 2 wrong usage, 130 interrupted"""


class UsageError(Exception):
    """The command line asks for something that cannot be meant; the message says what to write instead."""


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """A checked command line."""

    prompt: str | None
    """Text, `-` for standard input, or None."""
    load: dict[str, Any]
    """Keywords of `Runtime.load` that were given."""
    options: GenerationOptions
    compare: bool
    chat: bool
    json: bool
    raw: bool
    system: str | None
    metrics_port: int | None
    """Where metrics are served meanwhile: a port, 0 for a free one, or None for nowhere."""
    uvloop: bool


def parse_arguments(argv: Sequence[str] | None = None) -> Arguments:
    """Read and check a command line, that of the process by default.

    Raises:
        UsageError: for unknown options, bad values and combinations that make no sense.
        SystemExit: after printing what `--help` or `--version` asks for.
    """
    known, left = _parser().parse_known_args(argv)
    if left:
        raise UsageError(_explain_left(left))
    given = vars(known)
    load = load_keywords(given)
    chosen = {name: given[name] for name in _GENERATION_OPTIONS if name in given}
    try:
        settings = LoadSettings.from_keywords(load)
        options = GenerationOptions.from_keywords(chosen)
    except (TypeError, ValueError) as error:
        raise UsageError(str(error)) from error
    arguments = Arguments(
        load=load,
        options=options,
        **{name: given[name] for name in ("prompt", *_ACTIONS, "system", "metrics_port", "uvloop")},
    )
    _check_combinations(arguments, settings)
    return arguments


def add_load_options(
    group: argparse._ArgumentGroup, names: Sequence[str], *, defaults: Mapping[str, str] | None = None
) -> None:
    """Let another program's command line take options of `Runtime.load`; `load_keywords` reads them.

    Args:
        group: where they go.
        names: of fields of `LoadSettings`.
        defaults: what its help calls the default of a field, where it has one of its own.
    """
    changed = defaults or {}
    options = {name: _LOAD_OPTIONS[name] for name in names}
    options |= {name: dataclasses.replace(options[name], default=default) for name, default in changed.items()}
    _add_options(group, LoadSettings, options)


def load_keywords(given: Mapping[str, Any]) -> dict[str, Any]:
    """Keywords of `Runtime.load`, of all that was given on a command line."""
    load = {name: given[name] for name in _LOAD_OPTIONS if name in given}
    if len(load.get("draft", ())) == 1:
        load["draft"] = load["draft"][0]
    return load


def _check_combinations(arguments: Arguments, settings: LoadSettings) -> None:
    if arguments.prompt is not None and not arguments.prompt.strip():
        raise UsageError(f"the prompt is empty; give one, as in: {EXAMPLE}")
    if arguments.chat:
        if arguments.prompt == STANDARD_INPUT:
            raise UsageError("--chat reads its messages from standard input already; leave out '-'")
        for name in ("compare", "raw"):
            if getattr(arguments, name):
                raise UsageError(f"--chat and --{name} cannot be combined; leave out one of them")
    if arguments.raw and arguments.system is not None:
        raise UsageError("--raw sends the prompt alone, so --system has no place in it; leave out one of them")
    if arguments.compare and not settings.draft_specs():
        raise UsageError("--compare needs speculation to compare with; leave out '--mode plain' or '--draft none'")
    for name in ("max_lead", "num_awaited"):
        if name in arguments.load and not settings.mode.overlaps:
            raise UsageError(
                f"{_flag(name)} has no meaning in {settings.mode.value} mode; leave out '--mode {settings.mode.value}'"
            )
    if arguments.options.logprobs is not None and not arguments.json:
        raise UsageError("--logprobs are reported in the JSON object; add --json")


def _explain_left(left: Sequence[str]) -> str:
    """What is wrong with arguments that no option took."""
    name = next((argument.partition("=")[0] for argument in left if argument.startswith("-")), None)
    if name is None:
        return f"more than one prompt: {left[0]!r} is too much; put the prompt in quotes, as in: {EXAMPLE}"
    others = ("help", "version", *_ACTIONS, "system", "metrics_port", "no_uvloop")
    known = [_flag(option) for option in (*_LOAD_OPTIONS, *_GENERATION_OPTIONS, *others)]
    close = closest_name(name, known)
    return f"unknown option {name}" + (f" (did you mean {close}?)" if close else f"; {PROGRAM} --help lists them")


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog=PROGRAM,
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    parser.add_argument(
        "prompt", nargs="?", default=None, help=f"what to ask; '{STANDARD_INPUT}' reads it from standard input"
    )
    parser.add_argument("--version", action="version", version=f"slipstream {_version()}")
    _add_options(parser.add_argument_group("models and decoding"), LoadSettings, _LOAD_OPTIONS)
    _add_options(parser.add_argument_group("the answer"), GenerationOptions, _GENERATION_OPTIONS)
    group = parser.add_argument_group("what to do")
    for name, text in _ACTIONS.items():
        group.add_argument(_flag(name), action="store_true", default=False, help=text)
    group.add_argument(
        "--system", metavar="TEXT", default=None, help="system message of the conversation (default: none)"
    )
    group.add_argument(
        "--metrics-port",
        metavar="PORT",
        type=_port,
        default=None,
        help=f"serve Prometheus metrics on http://{LOCALHOST}:PORT/metrics as long as the program runs; 0 takes a free "
        "port (default: none)",
    )
    group.add_argument(
        "--no-uvloop", dest="uvloop", action="store_false", default=True, help="run on asyncio's own event loop"
    )
    return parser


@dataclass(frozen=True, kw_only=True)
class _Option:
    """How a field of the settings is written on the command line."""

    help: str
    metavar: str | None = None
    type: Callable[[str], object] = str
    choices: tuple[str, ...] | None = None
    repeatable: bool = False
    flag: bool = False
    default: str | None = None
    """What the default is called where its value says too little."""


def _gamma(text: str) -> int | str:
    if text == ADAPTIVE:
        return text
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"must be {ADAPTIVE!r} or a whole number between 0 and {MAX_GAMMA}, got {text!r}"
        ) from None


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) <= MAX_PORT):
        raise argparse.ArgumentTypeError(f"must be a port between 0 and {MAX_PORT}, got {text!r}; 0 takes a free one")
    return int(text)


_ACTIONS = {
    "compare": "answer in plain and every other mode up to --mode, repeatedly and in turn, and compare the speeds",
    "chat": "hold a conversation; one message a line, /clear forgets, /exit or end of input ends it",
    "json": "print one JSON object on one line instead of streaming the text",
    "raw": "send the prompt as plain text, not through the model's chat template",
}

_LOAD_OPTIONS = {
    "target": _Option(help="model: a folder, a hub id or a GGUF file", metavar="MODEL", default="the demo model"),
    "draft": _Option(
        help="where proposals come from: ngram, early-exit, early-exit:LAYERS, a distilled draft's folder, a "
        "model, none, or auto (n-gram, and the draft that came with the project for this model, or else early exit for "
        "the demo model); repeatable",
        repeatable=True,
    ),
    "mode": _Option(
        help="how to decode: plain, one token after the other; sequential, propose and verify in turn; pipelined, "
        "both at the same time; auto, whichever promises most",
        choices=tuple(mode.value for mode in Mode),
    ),
    "gamma": _Option(help=f"tokens proposed a round, 0 to {MAX_GAMMA}, or {ADAPTIVE}", metavar="TOKENS", type=_gamma),
    "max_gamma": _Option(help="most tokens that adaptive gamma proposes a round", metavar="TOKENS", type=int),
    "max_lead": _Option(
        help=f"most tokens drafted past a block while it is verified, 1 to {MAX_LEAD}; with --mode auto or pipelined",
        metavar="TOKENS",
        type=int,
    ),
    "num_awaited": _Option(
        help="proposals that the target waits for where fewer are ready; with --mode auto or pipelined",
        metavar="TOKENS",
        type=int,
        default="as many as gamma says",
    ),
    "warmup_tokens": _Option(help="tokens at the start of the answer without proposals", metavar="TOKENS", type=int),
    "weights": _Option(
        help="how matrices are kept; int8 is the fastest and costs some accuracy",
        choices=tuple(kind.value for kind in WeightKind),
        default="what suits the device",
    ),
    "device": _Option(help="where to compute: cpu, cuda, cuda:N, or auto, a GPU where there is one", metavar="DEVICE"),
    "threads": _Option(help="threads of model work in all", metavar="THREADS", type=int, default="torch's choice"),
    "context_length": _Option(
        help="most tokens of prompt and answer together",
        metavar="TOKENS",
        type=int,
        default="the model's own, at most 8192",
    ),
}
"""By field of `LoadSettings`."""

_GENERATION_OPTIONS = {
    "max_tokens": _Option(help="most tokens of the answer", metavar="TOKENS", type=int),
    "min_tokens": _Option(help="no end of the answer before this many tokens", metavar="TOKENS", type=int),
    "temperature": _Option(help="0 takes the likeliest token, 1 draws as the model predicts", metavar="T", type=float),
    "top_p": _Option(help="draw from the most likely tokens of this joint probability", metavar="P", type=float),
    "top_k": _Option(help="draw from this many most likely tokens; 0 draws from all", metavar="TOKENS", type=int),
    "min_p": _Option(
        help="draw from tokens at least this fraction as likely as the likeliest", metavar="P", type=float
    ),
    "seed": _Option(help="equal seeds give equal answers", metavar="INTEGER", type=int, default="a new one each time"),
    "verification": _Option(
        help="how proposals are judged; both ways keep the model's distribution",
        choices=tuple(rule.value for rule in Verification),
        default="coupled with a seed or at temperature 0, else rejection",
    ),
    "stop": _Option(
        help="end the answer before this text; repeatable", metavar="TEXT", repeatable=True, default="none"
    ),
    "ignore_eos": _Option(help="go on after an end-of-sequence token", flag=True),
    "repetition_penalty": _Option(
        help="above 1 makes tokens of prompt and answer less likely", metavar="FACTOR", type=float
    ),
    "presence_penalty": _Option(help="above 0 makes tokens of the answer less likely", metavar="LOGIT", type=float),
    "frequency_penalty": _Option(
        help="above 0 makes tokens less likely with each time they were written", metavar="LOGIT", type=float
    ),
    "logprobs": _Option(
        help="report each token's log probability and this many alternatives, 0 to 100; with --json",
        metavar="TOKENS",
        type=int,
        default="none",
    ),
}
"""By field of `GenerationOptions`."""


def _add_options(group: argparse._ArgumentGroup, settings: type, options: dict[str, _Option]) -> None:
    fields = {field.name: field for field in dataclasses.fields(settings)}
    for name, option in options.items():
        if option.flag:
            group.add_argument(_flag(name), action="store_true", default=argparse.SUPPRESS, help=option.help)
            continue
        default = fields[name].default if option.default is None else option.default
        text = f"{option.help} (default: {getattr(default, 'value', default)})"
        group.add_argument(
            _flag(name),
            action="append" if option.repeatable else "store",
            type=option.type,
            choices=option.choices,
            metavar=option.metavar,
            default=argparse.SUPPRESS,
            help=text.replace("%", "%%"),
        )


def _version() -> str:
    try:
        return version("slipstream")
    except PackageNotFoundError:
        return "(not installed)"
