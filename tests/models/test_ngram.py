"""The n-gram index against a plain search over the whole sequence."""

from __future__ import annotations

import itertools
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from models.ngram import NgramIndex, NgramMatch

NO_MATCH = NgramMatch(tokens=(), match_length=0)


def search(tokens: list[int], max_tokens: int, min_match: int, max_match: int) -> NgramMatch:
    """The same answer by comparing every place with every other."""
    best_length, best_end = 0, 0
    for end in range(1, len(tokens)):
        agreeing = itertools.takewhile(
            lambda distance, end=end: tokens[end - 1 - distance] == tokens[-1 - distance], range(end)
        )
        length = len(list(agreeing))
        if length >= min_match and min(length, max_match) >= min(best_length, max_match):
            best_length, best_end = length, end
    if not best_length or not max_tokens:
        return NO_MATCH
    copied = list(tokens)
    while len(copied) < len(tokens) + max_tokens:
        copied.append(copied[best_end + len(copied) - len(tokens)])
    return NgramMatch(tokens=tuple(copied[len(tokens) :]), match_length=min(best_length, max(64, max_match)))


edits = st.lists(
    st.one_of(st.lists(st.integers(0, 2), max_size=12), st.floats(0, 1)), max_size=12
)  # a list is appended, a number keeps that share of the tokens


@given(edits=edits, min_match=st.integers(1, 3), more=st.integers(0, 4), max_tokens=st.integers(0, 9))
def test_equals_a_plain_search_after_any_edits(
    edits: list[list[int] | float], min_match: int, more: int, max_tokens: int
) -> None:
    index = NgramIndex(min_match=min_match, max_match=min_match + more)
    tokens: list[int] = []
    for edit in edits:
        if isinstance(edit, list):
            index.extend(edit)
            tokens += edit
        else:
            length = int(edit * len(tokens))
            index.truncate(length)
            del tokens[length:]
        assert len(index) == len(tokens)
        assert index.propose(max_tokens) == search(tokens, max_tokens, min_match, min_match + more)


@given(kept=st.lists(st.integers(0, 2), max_size=30), dropped=st.lists(st.integers(0, 2), max_size=30))
def test_truncation_leaves_no_trace(kept: list[int], dropped: list[int]) -> None:
    index, fresh = NgramIndex(min_match=1, max_match=4), NgramIndex(min_match=1, max_match=4)
    index.extend(kept + dropped)
    index.truncate(len(kept))
    fresh.extend(kept)
    assert vars(index) == vars(fresh)


@pytest.mark.parametrize(
    ("tokens", "expected", "match_length"),
    [
        pytest.param([1, 2, 3, 9, 9, 2, 3, 7, 1, 2, 3], (9, 9, 2, 3), 3, id="longer beats more recent"),
        pytest.param([2, 3, 4, 2, 3, 5, 2, 3], (5, 2, 3, 5), 2, id="most recent of equals"),
        pytest.param([7, 7, 7], (7, 7, 7, 7), 2, id="one token repeats"),
        pytest.param([5, 6, 8, 5, 6, 8, 5, 6], (8, 5, 6, 8), 5, id="a period goes on"),
    ],
)
def test_which_match_wins(tokens: list[int], expected: tuple[int, ...], match_length: int) -> None:
    index = NgramIndex(min_match=2, max_match=4)
    index.extend(tokens)
    assert index.propose(4) == NgramMatch(tokens=expected, match_length=match_length)


def test_nothing_to_match() -> None:
    index = NgramIndex(min_match=2, max_match=4)
    assert index.propose(4) == NO_MATCH
    index.extend([1, 2, 3, 2])
    assert index.propose(4) == NO_MATCH


def test_long_agreement_is_counted_up_to_a_bound() -> None:
    index = NgramIndex(min_match=2, max_match=4)
    index.extend([*range(200), *range(150)])
    assert index.propose(3) == NgramMatch(tokens=(150, 151, 152), match_length=64)


def test_tensor_elements_count_as_their_values() -> None:
    index = NgramIndex(min_match=1, max_match=2)
    index.extend(torch.tensor([4, 5, 4]))
    assert index.propose(2) == NgramMatch(tokens=(5, 4), match_length=1)
    assert all(type(token) is int for token in index.propose(2).tokens)


def test_appending_costs_the_same_at_any_length() -> None:
    """Counted in interpreter events, which no other process disturbs."""

    def events_of(index: NgramIndex) -> int:
        count = 0

        def tracer(*_: object) -> object:
            nonlocal count
            count += 1
            return tracer

        before = sys.gettrace()
        sys.settrace(tracer)
        try:
            index.extend([1, 1, 1])
            index.propose(3)
        finally:
            sys.settrace(before)
        return count

    short, long = NgramIndex(), NgramIndex()
    short.extend([1] * 100)
    long.extend([1] * 20_000)
    assert events_of(long) == events_of(short)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"min_match": 0}, ValueError),
        ({"min_match": 3, "max_match": 2}, ValueError),
        ({"min_match": True}, TypeError),
        ({"max_match": 2.0}, TypeError),
    ],
)
def test_bad_limits(arguments: dict[str, int], error: type[Exception]) -> None:
    with pytest.raises(error, match=r"m(in|ax)_match"):
        NgramIndex(**arguments)


def test_bad_calls_change_nothing() -> None:
    index = NgramIndex()
    index.extend([1, 2, 1, 2])
    for length in (-1, 5):
        with pytest.raises(ValueError, match=str(length)):
            index.truncate(length)
    with pytest.raises(ValueError, match="max_tokens"):
        index.propose(-1)
    with pytest.raises(TypeError):
        index.extend([1.5])
    assert index.propose(1) == NgramMatch(tokens=(1,), match_length=2)
