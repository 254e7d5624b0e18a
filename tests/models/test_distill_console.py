"""Progress: a bar to somebody who watches, else a line now and then."""

from __future__ import annotations

import io
import sys
from types import SimpleNamespace

import pytest

from models.distill.console import Console, duration_text


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_nobody_watching_gets_the_first_line_and_the_last(capsys: pytest.CaptureFixture[str]) -> None:
    with Console().progress("writing", "tokens") as progress:
        for done in range(0, 2001, 500):
            progress.tell(done, 2000, f"{done} kept")
    captured = capsys.readouterr()
    first, last = captured.err.splitlines()
    assert first == "writing: 0 of 2,000 tokens (0 %), 0 kept"
    assert last.startswith("writing: 2,000 of 2,000 tokens (100 %), ")
    assert last.endswith(" tokens/s, 2000 kept")
    assert captured.out == ""


def test_the_time_left_goes_by_the_last_minute(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 0.0
    monkeypatch.setattr("models.distill.console.time", SimpleNamespace(monotonic=lambda: now_s))
    with Console().progress("training", "steps") as progress:
        # A step a second, and later one in ten seconds.
        for done in range(101):
            progress.tell(done, 200)
            now_s += 1 if done < 90 else 10
    assert capsys.readouterr().err.splitlines()[-1].endswith("steps/s, 17 min left")


def test_somebody_who_watches_gets_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with Console().progress("judging", "prompts") as progress:
        progress.tell(1, 4)
        progress.tell(4, 4)
    assert terminal.getvalue().split("\r")[-1].startswith("judging: 100%|")


def test_progress_stays_out_of_the_results_where_standard_error_is_closed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    with Console().progress("training", "steps") as progress:
        progress.tell(1, 1)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(("seconds", "text"), [(3, "3 s"), (89, "89 s"), (300, "5 min"), (9000, "2.5 h")])
def test_durations_read_in_the_unit_that_suits_them(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text
