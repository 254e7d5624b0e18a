"""Answers that stream to standard output in pieces, and what stands beside them."""

from __future__ import annotations

import io
import sys

import pytest

from runtime.console import Console


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("pieces", "shown"), [(("one", " two"), "one two\n"), (("one\n",), "one\n"), (("one", ""), "one\n"), ((), "")]
)
def test_an_answer_ends_in_one_line_end(
    pieces: tuple[str, ...], shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    console = Console()
    for piece in pieces:
        console.write(piece)
    console.end_text()
    console.end_text()
    assert capsys.readouterr().out == shown


def test_results_begin_on_a_line_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console()
    console.write("cut sho")
    console.result("--- next ---")
    console.end_text()
    assert capsys.readouterr().out == "cut sho\n--- next ---\n"


def test_progress_is_for_somebody_who_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    for stream, told in ((io.StringIO(), ""), (Terminal(), "loading\n")):
        monkeypatch.setattr(sys, "stderr", stream)
        Console().progress("loading")
        assert stream.getvalue() == told


@pytest.mark.parametrize("stream", [None, io.StringIO()])
def test_only_terminals_at_both_ends_are_interactive(
    stream: io.StringIO | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("stdin", "stdout"):
        monkeypatch.setattr(sys, name, Terminal())
    assert Console().is_interactive
    for name in ("stdin", "stdout"):
        with monkeypatch.context() as patch:
            patch.setattr(sys, name, stream)
            assert not Console().is_interactive
