"""Table models that never look at a value on the host: tokens and positions may be data of a device.

Shape suffixes: T tokens of a call, R logit rows, D distances back, V vocabulary.
"""

from __future__ import annotations

import torch

from tests.support.table_model import TableModel


class PositionedCache:
    """Token ids by position, in a tensor."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.rows = torch.zeros(capacity, dtype=torch.int64)
        self.length = 0

    @property
    def num_bytes(self) -> int:
        return self.rows.nbytes

    @property
    def token_ids(self) -> list[int]:
        return self.rows.tolist()

    def rollback(self, length: int) -> None:
        if not 0 <= length <= self.length:
            raise ValueError(f"length must lie in [0, {self.length}], got {length}")
        self.length = length

    def advance(self, num_tokens: int) -> None:
        if self.length + num_tokens > self.capacity:
            raise ValueError(f"the cache holds {self.capacity} tokens and is full")
        self.length += num_tokens


class PositionedTableModel(TableModel):
    """A `TableModel`, row for row, whose calls can be enqueued."""

    num_steps = 0
    """Calls at given positions so far."""

    def new_cache(self, capacity: int) -> PositionedCache:
        return PositionedCache(capacity)

    def forward(self, token_ids_T: torch.Tensor, cache: PositionedCache, *, num_logits: int) -> torch.Tensor:
        num_tokens = len(token_ids_T)
        if not 0 <= num_logits <= num_tokens:
            raise ValueError(f"num_logits must lie in [0, {num_tokens}], got {num_logits}")
        start = cache.length
        if start + num_tokens > cache.capacity:
            raise ValueError(f"the cache holds {cache.capacity} tokens and is full")
        positions_T = torch.arange(start, start + num_tokens)
        logits_RV = self._run(token_ids_T, positions_T, cache, num_logits)
        cache.advance(num_tokens)
        return logits_RV

    def forward_at(
        self,
        token_ids_T: torch.Tensor,
        positions_T: torch.Tensor,
        cache: PositionedCache,
        *,
        key_length: int,
        num_logits: int,
    ) -> torch.Tensor:
        if not 1 <= key_length <= cache.capacity:
            raise ValueError(f"key_length must lie in [1, {cache.capacity}], got {key_length}")
        self.num_steps += 1
        # A row past the bound is one that a real model would not have seen.
        bounded_T = torch.where(positions_T < key_length, positions_T, cache.capacity)
        return self._run(token_ids_T, bounded_T, cache, num_logits)

    def _run(
        self, token_ids_T: torch.Tensor, positions_T: torch.Tensor, cache: PositionedCache, num_logits: int
    ) -> torch.Tensor:
        num_tokens = len(token_ids_T)
        if not 1 <= num_tokens <= self.max_block:
            raise ValueError(f"a call takes 1 to {self.max_block} tokens, got {num_tokens}")
        self.num_calls += 1
        if self.num_calls == self.fail_at_call:
            raise self.failure()
        # Raises where a position lies outside, or a token id is none of this model's.
        cache.rows.index_copy_(0, positions_T, token_ids_T)
        return self.rows_after(cache.rows, positions_T[num_tokens - num_logits :])

    def failure(self) -> Exception:
        """What a call raises that is to fail."""
        return RuntimeError(f"planted failure in {self.name}")

    def rows_after(self, rows: torch.Tensor, positions_R: torch.Tensor) -> torch.Tensor:
        """logits_RV: the rows behind the tokens at these positions."""
        logits_RV = torch.zeros(len(positions_R), self.vocab_size)
        for distance, table_VV in enumerate(self.tables):
            earlier_R = positions_R - distance
            added_RV = table_VV.index_select(0, rows.index_select(0, earlier_R.clamp(min=0)))
            logits_RV = torch.where((earlier_R >= 0)[:, None], logits_RV + added_RV, logits_RV)
        return logits_RV
