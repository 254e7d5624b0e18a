"""Views of one growing sequence: older ones stay true, only the newest grows, counts follow the output."""

from __future__ import annotations

import sys
import threading

import pytest
import torch

from scheduler import TokenHistory


def test_a_history_is_prompt_and_output() -> None:
    history = TokenHistory((5, 6, 7)).extended((1, 2))
    assert history.ids() == [5, 6, 7, 1, 2]
    assert history.ids(3) == [1, 2]
    assert history.ids(5) == []
    assert (history.length, history.num_prompt_tokens, history.num_output_tokens) == (5, 3, 2)


def test_older_views_keep_their_length() -> None:
    first = TokenHistory((5, 6))
    second = first.extended((1,))
    third = second.extended((2, 3))
    assert (first.ids(), second.ids(), third.ids()) == ([5, 6], [5, 6, 1], [5, 6, 1, 2, 3])


def test_only_the_newest_view_grows() -> None:
    first = TokenHistory((5, 6))
    first.extended((1,))
    with pytest.raises(ValueError, match="only the newest history can grow: it has 3 tokens, this view 2"):
        first.extended((2,))


def test_the_prompt_given_is_copied() -> None:
    prompt = [1, 2]
    history = TokenHistory(prompt)
    prompt.append(3)
    assert history.extended((9,)).ids() == [1, 2, 9]


def test_ids_are_a_copy() -> None:
    history = TokenHistory((1, 2))
    history.ids().append(3)
    assert history.ids() == [1, 2]


class TestCounts:
    def test_are_kept_only_where_asked_for(self) -> None:
        assert TokenHistory((1,)).extended((1,)).counts is None

    def test_prompt_is_seen_but_not_counted(self) -> None:
        counts = TokenHistory((1, 1, 3), count_vocab_size=5).counts
        assert counts is not None
        assert counts.seen_V.tolist() == [False, True, False, True, False]
        assert counts.in_output_V.tolist() == [0] * 5

    def test_output_is_seen_and_counted(self) -> None:
        history = TokenHistory((1,), count_vocab_size=5).extended((2, 2, 4)).extended(()).extended((2,))
        assert history.counts is not None
        assert history.counts.seen_V.tolist() == [False, True, True, False, True]
        assert history.counts.in_output_V.tolist() == [0, 0, 3, 0, 1]

    def test_older_counts_stay_true(self) -> None:
        first = TokenHistory((1,), count_vocab_size=3)
        second = first.extended((2, 2))
        assert first.counts is not None
        assert second.counts is not None
        assert first.counts.in_output_V.tolist() == [0, 0, 0]
        ahead = second.counts.with_tokens((0, 0, 2))
        assert ahead.in_output_V.tolist() == [2, 0, 3]
        assert second.counts.in_output_V.tolist() == [0, 0, 2]
        assert second.counts.seen_V.tolist() == [False, True, True]

    def test_counts_stay_exact_where_float_sums_would_round(self) -> None:
        counts = TokenHistory((0,), count_vocab_size=2).counts
        assert counts is not None
        many = counts.with_tokens((1,) * 10_001)
        assert many.in_output_V[1] == 10_001
        assert many.in_output_V.dtype == torch.float32


def test_a_reader_on_another_thread_never_sees_a_wrong_view() -> None:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    newest = [TokenHistory((0,))]
    stopped = threading.Event()
    wrong: list[list[int]] = []

    def read() -> None:
        while not stopped.is_set():
            view = newest[0]
            if view.ids() != list(range(view.length)):
                wrong.append(view.ids())

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for length in range(1, 1500):
            newest[0] = newest[0].extended((length,))
    finally:
        stopped.set()
        reader.join()
        sys.setswitchinterval(interval)
    assert not wrong
