"""What training sees of the text: no copies, nothing that is held out, everything else once an epoch.

Shape suffixes: N sequences, T tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest
import torch

from models.distill.corpus import Corpus
from models.distill.shard import is_held_out, read_shard, sequence_keys, shard_path, shard_paths, write_shard
from models.errors import CheckpointError
from tests.support.toy_distillation import shard_of

TEXT_NT = torch.randint(100, (300, 100), generator=torch.Generator().manual_seed(8))


def text_of(corpus: Corpus, places: list[tuple[int, int]]) -> set[tuple[int, ...]]:
    return {tuple(ids) for ids in corpus.batch(places).token_ids_BT.tolist()}


def test_copies_are_dropped_also_those_that_differ_late() -> None:
    again_NT = TEXT_NT[100:200].clone()
    again_NT[:, -2:] += 100
    corpus = Corpus([shard_of(TEXT_NT[:200]), shard_of(again_NT), shard_of(TEXT_NT[200:])])
    assert corpus.num_copies == 100
    assert len(corpus.training) + len(corpus.held_out) == 300
    assert not text_of(corpus, corpus.training) & {tuple(ids) for ids in again_NT.tolist()}


def test_what_is_held_out_is_told_by_content_and_never_learnt() -> None:
    corpus = Corpus([shard_of(TEXT_NT)])
    reordered = Corpus([shard_of(TEXT_NT.flip(0)[:150]), shard_of(TEXT_NT.flip(0)[150:])])
    held_out = text_of(corpus, corpus.held_out)
    assert held_out == text_of(reordered, reordered.held_out)
    assert 2 <= len(held_out) <= 25
    assert held_out == {
        tuple(ids.tolist())
        for ids, key in zip(TEXT_NT, sequence_keys(shard_of(TEXT_NT)), strict=True)
        if is_held_out(key)
    }
    batches = islice(corpus.places_from(0, batch_sequences=7, seed=1), 100)
    learnt = {place for places in batches for place in places}
    assert learnt == set(corpus.training)
    assert not learnt & set(corpus.held_out)


def test_each_epoch_has_every_batch_once_in_an_order_of_its_own() -> None:
    corpus = Corpus([shard_of(TEXT_NT)])
    steps = len(corpus.training) // 8
    batches = list(islice(corpus.places_from(0, batch_sequences=8, seed=1), 2 * steps))
    first, second = ([place for places in batches[start : start + steps] for place in places] for start in (0, steps))
    assert len(set(first)) == len(first) == len(set(second)) == 8 * steps
    assert first != second
    for start in (0, 1, steps - 1, steps, steps + 3):
        assert list(islice(corpus.places_from(start, batch_sequences=8, seed=1), 5)) == batches[start : start + 5]
    assert next(corpus.places_from(0, batch_sequences=8, seed=2)) != batches[0]


def test_counts_leave_out_what_is_held_out_and_what_nobody_asks_for() -> None:
    shard = shard_of(TEXT_NT)
    shard.asked_NT[:, :30] = False
    corpus = Corpus([shard])
    counts_V = corpus.token_counts(100)
    # The first token that is asked for follows the thirty-first, and nothing follows the last.
    assert int(counts_V.sum()) == 69 * len(corpus.training)
    expected_V = sum(
        torch.bincount(corpus.batch([place]).token_ids_BT[0, 31:], minlength=100) for place in corpus.training
    )
    assert torch.equal(counts_V, expected_V)
    assert corpus.num_training_tokens == 100 * len(corpus.training)


def test_too_little_text_is_refused_with_a_way_out() -> None:
    with pytest.raises(ValueError, match="too few; have more text written"):
        Corpus([shard_of(TEXT_NT[:1])])


def test_held_out_text_that_reaches_no_answer_is_refused() -> None:
    shard = shard_of(TEXT_NT)
    # What follows the last token is in no row.
    shard.asked_NT[:, :-1] = False
    with pytest.raises(ValueError, match=r"none of \d+ held-out sequences reaches an answer"):
        Corpus([shard])


def test_a_shard_comes_back_as_it_was(tmp_path: Path) -> None:
    shard = shard_of(TEXT_NT[:5])
    write_shard(shard_path(tmp_path, 3), shard)
    found = read_shard(tmp_path / "text-00003.safetensors")
    assert torch.equal(found.token_ids_NT, shard.token_ids_NT)
    assert found.features_NTE.dtype is torch.float16
    assert found.kinds == shard.kinds
    assert [path.name for path in tmp_path.iterdir()] == ["text-00003.safetensors"]


@pytest.mark.parametrize("damage", [lambda b: b[: len(b) // 2], lambda b: b"", lambda b: b.replace(b"kinds", b"kindS")])
def test_a_damaged_shard_is_named_with_a_way_out(damage: Callable[[bytes], bytes], tmp_path: Path) -> None:
    path = shard_path(tmp_path, 0)
    write_shard(path, shard_of(TEXT_NT))
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(CheckpointError, match=r"text-00000\.safetensors is damaged.*delete it"):
        Corpus.of(shard_paths(tmp_path))
