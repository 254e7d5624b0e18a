"""The command line as a process: pipes, terminals, signals, and the demo model from end to end."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command_line import ROOT, run_command, start_command
from tests.support.tiny_checkpoint import write_tiny_gguf

ONE_THREAD = ("--threads", "1")
"""Other tests run beside these: more threads would mostly wait for a core. The demo model is run without."""
LONG = ("--max-tokens", "8000", "--ignore-eos", *ONE_THREAD)
"""Takes seconds: whoever reads the first token is in the middle of the answer."""

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals and terminals work otherwise on Windows")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with room for a long answer."""
    path = tmp_path_factory.mktemp("checkpoint") / "tiny.gguf"
    return write_tiny_gguf(path, max_position_embeddings=8192)


@contextlib.contextmanager
def started(*arguments: str | Path) -> Iterator[subprocess.Popen[bytes]]:
    """A running command that is gone afterwards, whatever the test did."""
    with start_command(*arguments) as process:
        try:
            yield process
        finally:
            process.kill()


def read_some(process: subprocess.Popen[bytes]) -> bytes:
    """What is in the output now, at least one byte."""
    assert process.stdout is not None
    content = os.read(process.stdout.fileno(), 1 << 16)
    assert content, "the output ended"
    return content


def say(process: subprocess.Popen[bytes], line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{line}\n".encode())
    process.stdin.flush()


def next_note(process: subprocess.Popen[bytes]) -> str:
    assert process.stderr is not None
    return process.stderr.readline().decode().rstrip("\n")


def test_only_the_answer_is_on_standard_output(checkpoint: Path) -> None:
    arguments = ("--target", checkpoint, "--max-tokens", "9", "--seed", "1", *ONE_THREAD)
    record = json.loads(run_command(*arguments, "--json", "hello").stdout)
    finished = run_command(*arguments, "-", stdin="hello\n")
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout == record["text"] + "\n"
    assert finished.stderr.startswith(f"{len(record['token_ids'])} tokens")


def test_an_error_is_one_line_without_a_traceback(tmp_path: Path) -> None:
    finished = run_command("--target", tmp_path / "missing", "hello")
    assert finished.returncode == 1
    assert finished.stdout == ""
    (line,) = finished.stderr.splitlines()
    assert line.startswith("error: ")


def test_nothing_to_ask_is_wrong_usage() -> None:
    finished = run_command()
    assert finished.returncode == 2
    assert finished.stderr.startswith("error: standard input holds no prompt; give one, as in: python -m runtime")


def test_a_reader_that_leaves_ends_the_answer_quietly(checkpoint: Path) -> None:
    with started("--target", checkpoint, *LONG, "hello") as process:
        read_some(process)
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait() == 128 + signal.SIGPIPE
        assert process.stderr is not None
        assert process.stderr.read() == b""


@pytest.mark.parametrize("event_loop", [[], ["--no-uvloop"]])
def test_an_interrupt_ends_the_answer(checkpoint: Path, event_loop: list[str]) -> None:
    with started("--target", checkpoint, *LONG, *event_loop, "hello") as process:
        read_some(process)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate()
        assert process.returncode == 128 + signal.SIGINT
        assert errors == b""


@pytest.mark.parametrize("event_loop", [[], ["--no-uvloop"]])
def test_an_interrupt_cuts_a_reply_and_the_conversation_goes_on(checkpoint: Path, event_loop: list[str]) -> None:
    with started("--target", checkpoint, "--chat", *LONG, *event_loop) as process:
        for message in ("hello", "the"):
            say(process, message)
            read_some(process)
            process.send_signal(signal.SIGINT)
            assert next_note(process) == "(cut short)"
            assert read_some(process).endswith(b"\n")
        say(process, "/clear")
        say(process, "x" * 9000)
        assert next_note(process).startswith("error: prompt has 9003 tokens")
        say(process, "/exit")
        assert process.wait() == 1
        assert process.stderr is not None
        assert process.stderr.read() == b""


def test_the_end_of_input_ends_a_conversation(checkpoint: Path) -> None:
    finished = run_command("--target", checkpoint, "--chat", "--max-tokens", "3", *ONE_THREAD, stdin="hello\nthe")
    assert finished.returncode == 0, finished.stderr
    assert finished.stderr.count("reused from the cache") == 2


class Terminal:
    """A command on a terminal of its own, and what it has shown so far."""

    def __init__(self, *arguments: str | Path) -> None:
        self._screen, inside = os.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "runtime", *map(str, arguments)],
            cwd=ROOT,
            env={**os.environ, "TERM": "dumb"},
            stdin=inside,
            stdout=inside,
            stderr=inside,
        )
        os.close(inside)
        self.shown = ""
        self._num_read = 0

    def type(self, text: str) -> None:
        os.write(self._screen, text.encode())

    def wait_for(self, text: str) -> None:
        """Until `text` appears behind what was waited for before."""
        deadline = time.monotonic() + 60
        while (found := self.shown.find(text, self._num_read)) < 0:
            ready, _, _ = select.select([self._screen], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"{text!r} did not come; there is {self.shown!r}"
            try:
                piece = os.read(self._screen, 1 << 16).decode(errors="replace")
            except OSError:  # what Linux says where the other side was closed
                piece = ""
            assert piece, f"the command ended; it had shown {self.shown!r}"
            self.shown += piece
        self._num_read = found + len(text)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._screen)


@pytest.mark.parametrize("end", ["interrupt", "end of input", "/exit"])
def test_a_conversation_at_a_terminal(checkpoint: Path, end: str) -> None:
    terminal = Terminal("--target", checkpoint, "--chat", "--max-tokens", "5", *ONE_THREAD)
    try:
        terminal.wait_for("loading")
        terminal.wait_for("> ")
        assert "Ctrl-C cuts an answer short" in terminal.shown
        terminal.type("hello\n")
        terminal.wait_for("reused from the cache")
        terminal.wait_for("> ")
        match end:
            case "interrupt":
                time.sleep(0.5)  # line editing shows its prompt a moment before it can be interrupted
                terminal.process.send_signal(signal.SIGINT)
            case "end of input":
                terminal.type("\x04")
            case _:
                terminal.type("/exit\n")
        assert terminal.process.wait(60) == 0
    finally:
        terminal.close()


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-"])
def test_a_closed_standard_stream_does_no_harm(checkpoint: Path, closed: str) -> None:
    command = [sys.executable, "-m", "runtime", "--target", checkpoint, "--max-tokens", "2", *ONE_THREAD, "hello"]
    line = f"{shlex.join(map(str, command))} {closed}"
    finished = subprocess.run(["sh", "-c", line], cwd=ROOT, capture_output=True, timeout=100, check=False)
    assert finished.returncode == 0, finished.stderr
    assert bool(finished.stdout) is (closed != ">&-")
    assert bool(finished.stderr) is (closed != "2>&-")


@pytest.mark.weights
@pytest.mark.timeout(600)
def test_the_demo_model_answers(demo_gguf: Path) -> None:
    finished = run_command("--max-tokens", "12", "What is the capital of France?")
    assert finished.returncode == 0, finished.stderr
    assert "Paris" in finished.stdout


@pytest.mark.weights
@pytest.mark.timeout(600)
def test_the_demo_model_compares_its_modes(demo_gguf: Path) -> None:
    finished = run_command(
        *("--compare", "--json", "--max-tokens", "8", "--gamma", "4", "-"),
        stdin="Repeat: the quick brown fox jumps over the lazy dog, the quick brown fox jumps over the lazy dog.",
    )
    assert finished.returncode == 0, finished.stderr
    record = json.loads(finished.stdout.splitlines()[-1])
    assert record["settings"]["draft"] == ["ngram", "smollm2-135m-instruct (distilled)"]
    assert record["comparison"]["identical"] is True
    figures = record["comparison"]["modes"]["sequential"]
    assert figures["draft_acceptance_rate"] > 0
    assert figures["speedup"] > 0


@pytest.mark.weights
@pytest.mark.timeout(600)
def test_the_demo_model_remembers_a_conversation(demo_gguf: Path) -> None:
    finished = run_command(
        "--chat", "--json", "--max-tokens", "16", stdin="What is the capital of France?\nWhere is it?\n"
    )
    assert finished.returncode == 0, finished.stderr
    first, second = map(json.loads, finished.stdout.splitlines())
    assert "Paris" in first["text"]
    answered = first["metrics"]["num_prompt_tokens"] + first["metrics"]["num_output_tokens"]
    assert second["metrics"]["num_prompt_tokens"] > answered
    assert second["metrics"]["num_reused_tokens"] >= first["metrics"]["num_prompt_tokens"]
