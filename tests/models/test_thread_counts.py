"""Widths whose rows agree under several numbers of threads, and what happens where none do.

Shape suffixes: T tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from models.block_width import ExactWidths, RowsAtWidth, probe_exact_widths
from models.checkpoint import open_checkpoint
from models.decoder import Decoder
from models.linear import WeightKind, has_packed_kinds
from models.loading import open_model
from models.thread_counts import intra_op_threads, with_present_count
from tests.support.tiny_checkpoint import write_tiny_folder
from tests.support.tiny_decoders import llama

KINDS = list(WeightKind) if has_packed_kinds(torch.device("cpu")) else [WeightKind.FLOAT32]
ROWS = torch.arange(12.0)


@pytest.fixture(autouse=True)
def three_threads() -> Iterator[None]:
    """Another number than any that is asked for; whatever a test does, it must be the number afterwards."""
    with intra_op_threads(3):
        yield
        assert torch.get_num_threads() == 3


def rows_by_width_and_threads(agreeing: set[int]) -> RowsAtWidth:
    """A machine on which the number of threads shows at every width but the `agreeing` ones."""

    def rows(width: int) -> list[torch.Tensor]:
        return [ROWS + (0 if width in agreeing else 1e-3 * torch.get_num_threads())]

    return rows


def test_widths_that_agree_under_every_count_are_kept() -> None:
    probed = probe_exact_widths(range(1, 9), rows_by_width_and_threads({1, 4, 8}), 8, thread_counts=(1, 2, 3))
    assert probed.widths == ExactWidths((1, 4, 8))
    assert probed.thread_counts == (1, 2, 3)


def test_where_none_agree_the_present_count_stands_alone() -> None:
    probed = probe_exact_widths(range(1, 9), rows_by_width_and_threads(set()), 8, thread_counts=(1, 2, 3))
    assert probed.widths == ExactWidths(tuple(range(1, 9)))
    assert probed.thread_counts == (3,)


def test_widths_that_agree_but_cost_too_much_are_left() -> None:
    for agreeing, kept in ((16, False), (3, False), (2, False), (1, False)):
        probed = probe_exact_widths(range(1, 17), rows_by_width_and_threads({agreeing}), 16, thread_counts=(1, 3))
        assert (probed.thread_counts == (1, 3)) is kept, agreeing
    probed = probe_exact_widths(range(1, 17), rows_by_width_and_threads({3, 16}), 16, thread_counts=(1, 3))
    assert probed.thread_counts == (1, 3)


def test_one_count_is_asked_for_by_default() -> None:
    seen = set()

    def rows(width: int) -> list[torch.Tensor]:
        seen.add(torch.get_num_threads())
        return [ROWS]

    assert probe_exact_widths((1, 2), rows, 2).thread_counts == (3,)
    assert seen == {3}


def test_the_present_count_is_always_among_them() -> None:
    assert with_present_count(()) == (3,)
    assert with_present_count((4, 1, 1)) == (1, 3, 4)


@pytest.mark.parametrize(("count", "error"), [(0, ValueError), (-2, ValueError), (1.5, TypeError), (True, TypeError)])
def test_bad_counts(count: object, error: type[Exception]) -> None:
    with pytest.raises(error, match="thread_counts must hold"):
        Decoder.from_checkpoint(llama().checkpoint, thread_counts=(1, count))  # type: ignore[arg-type]


def test_a_failing_block_gives_the_threads_back() -> None:
    seen = []

    def fail() -> None:
        with intra_op_threads(1):
            seen.append(torch.get_num_threads())
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert seen == [1]


def rows_under(decoder: Decoder, token_ids_T: torch.Tensor, sizes: list[int], counts: tuple[int, ...]) -> torch.Tensor:
    """All rows, in blocks, each of which runs with the next of the thread counts."""
    cache = decoder.new_cache(token_ids_T.shape[0])
    rows = []
    for index, ids_T in enumerate(token_ids_T.split(sizes)):
        with intra_op_threads(counts[index % len(counts)]):
            rows.append(decoder.forward(ids_T, cache, num_logits=ids_T.shape[0]))
    return torch.cat(rows)


def assert_threads_do_not_show(decoder: Decoder, token_ids_T: torch.Tensor) -> None:
    """Compare single rows with blocks of many widths across a change of key length, each with other threads."""
    num_tokens, first = token_ids_T.shape[0], decoder.thread_counts[0]
    expected_TV = rows_under(decoder, token_ids_T, [1] * num_tokens, (first,))
    counts = decoder.thread_counts
    for order in (counts, counts[::-1]):
        found_TV = rows_under(decoder, token_ids_T, [num_tokens - 34, 1, 1, 2, 4, 9, 17], order)
        assert torch.equal(found_TV, expected_TV), order


@pytest.mark.parametrize("kind", KINDS)
def test_a_decoders_rows_keep_their_bits_when_the_threads_change(kind: WeightKind) -> None:
    checkpoint = llama(vocab_size=1031, hidden_size=192, intermediate_size=320).checkpoint
    ids_T = torch.randint(1031, (75,), generator=torch.Generator().manual_seed(3))
    with intra_op_threads(2):
        decoder = Decoder.from_checkpoint(checkpoint, weights=kind, thread_counts=(1,))
        assert decoder.thread_counts in {(1, 2), (2,)}
        assert_threads_do_not_show(decoder, ids_T)
        assert decoder.first_layers(1).thread_counts == decoder.thread_counts


def test_probing_again_forgets_the_counts_that_are_not_asked_for_again() -> None:
    with intra_op_threads(1):
        decoder = Decoder.from_checkpoint(llama().checkpoint, max_block=4, thread_counts=(2,))
        decoder.probe()
        assert decoder.thread_counts == (1,)


def test_opening_hands_the_counts_on(tmp_path: Path) -> None:
    with open_model(write_tiny_folder(tmp_path), weights=WeightKind.FLOAT32) as opened:
        loaded = opened.load(thread_counts=(1,))
        with pytest.raises(ValueError, match="thread_counts"):
            opened.load(thread_counts=(0,))
    assert loaded.thread_counts in {(1, 3), (3,)}


@pytest.mark.weights
@pytest.mark.parametrize("kind", [WeightKind.FLOAT16, WeightKind.INT8])
def test_real_weights_keep_their_bits_when_the_threads_change(demo_gguf: Path, kind: WeightKind) -> None:
    with intra_op_threads(2), open_checkpoint(demo_gguf) as checkpoint:
        decoder = Decoder.from_checkpoint(checkpoint, weights=kind, thread_counts=(1, 2))
        assert decoder.thread_counts in {(1, 2), (2,)}
        ids_T = torch.tensor(checkpoint.tokenizer().encode("A sentence that is said again and again. " * 20)[:75])
        assert_threads_do_not_show(decoder, ids_T)
