"""Causal grouped-query attention of a block against a preallocated cache, exact in its last bit.

Owns the plan of a block's attention (which query rows run against how many keys, under which mask)
and its execution. Knows nothing of projections, rotation or layers.

A row's bits must not depend on the block it came in. Three things would let them: the number of
keys a call is given (so it is a function of the query's position, `kv_cache.key_length_at`, and a block
is cut where that changes), the number of query rows (so calls use window widths that a probe found to
agree), and reading another row (so the mask hides whatever a query may not see). The queries of a
group are folded into rows: no key is repeated.

Shape suffixes: T tokens of the block, H query heads, K key/value heads, G queries a group (H/K),
N rows of one call (window tokens times G), S cache positions, D head dimension.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from models.block_width import ExactWidths, ProbedWidths, places_to_probe, probe_exact_widths
from models.kv_cache import KeyValueCache, key_length_at

WINDOW_CANDIDATES = (*range(1, 18), 24, 32)
"""Tokens per attention call that the probe tries; wider calls gain nothing."""


@dataclass(frozen=True, kw_only=True)
class AttentionWindow:
    """One attention call: block rows from `first` on against `key_length` keys, of which rows keep_* are used."""

    first: int
    stop: int
    """May lie beyond the block: the call is padded with queries of zeros."""
    keep_first: int
    keep_stop: int
    key_length: int
    mask_NS: torch.Tensor
    """The cache's dtype: 0 where a query sees a key, minus infinity elsewhere; N may be 1 and stand for every row."""


def plan_windows(
    position: int,
    num_tokens: int,
    *,
    group_size: int,
    sliding_window: int | None,
    widths: ExactWidths,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
) -> list[AttentionWindow]:
    """Cut a block of `num_tokens` at `position` into calls whose kept rows cover it in order.

    Windows may overlap, reach past a change of key length or past the block; rows outside the kept range
    are computed for the sake of the call's width and dropped.
    """
    windows = []
    row = 0
    while row < num_tokens:
        key_length = key_length_at(position + row)
        segment_stop = min(num_tokens, key_length - position)
        for width in widths.cover(segment_stop - row):
            keep_stop = min(row + width, segment_stop)
            first = max(0, min(row, num_tokens - width))
            positions_T = torch.arange(position + first, position + first + width, device=device)
            mask_NS = _mask(positions_T, key_length, group_size, sliding_window, dtype)
            windows.append(
                AttentionWindow(
                    first=first,
                    stop=first + width,
                    keep_first=row,
                    keep_stop=keep_stop,
                    key_length=key_length,
                    mask_NS=mask_NS,
                )
            )
            row = keep_stop
    return windows


def window_at(
    positions_T: torch.Tensor, key_length: int, *, group_size: int, sliding_window: int | None, dtype: torch.dtype
) -> AttentionWindow:
    """One call for queries whose positions are on the device, in any order; nothing is read on the host."""
    num_tokens = positions_T.shape[0]
    return AttentionWindow(
        first=0,
        stop=num_tokens,
        keep_first=0,
        keep_stop=num_tokens,
        key_length=key_length,
        mask_NS=_mask(positions_T, key_length, group_size, sliding_window, dtype),
    )


def _mask(
    positions_T: torch.Tensor, key_length: int, group_size: int, sliding_window: int | None, dtype: torch.dtype
) -> torch.Tensor:
    num_tokens = positions_T.shape[0]
    keys_S = torch.arange(key_length, device=positions_T.device)
    positions_T1 = positions_T[:, None]
    hidden_TS = keys_S > positions_T1
    if sliding_window is not None:
        hidden_TS |= keys_S <= positions_T1 - sliding_window
    mask_TS = torch.zeros(num_tokens, key_length, device=positions_T.device, dtype=dtype)
    mask_TS.masked_fill_(hidden_TS, -math.inf)
    if num_tokens == 1:
        return mask_TS
    return mask_TS[:, None].expand(num_tokens, group_size, key_length).reshape(-1, key_length)


def attend(
    queries_TGKD: torch.Tensor,
    keys_values_by_length: dict[int, tuple[torch.Tensor, torch.Tensor]],
    windows: list[AttentionWindow],
) -> torch.Tensor:
    """Attention of a whole block.

    Args:
        queries_TGKD: rotated queries; the inner order K, D is contiguous. They are rounded to the cache's dtype.
        keys_values_by_length: keys_1KSD and values_1KSD for each key length among the windows.
        windows: from `plan_windows`, for this block's position and width.

    Returns:
        attended_TH, the concatenated heads in the order (group, kv head, feature), contiguous, in the cache's dtype.
    """
    num_tokens = queries_TGKD.shape[0]
    kept = []
    for window in windows:
        rows_TGKD = queries_TGKD[window.first : window.stop]
        if window.stop > num_tokens:
            rows_TGKD = F.pad(rows_TGKD, (0, 0, 0, 0, 0, 0, 0, window.stop - num_tokens))
        rows_TH = _attend_window(rows_TGKD, keys_values_by_length[window.key_length], window)
        if window.keep_stop - window.keep_first < window.stop - window.first:
            rows_TH = rows_TH[window.keep_first - window.first : window.keep_stop - window.first]
        kept.append(rows_TH)
    return kept[0] if len(kept) == 1 else torch.cat(kept)


def _attend_window(
    queries_TGKD: torch.Tensor, keys_values: tuple[torch.Tensor, torch.Tensor], window: AttentionWindow
) -> torch.Tensor:
    num_tokens, group_size, num_kv_heads, head_dim = queries_TGKD.shape
    keys_1KSD, values_1KSD = keys_values
    queries_1NKD = queries_TGKD.to(keys_1KSD.dtype).reshape(1, num_tokens * group_size, num_kv_heads, head_dim)
    queries_1KND = queries_1NKD.transpose(1, 2)
    attended_1KND = F.scaled_dot_product_attention(queries_1KND, keys_1KSD, values_1KSD, attn_mask=window.mask_NS)
    # The kernel writes rows outermost, so this is a view: heads come out in the order (group, kv head).
    return attended_1KND.transpose(1, 2).reshape(num_tokens, group_size * num_kv_heads * head_dim)


def probe_window_widths(
    *,
    num_kv_heads: int,
    group_size: int,
    head_dim: int,
    device: torch.device,
    dtype: torch.dtype,
    generator: torch.Generator,
    must_agree: bool,
    thread_counts: Sequence[int],
) -> ProbedWidths:
    """Find the numbers of tokens per attention call that agree to the bit here."""
    num_tokens = max(WINDOW_CANDIDATES)
    # The kernel goes through keys in blocks of 512: half of the queries have one such block, half have two.
    position = 512 - num_tokens // 2
    cache = KeyValueCache(
        capacity=position + num_tokens,
        num_layers=1,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        spare_positions=0,
        device=device,
        dtype=dtype,
    )
    keys_values_S2KD = cache.rows(0, cache.num_positions)[0]
    keys_values_S2KD.copy_(torch.randn(keys_values_S2KD.shape, generator=generator))
    queries_TGKD = torch.randn(num_tokens, group_size, num_kv_heads, head_dim, generator=generator).to(device)

    def rows(width: int, split: int) -> torch.Tensor:
        kept = []
        for start, stop in ((0, split), (split, num_tokens)):
            windows = plan_windows(
                position + start,
                stop - start,
                group_size=group_size,
                sliding_window=None,
                widths=ExactWidths((width,)),
                device=device,
                dtype=dtype,
            )
            views = {window.key_length: cache.keys_and_values(window.key_length)[0] for window in windows}
            if windows:
                kept.append(attend(queries_TGKD[start:stop], views, windows))
        return torch.cat(kept)

    def rows_at_width(width: int) -> list[torch.Tensor]:
        return [rows(width, split) for split in places_to_probe(width)]

    return probe_exact_widths(
        WINDOW_CANDIDATES, rows_at_width, num_rows_needed=16, must_agree=must_agree, thread_counts=thread_counts
    )
