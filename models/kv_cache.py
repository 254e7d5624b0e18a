"""Keys and values of one sequence in memory that is allocated once.

Owns the buffers, their length and the bucketed lengths with which attention reads them.
Knows nothing of what computes keys and values.

Shape suffixes: L layers, K key/value heads, T tokens of a call, S cache positions, D head dimension.
"""

from __future__ import annotations

import torch

KEY_BUCKET = 64
"""Attention reads keys up to a multiple of this, so that a query's key count depends on its position alone."""


def key_length_at(position: int) -> int:
    """How many cache rows the query at `position` is run against; those beyond it are masked."""
    return (position // KEY_BUCKET + 1) * KEY_BUCKET


class KeyValueCache:
    """A `models.causal_model.Cache` of keys and values in one float dtype.

    Layout per layer: keys_values_2KSD, so that one copy stores both. Everything is zero at
    first: rows beyond `length` are masked, but a NaN there would pass through the mask.
    """

    def __init__(
        self,
        *,
        capacity: int,
        num_layers: int,
        num_kv_heads: int,
        head_dim: int,
        spare_positions: int,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """Allocate for `capacity` tokens and `spare_positions` rows of padding behind the last of them.

        Raises:
            ValueError: if `capacity` is below 1.
        """
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1 token, got {capacity}")
        self._capacity = capacity
        self._length = 0
        num_positions = key_length_at(capacity + spare_positions - 1)
        self._keys_values_L2KSD = torch.zeros(
            num_layers, 2, num_kv_heads, num_positions, head_dim, dtype=dtype, device=device
        )
        self._layers_2KSD = self._keys_values_L2KSD.unbind(0)
        self._bucket_views: tuple[int, list[tuple[torch.Tensor, torch.Tensor]]] = (0, [])

    @property
    def capacity(self) -> int:
        """Most tokens that can be held at once."""
        return self._capacity

    @property
    def length(self) -> int:
        """Tokens held now."""
        return self._length

    @property
    def device(self) -> torch.device:
        """Where keys and values lie."""
        return self._keys_values_L2KSD.device

    @property
    def dtype(self) -> torch.dtype:
        """What keys and values are kept in."""
        return self._keys_values_L2KSD.dtype

    @property
    def shape_LKD(self) -> tuple[int, int, int]:
        """Layers, key/value heads and head dimension, by which a model knows its caches."""
        num_layers, _, num_kv_heads, _, head_dim = self._keys_values_L2KSD.shape
        return num_layers, num_kv_heads, head_dim

    @property
    def num_positions(self) -> int:
        """Rows allocated, padding included."""
        return self._keys_values_L2KSD.shape[3]

    @property
    def num_bytes(self) -> int:
        """Bytes allocated for keys and values."""
        return self._keys_values_L2KSD.nbytes

    def rollback(self, length: int) -> None:
        """Forget every token at and beyond `length`; writes one number and nothing else.

        Raises:
            ValueError: if `length` is negative or above the present length.
        """
        if not 0 <= length <= self._length:
            raise ValueError(f"length must be within 0 and the present length {self._length}, got {length}")
        self._length = length

    def advance(self, num_tokens: int) -> None:
        """Count `num_tokens` rows behind `length` as valid; for the model that has just written them.

        Raises:
            ValueError: if they go beyond `capacity`.
        """
        if num_tokens < 0 or self._length + num_tokens > self._capacity:
            raise ValueError(
                f"{num_tokens} tokens do not fit behind {self._length} in a cache of capacity {self._capacity}"
            )
        self._length += num_tokens

    def rows(self, position: int, num_tokens: int) -> tuple[torch.Tensor, ...]:
        """Per layer, the view keys_values_T2KD of `num_tokens` rows from `position` on, to be written to."""
        return self._keys_values_L2KSD[:, :, :, position : position + num_tokens].permute(0, 3, 1, 2, 4).unbind(0)

    def store_at(self, layer: int, positions_T: torch.Tensor, keys_values_T2KD: torch.Tensor) -> None:
        """Write a layer's rows at positions in an int64 tensor on the cache's device, without counting them.

        Where a position repeats, one of its rows is kept.
        """
        source_2KTD = keys_values_T2KD.permute(1, 2, 0, 3).to(self.dtype)
        self._layers_2KSD[layer].index_copy_(2, positions_T, source_2KTD)

    def keys_and_values(self, key_length: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Per layer, keys_1KSD and values_1KSD cut to S = `key_length`; views, kept until another S."""
        if self._bucket_views[0] != key_length:
            cut_L2KSD = self._keys_values_L2KSD[:, :, None, :, :key_length]
            views = [(layer[0], layer[1]) for layer in cut_L2KSD.unbind(0)]
            self._bucket_views = (key_length, views)
        return self._bucket_views[1]
