"""The picture of a recording: which rounds are chosen, and that what happened is on it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib import image
from matplotlib.colors import to_rgb

from profiling.trace.arguments import parse_arguments
from profiling.trace.capture import TracedPair
from profiling.trace.picture import STAGE_COLOURS, check_picture, draw_recording
from profiling.trace.program import main
from profiling.trace.shown_rounds import chosen_rounds, rounds_between
from scheduler import Recording, Stage
from tests.support.hand_recording import HandRecording, hit_and_miss


def share_of(path: Path, stage: Stage) -> float:
    """Share of a picture that has a stage's very colour."""
    pixels_XYC = image.imread(path)[:, :, :3]
    return float((np.abs(pixels_XYC - np.array(to_rgb(STAGE_COLOURS[stage]))) < 0.01).all(axis=2).mean())


def numbers(recording: Recording) -> list[int]:
    return [traced.span.number for traced in chosen_rounds(recording)]


def kinds(pattern: str) -> Recording:
    """Rounds of 10 ms: h a hit, m a miss, x a miss whose rollback was not seen, p a plain one, | the next request's."""
    hand, now_ms = HandRecording(), 0.0
    for kind in pattern:
        if kind == "|":
            hand.launch("target", "resume", (now_ms, now_ms + 1))
        else:
            hit = {"h": True, "p": None}.get(kind, False)
            settle = None if kind in "px" else (now_ms + 9, now_ms + 9.5)
            proposed = 0 if kind == "p" else 2
            hand.round(now_ms, now_ms + 10, verify=(now_ms, now_ms + 9), hit=hit, settle=settle, proposed=proposed)
        now_ms += 10
    return hand.build()


class TestChoice:
    @pytest.mark.parametrize(
        ("pattern", "expected"),
        [
            ("|pphmpph", [2, 3, 4]),  # the shortest that shows both, and what comes of the miss
            ("|pmhpphmp", [1, 2, 3]),  # the earliest of two
            ("|hmpphmp", [4, 5, 6]),  # but not with the request's first round
            ("|hmp", [0, 1, 2]),  # unless there is no other
            ("|phxphmp", [4, 5, 6]),  # a miss counts with its rollback
            ("|phh|pm", [1, 2]),  # what lies between two requests is no stretch
            ("|pppmp", [3, 4]),
            ("|phm", [1, 2]),  # the miss is the last, and nothing of it can be seen
            ("|ppp", [1]),
            ("|p", [0]),
            ("|phppppmp", [1, 2]),  # too far apart
        ],
    )
    def test_what_shows_most_is_shown(self, pattern: str, expected: list[int]) -> None:
        assert numbers(kinds(pattern)) == expected

    def test_there_must_be_a_round(self) -> None:
        with pytest.raises(ValueError, match="no round was recorded"):
            chosen_rounds(kinds("|"))

    def test_rounds_by_number(self) -> None:
        recording = kinds("|hm|pph")
        assert [traced.span.number for traced in rounds_between(recording, 1, 3)] == [1, 2, 3]
        assert [traced.span.number for traced in rounds_between(recording, 4, 99)] == [4]
        with pytest.raises(ValueError, match="no round from 5 to 9 was recorded; the rounds are 0 to 4"):
            rounds_between(recording, 5, 9)
        with pytest.raises(ValueError, match="the rounds are none"):
            rounds_between(kinds(""), 0, 1)


class TestDrawing:
    def test_all_that_happened_is_on_it(self, tmp_path: Path) -> None:
        """The target's bars are about as wide as it was busy, the draft's are narrower, the rollback a line."""
        path = tmp_path / "rounds.png"
        assert draw_recording(hit_and_miss(offset_ms=500), path, title="by hand") == (0, 2)
        verify, draft, rollback = (share_of(path, stage) for stage in (Stage.VERIFY, Stage.DRAFT, Stage.ROLLBACK))
        assert verify > draft > rollback > 0
        assert 0.05 < verify < 0.5
        assert share_of(path, Stage.PREFILL) == 0

    def test_words_and_marks(self, tmp_path: Path) -> None:
        path = tmp_path / "rounds.svg"
        text = draw_text(hit_and_miss(), path)
        for words in (
            "round 0: 1 of 1 accepted,",
            "hit",
            "round 1: 0 of 2 accepted,",
            "miss, rollback",
            "round 2: 1 of 1 accepted",
            "discarded lookahead",
            "verdict to rollback",
            "by hand",
            "ms from the first round's start",
        ):
            assert words in text, words

    def test_what_is_not_there_is_not_in_the_legend(self, tmp_path: Path) -> None:
        hand = HandRecording()
        hand.round(0, 10, verify=(0, 9))
        text = draw_text(hand.build(), tmp_path / "plain.svg")
        assert "round 0: plain" in text
        for words in ("discarded lookahead", "verdict to rollback", "prefill"):
            assert words not in text, words
        # The row's name alone.
        assert text.count(">draft<") == 1

    def test_the_rounds_that_were_asked_for(self, tmp_path: Path) -> None:
        path = tmp_path / "rounds.svg"
        assert draw_recording(hit_and_miss(), path, rounds=(2, 2)) == (2, 2)
        with pytest.raises(ValueError, match="no round from 7 to 8"):
            draw_recording(hit_and_miss(), path, rounds=(7, 8))

    def test_rounds_without_length_or_times_can_be_drawn(self, tmp_path: Path) -> None:
        hand = HandRecording()
        hand.round(5, 5, hit=False, proposed=1)
        assert draw_recording(hand.build(), tmp_path / "rounds.png") == (0, 0)

    def test_formats_are_checked_beforehand(self) -> None:
        check_picture(Path("rounds.PNG"))
        for name in ("rounds.docx", "rounds"):
            with pytest.raises(ValueError, match=f"{name} must end in a format that matplotlib can write: .*\\.png"):
                check_picture(Path(name))


class TestCommandLine:
    def test_rounds_reach_the_picture(self, tmp_path: Path) -> None:
        chosen = parse_arguments(["--picture", str(tmp_path / "rounds.png"), "--rounds", "3", "5"])
        assert (chosen.picture, chosen.rounds) == (tmp_path / "rounds.png", (3, 5))

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--rounds", "1", "2"], "--rounds says what the picture shows; add --picture FILE"),
            (["--picture", "rounds.png", "--rounds", "3", "2"], "--rounds must name a first and a last round"),
            (["--picture", "rounds.png", "--rounds", "-1", "2"], "counted from 0, got -1 and 2"),
            (["--picture", "no/such/folder/rounds.png"], "no/such/folder/rounds.png cannot be written"),
        ],
    )
    def test_what_cannot_be_is_refused(
        self, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with pytest.raises(SystemExit) as ended:
            parse_arguments(arguments)
        assert ended.value.code == 2
        assert message in capsys.readouterr().err

    def test_a_format_is_refused_before_anything_is_loaded(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.delattr(TracedPair, "load")
        assert main(["--picture", str(tmp_path / "rounds.docx"), "--out", str(tmp_path / "trace.json")]) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert "rounds.docx must end in a format that matplotlib can write" in line


def draw_text(recording: Recording, path: Path) -> str:
    """Draw with letters as letters, and read it back."""
    import matplotlib

    with matplotlib.rc_context({"svg.fonttype": "none"}):
        draw_recording(recording, path, title="by hand")
    return path.read_text()
