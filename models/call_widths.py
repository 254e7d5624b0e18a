"""At which widths a decoder's layers, attention and head give bit-identical rows, by running them.

Owns the probe's choice of rows and places, and what it found. Knows of the decoder only how to run its layers and
its head.

Shape suffixes: T tokens, R rows, E hidden width.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F

from models.attention import probe_window_widths
from models.block_width import ExactWidths, ProbedWidths, places_to_probe, probe_exact_widths
from models.config import ModelConfig
from models.kv_cache import KEY_BUCKET, KeyValueCache
from models.thread_counts import intra_op_threads

VERIFY_BLOCK = 17
"""The widest call that shall be cheap: a proposal of sixteen tokens and the one before it."""
WIDE_WIDTHS = (24, 32, 48, 64, 128, 256)
"""Widths for prefill that the probe tries beside all narrow ones."""

RunLayers = Callable[[torch.Tensor, KeyValueCache, int, ExactWidths], torch.Tensor]
"""hidden_TE of token_ids_T at a position, attention being called at the given widths."""
RunHead = Callable[[torch.Tensor, ExactWidths], torch.Tensor]
"""logits_RV of hidden_RE, the head being called at the given widths."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CallWidths:
    """Widths at which each part of the forward pass gives bit-identical rows on this machine."""

    layers: ExactWidths
    """Tokens per pass through the layers."""
    attention: ExactWidths
    """Tokens per attention call inside a pass."""
    head: ExactWidths
    """Rows per call of the output head."""
    exact: bool
    """Whether a row's bits do not depend on its place either; if not, calls have one width and last bits may differ."""
    thread_counts: tuple[int, ...]
    """Numbers of intra-op threads under which the rows have the same bits."""


def probe_call_widths(
    config: ModelConfig,
    *,
    max_block: int,
    cache: KeyValueCache,
    run_layers: RunLayers,
    run_head: RunHead,
    narrowest: int,
    must_agree: bool,
    thread_counts: tuple[int, ...],
) -> CallWidths:
    """Run a decoder's parts at many widths and places, and under each of `thread_counts`.

    Args:
        config: the decoder's shape.
        max_block: its widest call.
        cache: an empty one for at least the widest of `WIDE_WIDTHS` tokens; its rows are written, its length is not.
        run_layers: one layer is enough, as all have the same shapes and so run the same kernels.
        run_head: the output head.
        narrowest: the narrowest width that layers and head may be called at. Above 1 where sums are rounded to half
            precision: a single row has a kernel of its own nearly everywhere, and the rounding may hide that from a
            probe's few rows.
        must_agree: whether rows have to agree to the bit, whatever that costs; see `block_width.probe_exact_widths`.
        thread_counts: ascending, this thread's present one among them.
    """
    generator = torch.Generator().manual_seed(0)
    # Counts under which one part does not agree need not be tried with the next.
    attention = probe_window_widths(
        num_kv_heads=config.num_kv_heads,
        group_size=config.num_heads // config.num_kv_heads,
        head_dim=config.head_dim,
        device=cache.device,
        dtype=cache.dtype,
        generator=generator,
        must_agree=must_agree,
        thread_counts=thread_counts,
    )
    hidden_1E = torch.randn(1, config.hidden_size, generator=generator).to(cache.device)
    head = _probe_head(run_head, hidden_1E, narrowest, must_agree, attention.thread_counts)
    ids_T = torch.randint(config.vocab_size, (max(WIDE_WIDTHS),), generator=generator).to(cache.device)

    def run(token_ids_T: torch.Tensor, position: int) -> torch.Tensor:
        return run_layers(token_ids_T, cache, position, attention.widths)

    narrow = range(narrowest, max(narrowest, min(VERIFY_BLOCK, max_block)) + 1)
    wide = [width for width in WIDE_WIDTHS if width <= max_block]
    layers = _probe_layers(run, ids_T, narrow, wide, must_agree, head.thread_counts)
    return CallWidths(
        layers=layers.widths,
        attention=attention.widths,
        head=head.widths,
        exact=layers.exact and attention.exact and head.exact,
        thread_counts=layers.thread_counts,
    )


def _probe_head(
    run_head: RunHead, hidden_1E: torch.Tensor, narrowest: int, must_agree: bool, thread_counts: tuple[int, ...]
) -> ProbedWidths:
    def rows_at_width(width: int) -> list[torch.Tensor]:
        # The same row at every place of one call: cheap, where a head is as large as many layers.
        return list(run_head(hidden_1E.repeat(width, 1), ExactWidths((width,))))

    widths = range(narrowest, VERIFY_BLOCK + 1)
    return probe_exact_widths(widths, rows_at_width, VERIFY_BLOCK, must_agree=must_agree, thread_counts=thread_counts)


def _probe_layers(
    run: Callable[[torch.Tensor, int], torch.Tensor],
    ids_T: torch.Tensor,
    narrow: Sequence[int],
    wide: Sequence[int],
    must_agree: bool,
    thread_counts: tuple[int, ...],
) -> ProbedWidths:
    def hidden_rows(width: int, first: int, stop: int, split: int) -> torch.Tensor:
        """Rows first .. stop - 1; the first call takes `split` tokens, unless that is 0, all others `width`."""
        rows = []
        position = first
        while position < stop:
            num_real = min(split if position == first and split else width, stop - position)
            block_ids_T = F.pad(ids_T[position : position + num_real], (0, width - num_real))
            rows.append(run(block_ids_T, position)[:num_real])
            position += num_real
        return torch.cat(rows)

    # Blocks start in the middle of a key bucket and cross into the next one.
    first, stop = KEY_BUCKET - 12, KEY_BUCKET + 8
    hidden_rows(16, 0, first, 0)

    def rows_at_width(width: int) -> list[torch.Tensor]:
        return [hidden_rows(width, first, stop, split) for split in places_to_probe(width)]

    chosen = probe_exact_widths(narrow, rows_at_width, VERIFY_BLOCK, must_agree=must_agree, thread_counts=thread_counts)
    whole = ids_T.shape[0]
    reference_TE = hidden_rows(chosen.widths.widest, 0, whole, 0)

    def agrees(width: int, thread_count: int) -> bool:
        with intra_op_threads(thread_count):
            return torch.equal(hidden_rows(width, 0, whole, 0), reference_TE)

    agreeing = [width for width in wide if all(agrees(width, count) for count in chosen.thread_counts)]
    return dataclasses.replace(chosen, widths=ExactWidths((*chosen.widths.widths, *agreeing)))
