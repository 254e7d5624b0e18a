"""The preallocated cache: lengths, addresses, bounds and key buckets."""

from __future__ import annotations

import pytest
import torch

from models.causal_model import Cache
from models.kv_cache import KEY_BUCKET, KeyValueCache, key_length_at


def make_cache(capacity: int = 100, spare_positions: int = 20) -> KeyValueCache:
    return KeyValueCache(
        capacity=capacity,
        num_layers=3,
        num_kv_heads=2,
        head_dim=4,
        spare_positions=spare_positions,
        device=torch.device("cpu"),
    )


def test_it_is_a_cache() -> None:
    cache = make_cache()
    assert isinstance(cache, Cache)
    assert (cache.capacity, cache.length, cache.shape_LKD) == (100, 0, (3, 2, 4))
    assert cache.num_positions == 2 * KEY_BUCKET
    assert cache.num_bytes == 3 * 2 * 2 * 2 * KEY_BUCKET * 4 * 4


@pytest.mark.parametrize(("capacity", "spare"), [(1, 0), (63, 1), (64, 0), (64, 1), (100, 256)])
def test_every_query_position_has_its_keys_allocated(capacity: int, spare: int) -> None:
    cache = make_cache(capacity, spare)
    assert cache.num_positions >= key_length_at(capacity + spare - 1)


@pytest.mark.parametrize("position", [0, 1, 62, 63, 64, 65, 127, 128, 1000])
def test_a_key_length_is_the_next_multiple_beyond_the_position(position: int) -> None:
    length = key_length_at(position)
    assert length % KEY_BUCKET == 0
    assert position < length <= position + KEY_BUCKET


def test_rollback_writes_a_length_and_nothing_else() -> None:
    cache = make_cache()
    for layer, rows_T2KD in enumerate(cache.rows(0, 10)):
        rows_T2KD.fill_(layer + 1)
    cache.advance(10)
    before = [(keys.data_ptr(), values.data_ptr()) for keys, values in cache.keys_and_values(KEY_BUCKET)]
    cache.rollback(4)
    assert cache.length == 4
    after = cache.keys_and_values(KEY_BUCKET)
    assert [(keys.data_ptr(), values.data_ptr()) for keys, values in after] == before
    for layer, (keys_1KSD, values_1KSD) in enumerate(after):
        assert keys_1KSD.shape == values_1KSD.shape == (1, 2, KEY_BUCKET, 4)
        for rows in (keys_1KSD, values_1KSD):
            assert (rows[:, :, :10] == layer + 1).all()
            assert (rows[:, :, 10:] == 0).all()


def test_rows_are_positions_of_keys_and_of_values() -> None:
    cache = make_cache()
    cache.rows(5, 2)[1].copy_(torch.arange(2 * 2 * 2 * 4.0).view(2, 2, 2, 4))
    keys_1KSD, values_1KSD = cache.keys_and_values(2 * KEY_BUCKET)[1]
    assert keys_1KSD[0, 1, 5].tolist() == [4, 5, 6, 7]
    assert values_1KSD[0, 0, 6].tolist() == [24, 25, 26, 27]
    assert keys_1KSD.count_nonzero() + values_1KSD.count_nonzero() == 31


@pytest.mark.parametrize("length", [-1, 11])
def test_rollback_out_of_range(length: int) -> None:
    cache = make_cache()
    cache.advance(10)
    with pytest.raises(ValueError, match=f"present length 10, got {length}"):
        cache.rollback(length)
    assert cache.length == 10


def test_advance_beyond_capacity() -> None:
    cache = make_cache(capacity=12)
    cache.advance(10)
    with pytest.raises(ValueError, match="capacity 12"):
        cache.advance(3)
    assert cache.length == 10


def test_capacity_of_nothing() -> None:
    with pytest.raises(ValueError, match="capacity must be at least 1"):
        make_cache(capacity=0)
