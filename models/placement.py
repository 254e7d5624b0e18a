"""Where the tokens of a call stand in the cache: behind each other from a host number on, or at positions in a tensor.

Owns the two ways to place a call, each with its rotation, its attention windows and its writing of cache
rows. Knows nothing of layers or matrices.

    along     rows `position ..`; cut and padded so that a row's bits do not depend on the call (`models.attention`)
    at        rows named by a tensor on the device; one attention call, shapes from host numbers alone

Shape suffixes: L layers, T tokens of this call, K key/value heads, S cache positions, D head dimension, F frequencies;
the 2 is keys and values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from models.attention import AttentionWindow, plan_windows, window_at
from models.block_width import ExactWidths
from models.kv_cache import KeyValueCache, key_length_at
from models.rope import RotaryTable


@dataclass(frozen=True, kw_only=True)
class Placement:
    """One call's place."""

    factors_T11F: torch.Tensor
    """Rotation of each token, complex64."""
    windows: list[AttentionWindow]
    rows_by_layer: tuple[torch.Tensor, ...] | None
    """Per layer, the cache rows keys_values_T2KD that `store` writes to; None where they are no view."""
    store: Callable[[int, torch.Tensor], None]
    """Writes the cache rows keys_values_T2KD of a layer, given by its index."""
    views_by_length: dict[int, list[tuple[torch.Tensor, torch.Tensor]]]
    """For each key length among the windows, keys_1KSD and values_1KSD of every layer."""

    def keys_values(self, layer: int) -> dict[int, tuple[torch.Tensor, torch.Tensor]]:
        """keys_1KSD and values_1KSD of one layer, by key length."""
        return {length: views[layer] for length, views in self.views_by_length.items()}


def place_along(
    position: int,
    num_tokens: int,
    cache: KeyValueCache,
    rotary: RotaryTable,
    *,
    group_size: int,
    sliding_window: int | None,
    widths: ExactWidths,
) -> Placement:
    """Tokens at `position .. position + num_tokens - 1`; attention runs at `widths` only."""
    windows = plan_windows(
        position,
        num_tokens,
        group_size=group_size,
        sliding_window=sliding_window,
        widths=widths,
        device=cache.device,
        dtype=cache.dtype,
    )
    rows_by_layer = cache.rows(position, num_tokens)
    return Placement(
        factors_T11F=rotary.factors(position, num_tokens)[:, None, None],
        windows=windows,
        rows_by_layer=rows_by_layer,
        store=lambda layer, keys_values_T2KD: _copy(rows_by_layer[layer], keys_values_T2KD),
        views_by_length={window.key_length: cache.keys_and_values(window.key_length) for window in windows},
    )


def place_at(
    positions_T: torch.Tensor,
    cache: KeyValueCache,
    rotary: RotaryTable,
    *,
    key_length: int,
    group_size: int,
    sliding_window: int | None,
) -> Placement:
    """Tokens at `positions_T`, which the host does not look at; each sees keys among the first `key_length`."""
    bucket_length = key_length_at(key_length - 1)
    window = window_at(
        positions_T, bucket_length, group_size=group_size, sliding_window=sliding_window, dtype=cache.dtype
    )
    return Placement(
        factors_T11F=rotary.factors_at(positions_T)[:, None, None],
        windows=[window],
        rows_by_layer=None,
        store=lambda layer, keys_values_T2KD: cache.store_at(layer, positions_T, keys_values_T2KD),
        views_by_length={bucket_length: cache.keys_and_values(bucket_length)},
    )


def _copy(rows_T2KD: torch.Tensor, keys_values_T2KD: torch.Tensor) -> None:
    rows_T2KD.copy_(keys_values_T2KD)
