"""Stop strings: the cut is that of the whole text, however the text is split."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from models.tokenizer import Tokenizer
from runtime.detokenizer import IncrementalDetokenizer
from runtime.stop import MAX_NUM_STOPS, MAX_STOP_CHARS, StopStrings, checked_stops
from tests.support.tiny_tokenizers import byte_level_metadata


def cut(text: str, stops: Sequence[str], include: bool) -> tuple[str, str | None]:
    """The rule itself, over the whole text: the stop that ends first, of several the longest."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            stop = max(complete, key=len)
            return text[: end if include else end - len(stop)], stop
    return text, None


def streamed(pieces: Sequence[str], stops: Sequence[str], include: bool) -> tuple[str, str | None]:
    watcher = StopStrings(stops, include_in_output=include)
    text = "".join(watcher.push(piece) for piece in pieces)
    return text + watcher.flush(), watcher.matched


@given(
    pieces=st.lists(st.text(alphabet="ab", max_size=6), max_size=12),
    stops=st.lists(st.text(alphabet="ab", min_size=1, max_size=5), max_size=4),
    include=st.booleans(),
)
@example(pieces=["a", "ab"], stops=["aab"], include=False)
@example(pieces=["xabc"], stops=["abc", "b"], include=False)
@settings(max_examples=500)
def test_the_cut_does_not_depend_on_the_pieces(pieces: list[str], stops: list[str], include: bool) -> None:
    assert streamed(pieces, stops, include) == cut("".join(pieces), stops, include)


@given(
    text=st.text(alphabet="ab", max_size=30),
    stops=st.lists(st.text(alphabet="ab", min_size=1, max_size=5), min_size=1, max_size=3),
)
def test_exactly_what_may_become_a_stop_is_held_back(text: str, stops: list[str]) -> None:
    watcher = StopStrings(stops)
    seen = ""
    for index, character in enumerate(text):
        seen += watcher.push(character)
        if watcher.matched:
            return
        so_far = text[: index + 1]
        longest_start = max((n for stop in stops for n in range(1, len(stop)) if so_far.endswith(stop[:n])), default=0)
        assert seen == so_far[: len(so_far) - longest_start]


def test_without_stops_text_passes_at_once() -> None:
    watcher = StopStrings()
    assert [watcher.push("a"), watcher.push("b"), watcher.flush(), watcher.matched] == ["a", "b", "", None]


def test_nothing_follows_a_stop() -> None:
    watcher = StopStrings("END")
    assert [watcher.push("one EN"), watcher.push("D two"), watcher.push("three"), watcher.flush()] == [
        "one ",
        "",
        "",
        "",
    ]
    assert watcher.matched == "END"


def test_the_token_that_completes_the_stop_is_the_last() -> None:
    """As in a round of several tokens: feeding stops where `matched` appears, and the ids behind are dropped."""
    tokenizer = Tokenizer.from_gguf(byte_level_metadata())
    ids = tokenizer.encode("hello the 🙂 the END hello")
    detokenizer, watcher = IncrementalDetokenizer(tokenizer), StopStrings("🙂 the E")
    text, kept = "", []
    for token_id in ids:
        kept.append(token_id)
        text += watcher.push(detokenizer.push([token_id]))
        if watcher.matched:
            break
    assert text == "hello the "
    assert tokenizer.decode(kept) == "hello the 🙂 the E"


def test_a_single_string_is_one_stop() -> None:
    assert checked_stops("ab") == ("ab",)
    assert checked_stops(["ab", "c"]) == ("ab", "c")


@pytest.mark.parametrize(
    ("stops", "error", "named"),
    [
        ("", ValueError, r"stop\[0\] is empty"),
        (["a", ""], ValueError, r"stop\[1\] is empty"),
        (["a", 3], TypeError, r"stop\[1\] is int.*stop_token_ids"),
        (7, TypeError, "stop is int"),
        (None, TypeError, "stop is NoneType"),
        (b"ab", TypeError, "stop is bytes"),
        ({"a"}, TypeError, "stop is set"),
        (["a"] * (MAX_NUM_STOPS + 1), ValueError, f"{MAX_NUM_STOPS + 1} strings, above the limit of {MAX_NUM_STOPS}"),
        (["a" * (MAX_STOP_CHARS + 1)], ValueError, f"above the limit of {MAX_STOP_CHARS}"),
    ],
)
def test_bad_stops_are_named(stops: object, error: type[Exception], named: str) -> None:
    with pytest.raises(error, match=named):
        StopStrings(stops)  # type: ignore[arg-type]
