"""What the scheduler asks of a model: tokens in at explicit positions, logits out, rollback by length.

Owns the two protocols that every decoder, adapter and draft fulfils, and the limits of a call. Knows nothing of
streams, rounds or text.

Shape suffixes: T tokens of this call, R logit rows asked for, V vocabulary.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch


@runtime_checkable
class Cache(Protocol):
    """Keys and values of one sequence, preallocated; addresses never change.

    `length` counts the positions that hold valid entries. A forward call of T tokens writes
    positions `length .. length + T - 1` and adds T; entries at and beyond `length` are garbage
    that no query ever sees.
    """

    @property
    def capacity(self) -> int:
        """Most tokens that can be held at once."""
        ...

    @property
    def length(self) -> int:
        """Tokens held now."""
        ...

    @property
    def num_bytes(self) -> int:
        """Bytes allocated for keys and values."""
        ...

    def rollback(self, length: int) -> None:
        """Forget every token at and beyond `length`; writes one number and nothing else.

        Raises:
            ValueError: if `length` is negative or above the present length.
        """
        ...


@runtime_checkable
class CausalModel(Protocol):
    """A decoder-only language model whose cache can be cut back exactly."""

    @property
    def name(self) -> str:
        """A name for messages and metrics."""
        ...

    @property
    def vocab_size(self) -> int:
        """Width V of a logit row; may exceed the tokenizer's ids (padded heads)."""
        ...

    @property
    def context_length(self) -> int:
        """Most positions the model was made for."""
        ...

    @property
    def max_block(self) -> int:
        """Most tokens one `forward` call takes.

        Every row of every call up to this width is bit-identical to the row that any other
        width would have given, so prefill in blocks, decoding one by one and verifying
        a proposal cannot disagree.
        """
        ...

    @property
    def device(self) -> torch.device:
        """Where token ids are expected and logits are returned."""
        ...

    def new_cache(self, capacity: int) -> Cache:
        """An empty cache for one sequence of at most `capacity` tokens."""
        ...

    def forward(self, token_ids_T: torch.Tensor, cache: Cache, *, num_logits: int) -> torch.Tensor:
        """Append T tokens to the cache and return the logits of the last `num_logits` rows.

        Args:
            token_ids_T: int64, 1 <= T <= max_block, on `device`; position of the first is `cache.length`.
            cache: one that this model's `new_cache` made.
            num_logits: 0 <= num_logits <= T; 0 only fills the cache.

        Returns:
            logits_RV, float32, R = num_logits; row r is the prediction after token T - R + r. The
            tensor belongs to the caller and stays valid after later calls.

        Raises:
            ValueError: if T is 0, above `max_block`, or does not fit into the cache.
        """
        ...


def check_call(token_ids_T: torch.Tensor, cache: Cache, num_logits: int, *, max_block: int) -> None:
    """Refuse a `forward` call outside its limits.

    Raises:
        ValueError: naming what is wrong with the tokens, their number or the rows asked for.
    """
    if token_ids_T.dim() != 1 or token_ids_T.dtype != torch.int64:
        raise ValueError(
            f"token_ids_T must be one dimension of int64, got {tuple(token_ids_T.shape)} of {token_ids_T.dtype}"
        )
    check_call_size(token_ids_T.shape[0], cache, num_logits, max_block=max_block)


def check_call_size(num_tokens: int, cache: Cache, num_logits: int, *, max_block: int) -> None:
    """Refuse a call of so many tokens outside its limits.

    Raises:
        ValueError: naming what is wrong with the number of tokens or the rows asked for.
    """
    if not 1 <= num_tokens <= max_block:
        raise ValueError(f"token_ids_T must hold 1 to max_block = {max_block} tokens, got {num_tokens}")
    if not 0 <= num_logits <= num_tokens:
        raise ValueError(f"num_logits must be within 0 and the {num_tokens} tokens of the call, got {num_logits}")
    if cache.length + num_tokens > cache.capacity:
        raise ValueError(
            f"{num_tokens} tokens do not fit behind {cache.length} in a cache of capacity {cache.capacity}; "
            "roll back or make a larger cache"
        )
