"""What the command line understands, and what it says to what it does not; nothing is loaded here."""

from __future__ import annotations

import dataclasses
import re
import shlex

import pytest

from runtime import GenerationOptions, LoadSettings, Verification
from runtime.arguments import Arguments, UsageError, parse_arguments


def help_text(capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as ended:
        parse_arguments(["--help"])
    assert ended.value.code == 0
    return " ".join(capsys.readouterr().out.split())


def test_a_prompt_alone_leaves_every_default_to_the_settings() -> None:
    assert parse_arguments(["Hi"]) == Arguments(
        prompt="Hi",
        load={},
        options=GenerationOptions(),
        compare=False,
        chat=False,
        json=False,
        raw=False,
        system=None,
        metrics_port=None,
        uvloop=True,
    )


def test_every_option_reaches_its_setting() -> None:
    line = (
        "--target big --draft ngram --draft small --mode pipelined --gamma 3 --max-gamma 5 --warmup-tokens 2 "
        "--max-lead 6 --num-awaited 1 "
        "--weights int8 --threads 1 --context-length 99 --max-tokens 7 --min-tokens 2 --temperature 0.5 --top-p 0.9 "
        "--top-k 4 --min-p 0.1 --seed 11 --verification rejection --stop one --stop two --ignore-eos "
        "--repetition-penalty 1.1 --presence-penalty -0.5 --frequency-penalty 0.2 --logprobs 3 "
        "--json --system Be --metrics-port 0 --no-uvloop --compare -- -x"
    )
    arguments = parse_arguments(shlex.split(line))
    assert arguments.load == {
        "target": "big",
        "draft": ["ngram", "small"],
        "mode": "pipelined",
        "gamma": 3,
        "max_gamma": 5,
        "max_lead": 6,
        "num_awaited": 1,
        "warmup_tokens": 2,
        "weights": "int8",
        "threads": 1,
        "context_length": 99,
    }
    assert arguments.options == GenerationOptions(
        max_tokens=7,
        min_tokens=2,
        temperature=0.5,
        top_p=0.9,
        top_k=4,
        min_p=0.1,
        seed=11,
        verification=Verification.REJECTION,
        stop=("one", "two"),
        ignore_eos=True,
        repetition_penalty=1.1,
        presence_penalty=-0.5,
        frequency_penalty=0.2,
        logprobs=3,
    )
    assert (arguments.prompt, arguments.system) == ("-x", "Be")
    assert arguments.metrics_port == 0
    assert arguments.json
    assert arguments.compare
    assert not arguments.uvloop


def test_one_draft_is_no_list() -> None:
    assert parse_arguments(["--draft", "none", "x"]).load == {"draft": "none"}


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        (LoadSettings, ["draft", "mode", "gamma", "max_gamma", "max_lead", "warmup_tokens", "device"]),
        (
            GenerationOptions,
            [
                *("max_tokens", "min_tokens", "temperature", "top_p", "top_k", "min_p"),
                *("repetition_penalty", "presence_penalty", "frequency_penalty"),
            ],
        ),
    ],
)
def test_help_tells_the_defaults_of_the_settings(
    settings: type, names: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    text = help_text(capsys)
    defaults = {field.name: field.default for field in dataclasses.fields(settings)}
    for name in names:
        default = getattr(defaults[name], "value", defaults[name])
        described = re.search(rf" --{name.replace('_', '-')} \S+ (?!\[)(.*?)\(default: (.*?)\)", text)
        assert described is not None, name
        assert described[2] == str(default), name


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--gama 3 x", r"unknown option --gama \(did you mean --gamma\?\)"),
        ("--max-token=3 x", r"unknown option --max-token \(did you mean --max-tokens\?\)"),
        ("--colour x", r"unknown option --colour; python -m runtime --help lists them"),
        ("Why not", r"more than one prompt: 'not' is too much; put the prompt in quotes"),
        ("--gamma -1 x", r"gamma must be between 0 and 15, got -1"),
        ("--gamma 1.5 x", r"--gamma: must be 'adaptive' or a whole number between 0 and 15, got '1.5'"),
        ("--gamma True x", r"--gamma: must be 'adaptive' or a whole number between 0 and 15, got 'True'"),
        ("--max-gamma 16 x", r"max_gamma must be between 0 and 15, got 16"),
        ("--max-tokens 0 x", r"max_tokens must be at least 1, got 0"),
        ("--max-tokens many x", r"--max-tokens: invalid int value: 'many'"),
        ("--max-tokens 2 --min-tokens 3 x", r"min_tokens must be at most max_tokens \(2\), got 3"),
        ("--temperature -1 x", r"temperature must lie in \[0, 10000\], got -1.0"),
        ("--temperature nan x", r"temperature must lie in \[0, 10000\], got nan"),
        ("--top-p 0 x", r"top_p must lie in \(0, 1\], got 0.0"),
        (
            "--mode fast x",
            r"--mode: invalid choice: 'fast' \(choose from '?plain'?, '?sequential'?, '?pipelined'?, '?auto'?\)",
        ),
        ("--mode pipelined --max-lead 0 x", r"max_lead must be between 1 and 32, got 0"),
        ("--mode pipelined --num-awaited 16 x", r"num_awaited must be between 0 and 15, got 16"),
        ("--mode sequential --max-lead 4 x", r"--max-lead has no meaning in sequential mode; leave out '--mode seq"),
        ("--mode plain --num-awaited 0 x", r"--num-awaited has no meaning in plain mode; leave out '--mode plain'"),
        ("--weights int4 x", r"--weights: invalid choice: 'int4'"),
        ("--verification guess x", r"--verification: invalid choice: 'guess'"),
        ("--draft early-exit:0 x", r"draft 'early-exit:0' must name a number of layers"),
        ("--draft ngram --draft ngram x", r"draft names 'ngram' twice"),
        ("--threads 0 x", r"threads must be between 1 and \d+, got 0"),
        ("--context-length 1 x", r"context_length must be at least 2, got 1"),
        ("--logprobs 101 --json x", r"logprobs must be between 0 and 100, got 101"),
        ("--logprobs 1 x", r"--logprobs are reported in the JSON object; add --json"),
        ("--chat -", r"--chat reads its messages from standard input already"),
        ("--chat --compare", r"--chat and --compare cannot be combined"),
        ("--chat --raw", r"--chat and --raw cannot be combined"),
        ("--raw --system Be x", r"--raw sends the prompt alone"),
        ("--compare --mode plain x", r"--compare needs speculation to compare with"),
        ("--compare --draft none x", r"--compare needs speculation to compare with"),
        ("--stop", r"--stop: expected one argument"),
    ],
)
def test_wrong_usage_is_explained(arguments: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_arguments(arguments.split())


@pytest.mark.parametrize("prompt", ["", " \n"])
def test_an_empty_prompt_is_refused(prompt: str) -> None:
    with pytest.raises(UsageError, match=r'the prompt is empty; give one, as in: python -m runtime "Why'):
        parse_arguments([prompt])


def test_an_empty_stop_is_refused() -> None:
    with pytest.raises(UsageError, match=r"stop\[1\] is empty, which would end every text at once"):
        parse_arguments(["--stop", "a", "--stop", "", "x"])


def test_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_arguments(["--version"])
    assert ended.value.code == 0
    assert re.fullmatch(r"slipstream (\d+\.\d+\S*|\(not installed\))\n", capsys.readouterr().out)
