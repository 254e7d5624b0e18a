"""The transforms that make up the sampling law, each on one row of logits or on many at once.

Owns the arithmetic that the law has in common wherever its rows live. Nothing here looks at a value on the host, and
the result for a row is the same whether it comes alone or among others. Knows nothing of models, rounds or devices.

Shape suffixes: V vocabulary, C most likely tokens, descending. Every tensor may have leading dimensions; those of one
call broadcast.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from scheduler.settings import SamplingSettings

_SMALLEST_TEMPERATURE = 1e-30
"""Smaller ones act as this one; float32 would round the smallest to 0 and divide by it."""


def fitted(logits_V: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """A draft's row at the target's width: foreign ids cut off, missing ones impossible."""
    missing = vocab_size - logits_V.shape[-1]
    if missing == 0:
        return logits_V
    if missing < 0:
        return logits_V[..., :vocab_size]
    return torch.nn.functional.pad(logits_V, (0, missing), value=float("-inf"))


def biased(logits_V: torch.Tensor, bias_ids_N: torch.Tensor, bias_N: torch.Tensor) -> torch.Tensor:
    """Each bias added to the logit of its token; the N ids differ from each other."""
    return logits_V.index_add(-1, bias_ids_N, bias_N.expand(*logits_V.shape[:-1], -1))


def penalised(
    logits_V: torch.Tensor, settings: SamplingSettings, *, in_output_V: torch.Tensor, seen_V: torch.Tensor
) -> torch.Tensor:
    """Logits after repetition, frequency and presence penalties.

    Args:
        logits_V: float32.
        settings: the penalties.
        in_output_V: float32, times each token was seen in the output.
        seen_V: bool, whether it was seen in prompt or output.
    """
    penalty = settings.repetition_penalty
    damped_V = torch.where(logits_V > 0, logits_V / penalty, logits_V * penalty)
    logits_V = torch.where(seen_V, damped_V, logits_V)
    logits_V = logits_V - settings.frequency_penalty * in_output_V
    return logits_V - settings.presence_penalty * (in_output_V > 0)


def scaled(logits_V: torch.Tensor, largest: torch.Tensor | float, temperature: float) -> torch.Tensor:
    """Logits over the temperature, the largest one at 0."""
    # The largest becomes 0 first, so that no temperature, however small, can overflow.
    return (logits_V - largest) / max(temperature, _SMALLEST_TEMPERATURE)


def kept(
    scaled_V: torch.Tensor, settings: SamplingSettings, nucleus_edge: Callable[[torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """Which tokens min-p, top-k and top-p leave, bool; the most likely one always stays.

    Each filter is a threshold, so tokens that tie with the last one kept are kept as well: what stays never depends
    on the order in which a device happens to sort equals.

    Args:
        scaled_V: what `scaled` gave.
        settings: the filters.
        nucleus_edge: from the weights that the other filters left (-inf elsewhere) to the least likely one that top-p
            keeps; its last dimension is of length 1 or missing.
    """
    kept_V = scaled_V > float("-inf")
    if settings.min_p > 0:
        kept_V &= scaled_V.exp() >= settings.min_p
    if 0 < settings.top_k < scaled_V.shape[-1]:
        kept_V &= scaled_V >= torch.topk(scaled_V, settings.top_k).values[..., -1:]
    if settings.top_p < 1:
        kept_V &= scaled_V >= nucleus_edge(scaled_V.masked_fill(~kept_V, float("-inf")))
    return kept_V


def edge_of_sorted(sorted_C: torch.Tensor, wanted: torch.Tensor | float) -> torch.Tensor:
    """The least likely of the fewest most likely tokens whose weights reach a sum.

    Args:
        sorted_C: float32, log weights, descending.
        wanted: the sum, not logarithmic; a tensor has a last dimension of length 1.

    Returns:
        One log weight a row, in a last dimension of length 1.
    """
    weights_C = sorted_C.exp()
    # Summed in float64, the share of a token does not depend on how a device divides the row among its threads.
    before_C = weights_C.cumsum(-1, dtype=torch.float64).to(torch.float32) - weights_C
    num_kept = (before_C < wanted).sum(-1, keepdim=True)
    # A top-p that float32 cannot tell from 0 still keeps one.
    return sorted_C.gather(-1, num_kept.clamp(min=1) - 1)
