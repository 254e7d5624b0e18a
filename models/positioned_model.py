"""What device-resident drafting asks of a model beside `CausalModel`: calls whose positions are data.

Owns the protocols `PositionedModel` and `PositionedCache`, and the limits of a call. Knows nothing of
streams, rounds or text.

A position that only the device knows cannot be a Python number: reading it would make the host wait for all that was
enqueued. So tokens, positions and everything that follows from them stay in device tensors, and shapes depend on
host numbers alone.

Shape suffixes: T tokens of this call, R logit rows asked for, V vocabulary.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch

from models.causal_model import Cache, CausalModel


@runtime_checkable
class PositionedCache(Cache, Protocol):
    """A cache whose rows may be written before they are counted."""

    def advance(self, num_tokens: int) -> None:
        """Count `num_tokens` rows behind `length` as valid: calls at given positions have written them.

        Raises:
            ValueError: if they go beyond `capacity`.
        """
        ...


@runtime_checkable
class PositionedModel(CausalModel, Protocol):
    """A causal model that also takes the positions of its tokens as a tensor on its device."""

    def forward_at(
        self,
        token_ids_T: torch.Tensor,
        positions_T: torch.Tensor,
        cache: Cache,
        *,
        key_length: int,
        num_logits: int,
    ) -> torch.Tensor:
        """Write the tokens' cache rows at the given positions and return the logits of the last `num_logits` rows.

        Neither reads nor writes `cache.length`, and reads no device value on the host: the call can be enqueued
        behind work that has yet to compute its arguments. A query sees the rows at positions 0 up to its own (within
        a sliding window, if the model has one); those that this call does not write must have been written before.
        Tokens may come in any order and repeat, but those that stand at one position must be the same token.

        Args:
            token_ids_T: int64, 1 <= T <= max_block, on `device`.
            positions_T: int64, on `device`, each within 0 and `key_length` - 1; not checked on the host.
            cache: one that this model's `new_cache` made.
            key_length: an upper bound of the rows that any query may see: 1 <= key_length <= `cache.capacity`. The
                smaller, the cheaper.
            num_logits: 0 <= num_logits <= T; 0 only fills the cache.

        Returns:
            logits_RV, float32, R = num_logits; row r is the prediction after token T - R + r. Equal to what `forward`
                gives for the same past but for the last bits: no width is padded.

        Raises:
            ValueError: if shapes, dtypes, `key_length` or `num_logits` are outside these limits.
        """
        ...


def check_positioned_call(
    token_ids_T: torch.Tensor,
    positions_T: torch.Tensor,
    cache: Cache,
    *,
    key_length: int,
    num_logits: int,
    max_block: int,
) -> None:
    """Refuse a `forward_at` call outside its limits, by what the host knows of it.

    Raises:
        ValueError: naming what is wrong with the tokens, their positions, the key length or the rows asked for.
    """
    for name, tensor_T in (("token_ids_T", token_ids_T), ("positions_T", positions_T)):
        if tensor_T.dim() != 1 or tensor_T.dtype != torch.int64:
            raise ValueError(f"{name} must be one dimension of int64, got {tuple(tensor_T.shape)} of {tensor_T.dtype}")
    num_tokens = token_ids_T.shape[0]
    if positions_T.shape[0] != num_tokens:
        raise ValueError(f"positions_T must hold one position for each of {num_tokens} tokens, got {len(positions_T)}")
    if positions_T.device != token_ids_T.device:
        raise ValueError(f"positions_T must be on {token_ids_T.device} as the tokens are, got {positions_T.device}")
    if not 1 <= num_tokens <= max_block:
        raise ValueError(f"token_ids_T must hold 1 to max_block = {max_block} tokens, got {num_tokens}")
    if not 0 <= num_logits <= num_tokens:
        raise ValueError(f"num_logits must be within 0 and the {num_tokens} tokens of the call, got {num_logits}")
    if not 1 <= key_length <= cache.capacity:
        raise ValueError(f"key_length must be within 1 and the cache's capacity {cache.capacity}, got {key_length}")
