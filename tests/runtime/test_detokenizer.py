"""Streamed text: joined it is the decoding of all ids, and on the way it takes nothing back."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from models.checkpoint import open_checkpoint
from models.tokenizer import Tokenizer
from runtime.detokenizer import REPLACEMENT, IncrementalDetokenizer
from tests.support.tiny_tokenizers import byte_level_metadata, sentencepiece_metadata

BYTE_LEVEL = Tokenizer.from_gguf(byte_level_metadata())
SENTENCEPIECE = Tokenizer.from_gguf(sentencepiece_metadata())
TOKENIZERS = {"byte level": BYTE_LEVEL, "sentencepiece": SENTENCEPIECE}
MULTIBYTE = "e\u0301 漢字かな 🙂👩‍👩‍👧‍👦 🇫🇷 한국어 naïve ∑"

any_tokenizer = st.sampled_from(sorted(TOKENIZERS)).map(TOKENIZERS.__getitem__)


def pieces_of(tokenizer: Tokenizer, chunks: Sequence[Sequence[int]], **settings: bool) -> list[str]:
    detokenizer = IncrementalDetokenizer(tokenizer, **settings)
    return [*(detokenizer.push(chunk) for chunk in chunks), detokenizer.flush()]


def chunked(ids: Sequence[int], sizes: Sequence[int]) -> list[Sequence[int]]:
    chunks, start = [], 0
    for size in sizes:
        chunks.append(ids[start : start + size])
        start += size
    return [*chunks, ids[start:]]


@given(
    tokenizer=any_tokenizer,
    # Mostly raw bytes, which form characters by chance only, among control tokens and ids that no token has.
    ids=st.lists(st.integers(0, 290), max_size=60),
    sizes=st.lists(st.integers(0, 9), max_size=20),
    skip_special_tokens=st.booleans(),
)
@example(tokenizer=SENTENCEPIECE, ids=[3 + 0x61, 280, 3 + 0xFF], sizes=[1, 1], skip_special_tokens=True)
@settings(max_examples=400)
def test_joined_pieces_are_the_whole_decoding(
    tokenizer: Tokenizer, ids: list[int], sizes: list[int], skip_special_tokens: bool
) -> None:
    pieces = pieces_of(tokenizer, chunked(ids, sizes), skip_special_tokens=skip_special_tokens)
    assert "".join(pieces) == tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)


def utf8_tokens(tokenizer: Tokenizer, content: bytes) -> list[int]:
    """One token a byte."""
    if tokenizer is SENTENCEPIECE:
        return [3 + byte for byte in content]
    single = {tokenizer.decode([token_id]): token_id for token_id in range(3, 259)}
    by_byte = dict(zip(sorted_bytes(), range(3, 259), strict=True))
    assert single["a"] == by_byte[ord("a")]
    return [by_byte[byte] for byte in content]


def sorted_bytes() -> list[int]:
    """Bytes in the order of their tokens: GPT-2 moves those that do not print to U+0100 and up, in order."""
    printing = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    return [*printing, *(byte for byte in range(256) if byte not in printing)]


@given(
    tokenizer=any_tokenizer,
    broken=st.lists(st.sampled_from([0xF0, 0x9F, 0x99, 0x82, 0xE6, 0xBC, 0xFF, 0x61]), max_size=150),
)
@example(tokenizer=BYTE_LEVEL, broken=[0xFF] * 80 + list("🙂".encode()) + [0x61])
@example(tokenizer=BYTE_LEVEL, broken=[0xF0] * 33 + [0x9F, 0x99, 0x82, 0x61, 0xF0, 0x9F, 0x99, 0x82])
@example(tokenizer=BYTE_LEVEL, broken=[0x82] * 31 + [0xF0, 0x9F, 0x99, 0x82, 0x82, 0xF0, 0x9F, 0x99, 0x82] * 9)
@settings(max_examples=400)
def test_broken_bytes_end_up_as_the_whole_decoding_shows_them(tokenizer: Tokenizer, broken: list[int]) -> None:
    ids = utf8_tokens(tokenizer, bytes(broken))
    assert "".join(pieces_of(tokenizer, [[token_id] for token_id in ids])) == tokenizer.decode(ids)


@given(tokenizer=any_tokenizer, text=st.text(), sizes=st.lists(st.integers(0, 5), max_size=40))
@example(tokenizer=BYTE_LEVEL, text=MULTIBYTE, sizes=[1] * 100)
@example(tokenizer=SENTENCEPIECE, text=MULTIBYTE, sizes=[1] * 100)
def test_whole_text_never_shows_a_replacement(tokenizer: Tokenizer, text: str, sizes: list[int]) -> None:
    text = text.replace(REPLACEMENT, "").replace("\u2581", "")
    pieces = pieces_of(tokenizer, chunked(tokenizer.encode(text), sizes))
    assert not any(REPLACEMENT in piece for piece in pieces)
    assert "".join(pieces) == text


@pytest.mark.parametrize("text", ["hello the hello\n", MULTIBYTE])
def test_a_complete_character_is_out_at_once(text: str) -> None:
    detokenizer = IncrementalDetokenizer(BYTE_LEVEL)
    seen = ""
    ids = BYTE_LEVEL.encode(text)
    for index, token_id in enumerate(ids):
        seen += detokenizer.push([token_id])
        so_far = BYTE_LEVEL.decode(ids[: index + 1])
        assert seen == so_far.rstrip(REPLACEMENT)
    assert seen == text


def test_what_never_became_a_character_comes_with_the_end() -> None:
    for tokenizer in TOKENIZERS.values():
        detokenizer = IncrementalDetokenizer(tokenizer)
        ids = utf8_tokens(tokenizer, b"\xf0\x9f")
        assert detokenizer.push(ids) == ""
        assert detokenizer.flush() == tokenizer.decode(ids)
        assert detokenizer.flush() == ""


def test_one_bad_byte_spoils_a_byte_run_only_before_it_was_shown() -> None:
    ids = utf8_tokens(SENTENCEPIECE, "🙂".encode() + b"\xff")
    assert SENTENCEPIECE.decode(ids) == REPLACEMENT * 5
    assert pieces_of(SENTENCEPIECE, [[token_id] for token_id in ids]) == [""] * 5 + [REPLACEMENT * 5]


def test_a_space_after_a_control_token_stays() -> None:
    the = SENTENCEPIECE.vocabulary()["\u2581the"]
    pieces = pieces_of(SENTENCEPIECE, [[1], [the], [2], [2], [the], [1, 2], [the]])
    assert pieces == ["", "the", "", "", " the", "", " the", ""]


def test_tokens_of_no_text_and_of_a_replacement_character() -> None:
    tokenizer = Tokenizer.from_gguf(sentencepiece_metadata(("\u2581the", "", REPLACEMENT)))
    the, empty, replacement = (tokenizer.vocabulary()[token] for token in ("\u2581the", "", REPLACEMENT))
    # Only bytes can leave a character unfinished: a replacement character that is a token of its own is out at once.
    pieces = pieces_of(tokenizer, [[the], [empty], [the], [replacement], [the]])
    assert pieces == ["the", "", " the", REPLACEMENT, " the", ""]


class CountingTokenizer(Tokenizer):
    """Counts the ids that are decoded."""

    def __init__(self, inner: Tokenizer) -> None:
        self.__dict__.update(inner.__dict__)
        self.num_decoded = 0

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        self.num_decoded += len(token_ids)
        return super().decode(token_ids, skip_special_tokens=skip_special_tokens)


@pytest.mark.parametrize(
    ("tokenizer", "content"),
    [
        (BYTE_LEVEL, b"hello the world, and so on. "),
        (BYTE_LEVEL, "漢字🙂".encode()),
        (BYTE_LEVEL, b"\xff"),
        (BYTE_LEVEL, b"\xf0\x9f"),
        (BYTE_LEVEL, b""),
        (SENTENCEPIECE, "漢字🙂".encode()),
        (SENTENCEPIECE, b"\xff"),
    ],
    ids=["words", "characters", "bad bytes", "unfinished", "control tokens", "byte run", "bad byte run"],
)
def test_work_per_token_does_not_grow(tokenizer: Tokenizer, content: bytes) -> None:
    ids = utf8_tokens(tokenizer, content) or [0, 1, 2]
    ids = (ids * 2000)[:2000]
    counting = CountingTokenizer(tokenizer)
    pieces_of(counting, [[token_id] for token_id in ids])
    assert counting.num_decoded <= 40 * len(ids)


@pytest.mark.weights
def test_demo_text_streams_token_by_token(demo_gguf: Path) -> None:
    with open_checkpoint(demo_gguf) as checkpoint:
        tokenizer = checkpoint.tokenizer()
    text = f"def f(x):\n    return x  # 12 apples\n{MULTIBYTE}\n"
    for size in (1, 2, 3, 7):
        ids = tokenizer.encode(text)
        pieces = pieces_of(tokenizer, [ids[start : start + size] for start in range(0, len(ids), size)])
        assert "".join(pieces) == text
        assert not any(REPLACEMENT in piece for piece in pieces)
