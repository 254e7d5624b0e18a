"""A preallocated key/value cache in the shape that transformers' own models ask for.

Owns the buffers, their one shared length and the stretch of them that attention reads. Knows nothing of
which model fills them. Imports transformers, so only what has already loaded one of its models imports this.

Unlike transformers' caches, no layer drops or wraps anything, not even where the model attends to a sliding window:
the mask hides what lies outside the window, and rolling back is exact.

Shape suffixes: K key/value heads, T tokens of a call, S cache positions, D head dimension; the leading 1 is the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers.cache_utils import Cache as LayeredCache
from transformers.cache_utils import CacheLayerMixin

from models.kv_cache import key_length_at


@dataclass(frozen=True, kw_only=True)
class LayerShape:
    """What one layer stores for each position."""

    num_kv_heads: int
    key_dim: int
    value_dim: int
    dtype: torch.dtype
    device: torch.device


@dataclass(kw_only=True)
class _Extent:
    """The numbers that all layers share."""

    length: int = 0
    """Positions that hold valid entries; the next call writes from here."""
    key_length: int = 0
    """Positions that the present call attends over; those beyond the query are masked."""


class _RewindableLayer(CacheLayerMixin):  # type: ignore[misc]  # transformers is unchecked: see pyproject.toml
    """One layer's buffers; writes at the shared length and never moves it."""

    is_croppable = True
    is_compileable = True  # asks transformers for a mask even where a call holds a single token

    def __init__(self, shape: LayerShape, num_positions: int, extent: _Extent) -> None:
        super().__init__()
        self._extent = extent
        size_1KS = (1, shape.num_kv_heads, num_positions)
        # Zeroed: what lies beyond the length is masked, but a NaN there would pass through the mask.
        self.keys = torch.zeros(*size_1KS, shape.key_dim, dtype=shape.dtype, device=shape.device)
        self.values = torch.zeros(*size_1KS, shape.value_dim, dtype=shape.dtype, device=shape.device)
        self.is_initialized = True

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing is left to do: buffers exist from the start."""

    def update(
        self, keys_1KTD: torch.Tensor, values_1KTD: torch.Tensor, *_: object, **__: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store T entries and return views of all that the call attends over."""
        written = slice(self._extent.length, self._extent.length + keys_1KTD.shape[-2])
        self.keys[:, :, written] = keys_1KTD
        self.values[:, :, written] = values_1KTD
        seen = slice(0, self._extent.key_length)
        return self.keys[:, :, seen], self.values[:, :, seen]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Keys in the mask, and the position of the first of them."""
        return self._extent.key_length, 0

    def get_seq_length(self) -> int:
        """Positions held, which is the position of the call's first token."""
        return self._extent.length

    def get_max_length(self) -> int:
        """Positions allocated."""
        return int(self.keys.shape[-2])


class RewindableCache:
    """A `models.causal_model.Cache` whose `layered` part is handed to a transformers model."""

    def __init__(self, shapes: Sequence[LayerShape], *, capacity: int, spare_positions: int) -> None:
        """Allocate all layers.

        Args:
            shapes: one for each layer.
            capacity: most tokens held at once.
            spare_positions: rows behind them that padded calls may write.

        Raises:
            ValueError: if `capacity` is below 1.
        """
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1 token, got {capacity}")
        self.shapes = tuple(shapes)
        self._capacity = capacity
        self._spare_positions = spare_positions
        self._extent = _Extent()
        num_positions = self.key_length_at(capacity - 1)
        # Buffers made in inference mode could not be written outside of it later.
        with torch.inference_mode(mode=False):
            self._layers = [_RewindableLayer(shape, num_positions, self._extent) for shape in shapes]
        self.layered = LayeredCache(layers=self._layers)

    @property
    def capacity(self) -> int:
        """Most tokens that can be held at once."""
        return self._capacity

    @property
    def length(self) -> int:
        """Tokens held now."""
        return self._extent.length

    @property
    def num_bytes(self) -> int:
        """Bytes allocated for keys and values."""
        return sum(buffer.nbytes for buffer in self.buffers())

    def buffers(self) -> list[torch.Tensor]:
        """Every layer's keys_1KSD and values_1KSD."""
        return [buffer for layer in self._layers for buffer in (layer.keys, layer.values)]

    def rollback(self, length: int) -> None:
        """Forget every token at and beyond `length`; writes one number and nothing else.

        Raises:
            ValueError: if `length` is negative or above the present length.
        """
        if not 0 <= length <= self.length:
            raise ValueError(f"length must be within 0 and the present length {self.length}, got {length}")
        self._extent.length = length

    def advance(self, num_tokens: int) -> None:
        """Count `num_tokens` written entries as valid.

        Raises:
            ValueError: if they go beyond `capacity`.
        """
        if num_tokens < 0 or self.length + num_tokens > self.capacity:
            raise ValueError(f"{num_tokens} tokens do not fit behind {self.length} in a cache of {self.capacity}")
        self._extent.length += num_tokens

    def fill_at_random(self) -> None:
        """Write the same random entries everywhere: a past for measuring with, where any will do."""
        generator = torch.Generator().manual_seed(0)
        for buffer in self.buffers():
            buffer.copy_(torch.randn(buffer.shape, generator=generator))

    def key_length_at(self, position: int) -> int:
        """How many keys the query at `position` is run against, with room for the padding behind it."""
        return key_length_at(position) + self._spare_positions

    def attend_up_to(self, key_length: int) -> None:
        """Set how many keys the next calls attend over."""
        self._extent.key_length = key_length
