"""A model whose rows are a table on the device: what follows a token depends on that token alone.

Owns the model and its exact law. Knows nothing of rounds.

Shape suffixes: T tokens of a call, R logit rows, V vocabulary (rows of the table first).
"""

from __future__ import annotations

import torch

from models import Cache

_MAX_BLOCK = 64


class TableCache:
    """A `models.PositionedCache` that has nothing to keep but its length."""

    def __init__(self, capacity: int) -> None:
        """Begin empty."""
        self.capacity = capacity
        self.length = 0
        self.num_bytes = 0

    def rollback(self, length: int) -> None:
        """Forget the tokens from `length` on."""
        if not 0 <= length <= self.length:
            raise ValueError(f"length must lie within 0 and {self.length}, got {length}")
        self.length = length

    def advance(self, num_tokens: int) -> None:
        """Count in that many more."""
        if self.length + num_tokens > self.capacity:
            raise ValueError(f"{num_tokens} tokens do not fit behind {self.length} in {self.capacity}")
        self.length += num_tokens


class TableChain:
    """A `models.PositionedModel` without layers."""

    name = "table"
    context_length = 1 << 20
    max_block = _MAX_BLOCK

    def __init__(self, vocab_size: int, *, seed: int, device: torch.device, sharpness: float = 1.0) -> None:
        """Draw the table.

        Args:
            vocab_size: V.
            seed: of the logits, which are normal.
            device: where the table lives.
            sharpness: standard deviation of the logits.
        """
        generator = torch.Generator().manual_seed(seed)
        self.logits_VV = torch.randn(vocab_size, vocab_size, generator=generator) * sharpness
        """float32, on the host: what follows each token."""
        self.vocab_size = vocab_size
        self.device = device
        self._table_VV = self.logits_VV.to(device)

    def new_cache(self, capacity: int) -> TableCache:
        """A cache of that many tokens."""
        return TableCache(capacity)

    def forward(self, token_ids_T: torch.Tensor, cache: Cache, *, num_logits: int) -> torch.Tensor:
        """See `models.CausalModel.forward`."""
        _own(cache).advance(len(token_ids_T))
        return self._rows(token_ids_T, num_logits)

    def forward_at(
        self,
        token_ids_T: torch.Tensor,
        positions_T: torch.Tensor,
        cache: Cache,
        *,
        key_length: int,
        num_logits: int,
    ) -> torch.Tensor:
        """See `models.PositionedModel.forward_at`."""
        return self._rows(token_ids_T, num_logits)

    def _rows(self, token_ids_T: torch.Tensor, num_logits: int) -> torch.Tensor:
        return self._table_VV.index_select(0, token_ids_T[len(token_ids_T) - num_logits :])


def _own(cache: Cache) -> TableCache:
    if not isinstance(cache, TableCache):
        raise TypeError(f"cache must come from this model's new_cache, got {type(cache).__name__}")
    return cache
