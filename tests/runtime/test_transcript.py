"""Transcripts: a request's text grows round by round and ends at the token that completes a stop."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from runtime.transcript import Piece, Transcript
from tests.support.tiny_checkpoint import EOS_TOKEN_ID, tiny_tokenizer

TOKENIZER = tiny_tokenizer()
IDS = {character: TOKENIZER.encode(character) for character in "abcdé🙂"}


def push_all(rounds: Sequence[Sequence[int]], *stops: str, include_stop: bool = False) -> list[Piece]:
    transcript = Transcript(TOKENIZER, stops, include_stop=include_stop)
    pieces = []
    for index, token_ids in enumerate(rounds):
        pieces.append(transcript.push(token_ids, last=index == len(rounds) - 1))
        if pieces[-1].stopped:
            break
    return pieces


def ids(text: str) -> list[int]:
    return [token_id for character in text for token_id in IDS[character]]


def test_without_stops_every_round_gives_its_text() -> None:
    assert push_all([ids("ab"), ids("c"), ids("🙂d")]) == [
        Piece(text="ab", num_tokens=2, stopped=False),
        Piece(text="c", num_tokens=1, stopped=False),
        Piece(text="🙂d", num_tokens=5, stopped=False),
    ]


def test_an_unfinished_character_comes_with_the_round_that_ends_it() -> None:
    first, *rest = ids("🙂")
    assert [piece.text for piece in push_all([[*ids("a"), first], rest, ids("b")])] == ["a", "🙂", "b"]


def test_the_last_round_gives_out_what_was_held_back() -> None:
    first, *_ = ids("🙂")
    assert [piece.text for piece in push_all([ids("ab"), [first]])] == ["ab", "\ufffd"]
    assert [piece.text for piece in push_all([ids("ab"), ids("c")], "cd")] == ["ab", "c"]


@pytest.mark.parametrize("include_stop", [False, True])
def test_a_stop_inside_a_round_drops_the_tokens_behind_it(include_stop: bool) -> None:
    (piece,) = push_all([ids("abcd")], "bc", include_stop=include_stop)
    assert piece == Piece(text="abc" if include_stop else "a", num_tokens=3, stopped=True)


def test_a_stop_over_two_rounds_is_held_back_until_it_is_known() -> None:
    assert push_all([ids("ab"), ids("cd")], "bc") == [
        Piece(text="a", num_tokens=2, stopped=False),
        Piece(text="", num_tokens=1, stopped=True),
    ]
    assert push_all([ids("ab"), ids("dd")], "bc") == [
        Piece(text="a", num_tokens=2, stopped=False),
        Piece(text="bdd", num_tokens=2, stopped=False),
    ]


def test_a_stop_of_several_bytes_ends_with_its_last_byte() -> None:
    token_ids = ids("aé🙂b")
    (piece,) = push_all([token_ids], "🙂")
    assert piece == Piece(text="aé", num_tokens=1 + 2 + 4, stopped=True)


def test_half_a_character_is_no_stop_until_the_text_ends() -> None:
    """U+FFFD is what the bytes become when nothing more comes, and not before."""
    first, *rest = ids("🙂")
    assert not any(piece.stopped for piece in push_all([[*ids("a"), first], rest], "\ufffd"))
    assert push_all([[*ids("a"), first]], "\ufffd") == [Piece(text="a", num_tokens=2, stopped=True)]


def test_control_tokens_count_but_show_nothing() -> None:
    assert push_all([[*ids("a"), EOS_TOKEN_ID, *ids("b")]], "ab") == [Piece(text="", num_tokens=3, stopped=True)]
    assert push_all([[EOS_TOKEN_ID]]) == [Piece(text="", num_tokens=1, stopped=False)]
