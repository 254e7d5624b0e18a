"""The command line in this process, on a tiny model: what is printed where, and with which status it ends."""

from __future__ import annotations

import asyncio
import io
import itertools
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from models.free_memory import AvailableMemory
from runtime import GenerationResult, Runtime
from runtime.cli import main
from runtime.runtime import Prompt
from tests.support.checkpoint_files import tiny_model, write_gguf
from tests.support.tiny_checkpoint import write_tiny_gguf
from tests.support.tiny_tokenizers import byte_level_metadata

PROMPT = "hello the hello the hello"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gguf(tmp_path_factory.mktemp("checkpoint") / "tiny.gguf")


@pytest.fixture(scope="module")
def base_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model without a chat template."""
    metadata = {**byte_level_metadata(), "tokenizer.chat_template": None, "tokenizer.ggml.bos_token_id": None}
    path = tmp_path_factory.mktemp("base") / "base.gguf"
    return write_gguf(path, tiny_model("llama", vocab_size=265), "llama", metadata=metadata)


class Command:
    """Runs command lines with one target and keeps what they printed."""

    def __init__(self, target: Path, capsys: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch) -> None:
        self._target = target
        self._capsys = capsys
        self._patch = patch
        self.output = ""
        self.errors = ""

    def run(self, *arguments: str | Path, stdin: bytes = b"", target: Path | None = None) -> int:
        self._patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
        status = main(["--target", str(target or self._target), "--threads", "1", *map(str, arguments)])
        self.output, self.errors = self._capsys.readouterr()
        return status

    def json(self, *arguments: str | Path, stdin: bytes = b"") -> dict[str, Any]:
        assert self.run(*arguments, "--json", stdin=stdin) == 0, self.errors
        *before, last = self.output.splitlines()
        assert before == []
        record: dict[str, Any] = json.loads(last)
        return record


@pytest.fixture
def command(checkpoint: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    return Command(checkpoint, capsys, monkeypatch)


def generate(target: Path, prompt: Prompt, **options: Any) -> GenerationResult:
    """What the library gives for the same request."""

    async def run() -> GenerationResult:
        async with await Runtime.load(target, mode="plain", threads=1) as runtime:
            return await runtime.generate(prompt, **options)

    return asyncio.run(run())


def test_an_answer_streams_and_a_summary_follows(command: Command, checkpoint: Path) -> None:
    expected = generate(checkpoint, [{"role": "user", "content": PROMPT}], max_tokens=20)
    assert command.run("--max-tokens", "20", PROMPT) == 0
    assert command.output == expected.text + "\n"
    first, second, third = command.errors.splitlines()
    assert f"prompt of {expected.metrics.num_prompt_tokens} tokens" in first
    assert second.startswith("speculation: ")
    assert third.startswith("decided: ")
    assert "ngram: " in third


def test_plain_decoding_has_nothing_to_say_about_speculation(command: Command) -> None:
    assert command.run("--max-tokens", "5", "--mode", "plain", PROMPT) == 0
    assert len(command.errors.splitlines()) == 1


def test_text_is_written_as_it_comes(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    pieces: list[str] = []

    class Watched(io.StringIO):
        def flush(self) -> None:
            if self.getvalue():
                pieces.append(self.getvalue())
            super().flush()

    monkeypatch.setattr(sys, "stdout", Watched())
    command.run("--max-tokens", "20", "--ignore-eos", PROMPT)
    assert len(pieces) > 5
    assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(pieces))


def test_a_system_message_comes_first(command: Command, checkpoint: Path) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": PROMPT}]
    expected = generate(checkpoint, messages, max_tokens=8)
    assert tuple(command.json("--max-tokens", "8", "--system", "Be brief.", PROMPT)["token_ids"]) == expected.token_ids


def test_raw_sends_the_text_alone(command: Command, checkpoint: Path) -> None:
    expected = generate(checkpoint, PROMPT, max_tokens=8)
    record = command.json("--max-tokens", "8", "--raw", PROMPT)
    assert tuple(record["token_ids"]) == expected.token_ids
    assert record["metrics"]["num_prompt_tokens"] == expected.metrics.num_prompt_tokens


def test_a_model_without_a_template_gets_the_text_alone(command: Command, base_checkpoint: Path) -> None:
    expected = generate(base_checkpoint, PROMPT, max_tokens=8)
    assert command.run("--max-tokens", "8", PROMPT, target=base_checkpoint) == 0
    assert command.output == expected.text + "\n"
    assert command.run("--system", "Be brief.", PROMPT, target=base_checkpoint) == 1
    assert command.errors.startswith("error: this model's tokenizer has no chat template")
    assert command.run("--chat", PROMPT, target=base_checkpoint) == 1


@pytest.mark.parametrize("arguments", [["-"], []])
@pytest.mark.parametrize("ending", ["", "\n", "\r\n"])
def test_a_prompt_comes_from_standard_input(command: Command, arguments: list[str], ending: str) -> None:
    prompt = "Zwei\nZeilen — é"
    expected = command.json("--max-tokens", "4", prompt)
    record = command.json("--max-tokens", "4", *arguments, stdin=(prompt + ending).encode())
    assert record["token_ids"] == expected["token_ids"]
    assert record["metrics"]["num_prompt_tokens"] == expected["metrics"]["num_prompt_tokens"]


@pytest.mark.parametrize(
    ("content", "message"),
    [(b" \n", r"standard input holds no prompt"), (b"caf\xe9", r"standard input is not UTF-8 text")],
)
def test_standard_input_without_a_prompt_is_wrong_usage(command: Command, content: bytes, message: str) -> None:
    assert command.run("-", stdin=content) == 2
    assert command.errors.startswith(f"error: {message}")


def test_nobody_is_left_waiting_for_a_prompt(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdin", Terminal("never read"))
    assert main([]) == 2
    assert capsys.readouterr().err.startswith('error: no prompt; give one, as in: python -m runtime "Why is the sky')


def test_json_tells_the_settings_in_effect(command: Command) -> None:
    # Nobody names a seed here, and the drawn one may well end the text before its sixth token.
    sampling = ["--temperature", "0.7", "--ignore-eos"]
    record = command.json("--max-tokens", "6", *sampling, "--gamma", "3", "--weights", "int8", PROMPT)
    settings = record["settings"]
    assert settings["verification"] == "rejection"
    assert isinstance(settings["seed"], int)
    assert settings["draft"] == ["ngram"]
    assert (settings["gamma"], settings["weights"], settings["threads"]) == (3, "int8", 1)
    assert (settings["mode"], settings["context_length"], settings["max_tokens"]) == ("auto", 256, 6)
    assert record["metrics"]["num_output_tokens"] == len(record["token_ids"]) == 6
    assert record["finish_reason"] == "length"


def test_a_drawn_seed_can_be_used_again(command: Command) -> None:
    arguments = ["--max-tokens", "20", "--temperature", "1", "--gamma", "2", PROMPT]
    first = command.json(*arguments)
    again = command.json("--seed", str(first["settings"]["seed"]), "--verification", "rejection", *arguments)
    assert again["token_ids"] == first["token_ids"]
    assert command.json(*arguments)["token_ids"] != first["token_ids"]


def test_log_probabilities_are_in_the_json_object(command: Command) -> None:
    record = command.json("--max-tokens", "3", "--logprobs", "2", PROMPT)
    assert [entry["token_id"] for entry in record["logprobs"]] == record["token_ids"]
    assert [len(entry["top"]) for entry in record["logprobs"]] == [2, 2, 2]


def test_a_stop_ends_the_answer(command: Command) -> None:
    text = command.json("--max-tokens", "30", "--ignore-eos", PROMPT)["text"]
    stop = text[10:13]
    record = command.json("--max-tokens", "30", "--ignore-eos", "--stop", "never there", "--stop", stop, PROMPT)
    assert record["text"] == text[: text.index(stop)]
    assert record["finish_reason"] == "stop"


COMPARED = ("--compare", "--draft", "early-exit:1", "--gamma", "3", "--max-tokens", "20", "--ignore-eos", PROMPT)


def test_a_comparison_shows_both_answers_and_a_table(command: Command) -> None:
    text = command.json(*COMPARED[1:])["text"]
    assert command.run(*COMPARED) == 0
    answers, table = command.output.split("--- comparison ---\n")
    assert answers == "".join(f"--- {mode} ---\n{text}\n" for mode in ("plain", "sequential", "auto"))
    lines = table.splitlines()
    assert [line.split()[0] for line in lines[:4]] == ["mode", "plain", "sequential", "auto"]
    assert re.fullmatch(r"speed-up over plain: sequential \S+x, auto \S+x; the tokens are identical", lines[4]), lines[
        4
    ]
    assert command.errors == ""


def test_a_pipelined_comparison_shows_every_mode(command: Command) -> None:
    text = command.json(*COMPARED[1:])["text"]
    assert command.run(*COMPARED, "--mode", "pipelined") == 0
    answers, table = command.output.split("--- comparison ---\n")
    assert answers == "".join(f"--- {mode} ---\n{text}\n" for mode in ("plain", "sequential", "pipelined"))
    lines = table.splitlines()
    assert lines[0].split()[-2:] == ["hits", "discarded"]
    assert [line.split()[0] for line in lines[1:4]] == ["plain", "sequential", "pipelined"]
    assert [line.split()[-1] == "–" for line in lines[1:4]] == [True, True, False]
    assert re.fullmatch(r"speed-up over plain: sequential \S+x, pipelined \S+x; the tokens are identical", lines[4]), (
        lines[4]
    )


def test_a_pipelined_answer_tells_of_its_lookahead(command: Command) -> None:
    arguments = (*COMPARED[1:], "--mode", "pipelined", "--max-lead", "3", "--num-awaited", "1")
    assert command.run(*arguments) == 0
    assert [line.partition(":")[0] for line in command.errors.splitlines()[1:]] == ["speculation", "lookahead"]
    record = command.json(*arguments)
    settings, metrics = record["settings"], record["metrics"]
    assert (settings["mode"], settings["max_lead"], settings["num_awaited"]) == ("pipelined", 3, 1)
    assert (settings["threads"], settings["draft_threads"]) == (2, 1), "one thread is the least for each of the two"
    assert metrics["num_hits"] + metrics["num_misses"] > 0
    assert metrics["hit_rate"] == metrics["num_hits"] / (metrics["num_hits"] + metrics["num_misses"])
    assert metrics["num_discarded_draft_tokens"] >= metrics["num_misses"]


@pytest.mark.parametrize("sampling", [[], ["--temperature", "1", "--seed", "3"]])
def test_a_comparison_in_json(command: Command, sampling: list[str]) -> None:
    record = command.json(*sampling, *COMPARED)
    comparison = record["comparison"]
    assert comparison["identical"] is True
    assert comparison["num_repetitions"] >= 3
    assert [*comparison["modes"]] == ["plain", "sequential", "auto"]
    plain, sequential, _ = comparison["modes"].values()
    assert plain["draft_acceptance_rate"] is None
    assert 0 < sequential["draft_acceptance_rate"] <= 1
    assert sequential["speedup"] == pytest.approx(sequential["tokens_per_s"] / plain["tokens_per_s"])
    assert record["metrics"]["num_draft_tokens"] > 0
    assert record["settings"]["mode"] == "auto"
    assert "times plain decoding" in record["metrics"]["decision"]


def test_a_comparison_under_the_rejection_rule_may_differ(command: Command) -> None:
    sampled = ["--temperature", "1", "--verification", "rejection", "--seed", "3", *COMPARED]
    assert command.json(*sampled)["comparison"]["identical"] is False
    assert command.run(*sampled) == 0
    assert "the tokens differ, as they may" in command.output


def test_a_comparison_without_a_seed_gives_both_modes_the_same_one(command: Command) -> None:
    """Where nothing is proposed, both modes are one-token decoding and draw the same under either rule."""
    nothing_proposed = ["--temperature", "1", "--gamma", "0", "--max-tokens", "20", "--ignore-eos", "--compare", PROMPT]
    record = command.json(*nothing_proposed)
    assert record["settings"]["verification"] == "rejection"
    assert record["comparison"]["identical"] is True


CHAT = ("--chat", "--max-tokens", "6", "--ignore-eos")


def test_a_conversation_answers_line_by_line(command: Command, checkpoint: Path) -> None:
    first = generate(checkpoint, [{"role": "user", "content": "hello"}], max_tokens=6, ignore_eos=True)
    history = [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": first.text},
        {"role": "user", "content": "the"},
    ]
    second = generate(checkpoint, history, max_tokens=6, ignore_eos=True)
    assert command.run(*CHAT, stdin=b"hello\n\n  the  \n") == 0
    assert command.output == f"{first.text}\n{second.text}\n"
    summaries = [line for line in command.errors.splitlines() if "reused" in line]
    assert len(summaries) == 2
    assert ", 0 reused" in summaries[0]
    assert ", 0 reused" not in summaries[1]


def test_a_conversation_can_be_cleared_and_ended(command: Command, checkpoint: Path) -> None:
    first = generate(checkpoint, [{"role": "user", "content": "hello"}], max_tokens=6, ignore_eos=True)
    assert command.run(*CHAT, stdin=b"hello\n/clear\nhello\n/exit\nhello\n") == 0
    assert command.output == f"{first.text}\n" * 2


def test_a_conversation_begins_with_the_prompt(command: Command, checkpoint: Path) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"}]
    first = generate(checkpoint, messages, max_tokens=6, ignore_eos=True)
    assert command.run(*CHAT, "--system", "Be brief.", "hello") == 0
    assert command.output == f"{first.text}\n"


def test_a_conversation_in_json_is_one_object_a_line(command: Command) -> None:
    assert command.run(*CHAT, "--json", stdin=b"hello\nthe\n") == 0
    records = [json.loads(line) for line in command.output.splitlines()]
    assert [record["metrics"]["num_output_tokens"] for record in records] == [6, 6]
    assert records[1]["metrics"]["num_reused_tokens"] > 0


def test_a_conversation_survives_a_message_that_is_too_long(command: Command) -> None:
    assert command.run(*CHAT, stdin=b"hello\n" + b"x" * 300 + b"\nthe\n") == 1
    assert len(command.output.splitlines()) >= 2
    errors = [line for line in command.errors.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert "leaves no room in a context of 256" in errors[0]


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--gamma", "-1", PROMPT], 2, "gamma must be between 0 and 15, got -1"),
        (["--stop", "", PROMPT], 2, "stop[0] is empty"),
        ([""], 2, "the prompt is empty"),
        (["--context-length", "100000", PROMPT], 1, "context_length must be at most 256, the model's own, got 100000"),
        (["x" * 300], 1, "prompt has 303 tokens and leaves no room in a context of 256"),
        (["--draft", "early-exit:2", PROMPT], 1, "early-exit:2 must name fewer layers than the target's 2"),
        (["--draft", "/no/such/model", PROMPT], 1, "'/no/such/model' does not exist"),
        (["\udcff"], 1, "text holds a lone surrogate"),
    ],
)
def test_bad_input_is_one_line(command: Command, arguments: list[str], status: int, message: str) -> None:
    assert command.run(*arguments) == status
    assert command.output == ""
    (line,) = command.errors.splitlines()
    assert line.startswith(f"error: {message}")


def test_bad_files_are_one_line(command: Command, checkpoint: Path, tmp_path: Path) -> None:
    truncated = tmp_path / "truncated.gguf"
    truncated.write_bytes(checkpoint.read_bytes()[:-100])
    pickled = tmp_path / "model.bin"
    pickled.write_bytes(b"\x80\x02}q\x00.")
    empty = tmp_path / "empty"
    empty.mkdir()
    for target in (truncated, pickled, empty, tmp_path / "missing"):
        assert command.run(PROMPT, target=target) == 1
        (line,) = command.errors.splitlines()
        assert line.startswith("error: ")
        assert target.name in line


def test_a_draft_with_other_ids_is_one_line(command: Command, tmp_path: Path) -> None:
    metadata = byte_level_metadata()
    tokens = metadata["tokenizer.ggml.tokens"]
    assert isinstance(tokens, list)
    tokens[50], tokens[60] = tokens[60], tokens[50]
    entries = {**metadata, "tokenizer.ggml.bos_token_id": None}
    draft = write_gguf(tmp_path / "draft.gguf", tiny_model("llama", vocab_size=265), "llama", metadata=entries)
    assert command.run("--draft", draft, PROMPT) == 1
    (line,) = command.errors.splitlines()
    assert "50" in line


def test_no_room_for_the_caches_is_one_line(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    little = AvailableMemory(num_bytes=10_000, reason="as the test says")
    monkeypatch.setattr("runtime.assembly.available_memory", lambda device: little)
    assert command.run(PROMPT) == 1
    (line,) = command.errors.splitlines()
    assert line.startswith("error: ")
    assert "256" in line


def test_what_the_library_warns_of_is_shown(command: Command, tmp_path: Path) -> None:
    stranger = write_tiny_gguf(tmp_path / "stranger.gguf", seed=8)
    arguments = ("--draft", stranger, "--gamma", "8", "--max-tokens", "120", "--ignore-eos", PROMPT)
    for _ in range(2):
        assert command.run(*arguments) == 0
        warnings = [line for line in command.errors.splitlines() if line.startswith("warning: ")]
        assert sum("acceptance rate" in line for line in warnings) == 1


def test_uvloop_is_used_where_it_is_installed(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("uvloop")
    assert command.json("--max-tokens", "1", PROMPT)["settings"]["event_loop"] == "uvloop"
    assert command.json("--max-tokens", "1", "--no-uvloop", PROMPT)["settings"]["event_loop"] == "asyncio"
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert command.json("--max-tokens", "1", PROMPT)["settings"]["event_loop"] == "asyncio"
