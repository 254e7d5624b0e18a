"""What programs say: on the right stream, in one line, and whatever state the streams are in."""

from __future__ import annotations

import io
import logging
import sys

import pytest

from models.console import BaseConsole


class Terminal(io.StringIO):
    """A stream without an encoding that somebody watches."""

    def isatty(self) -> bool:
        return True


def test_results_and_what_is_said_of_them_are_kept_apart(capsys: pytest.CaptureFixture[str]) -> None:
    console = BaseConsole()
    console.result("one\ntwo")
    console.note("that was all")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("one\ntwo\n", "that was all\n")


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("two\n  lines"), "error: two lines"),
        ("a message", "error: a message"),
        (KeyError(), "error: KeyError"),
    ],
)
def test_a_failure_is_one_line(error: Exception | str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    BaseConsole().error(error)
    assert capsys.readouterr().err == f"{line}\n"


def test_warnings_are_shown_for_as_long_as_they_are_wanted(capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger("slipstream")
    with BaseConsole().warnings_shown():
        logger.warning("%s is slow", "this")
        assert capsys.readouterr().err == "warning: this is slow\n"
    before = list(logger.handlers)
    with pytest.raises(KeyboardInterrupt), BaseConsole().warnings_shown():
        raise KeyboardInterrupt
    assert logger.handlers == before
    logger.warning("unseen")
    assert "unseen" not in capsys.readouterr().err


def test_what_a_stream_cannot_show_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    streams = {name: io.TextIOWrapper(io.BytesIO(), encoding="ascii") for name in ("stdout", "stderr")}
    for name, stream in streams.items():
        monkeypatch.setattr(sys, name, stream)
    console = BaseConsole()
    console.result("naïve")
    console.note("café")
    assert streams["stdout"].buffer.getvalue() == b"na?ve\n"  # type: ignore[attr-defined]  # it is a BytesIO
    assert streams["stderr"].buffer.getvalue() == b"caf?\n"  # type: ignore[attr-defined]  # it is a BytesIO


def test_what_is_meant_for_a_closed_stream_is_dropped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    console = BaseConsole()
    with console.warnings_shown():
        logging.getLogger("slipstream").warning("unseen")
    console.note("unheard")
    console.error("unheeded")
    console.result("seen")
    assert capsys.readouterr().out == "seen\n"
    monkeypatch.setattr(sys, "stdout", None)
    BaseConsole().result("unseen")
    assert not console.is_watched


def test_a_terminal_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert not BaseConsole().is_watched
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert BaseConsole().is_watched
