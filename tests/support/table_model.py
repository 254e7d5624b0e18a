"""Models that are tables of logits, for tests that need exact probabilities in microseconds.

Shape suffixes: T tokens of a call, R logit rows, V vocabulary.
"""

from __future__ import annotations

import torch


class TableCache:
    """Holds token ids where a real cache holds keys and values."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.token_ids: list[int] = []
        self._length = 0

    @property
    def length(self) -> int:
        return self._length

    @property
    def num_bytes(self) -> int:
        return 8 * self.capacity

    def rollback(self, length: int) -> None:
        if not 0 <= length <= self._length:
            raise ValueError(f"length must lie in [0, {self._length}], got {length}")
        self._length = length

    def append(self, token_id: int) -> None:
        if self._length == self.capacity:
            raise ValueError(f"the cache holds {self.capacity} tokens and is full")
        # Entries beyond the length are overwritten, as in a preallocated cache.
        del self.token_ids[self._length :]
        self.token_ids.append(token_id)
        self._length += 1

    def context(self, order: int) -> list[int]:
        return self.token_ids[max(0, self._length - order) : self._length]


class TableModel:
    """Logits are the sum of one table row for each of the last `order` tokens that the cache holds.

    A cache that is one token short or long, or holds a rejected token, gives other logits.
    """

    def __init__(
        self,
        *,
        vocab_size: int = 8,
        order: int = 3,
        seed: int = 0,
        sharpness: float = 1.5,
        context_length: int = 512,
        max_block: int = 16,
        name: str = "table",
    ) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.tables = torch.randn(order, vocab_size, vocab_size, generator=generator) * sharpness
        self.name = name
        self.vocab_size = vocab_size
        self.context_length = context_length
        self.max_block = max_block
        self.device = torch.device("cpu")
        self.num_calls = 0
        self.fail_at_call: int | None = None

    def new_cache(self, capacity: int) -> TableCache:
        return TableCache(capacity)

    def logits_after(self, token_ids: list[int]) -> torch.Tensor:
        """float32, shape V: the row after a whole sequence."""
        logits_V = torch.zeros(self.vocab_size)
        for distance, token_id in enumerate(reversed(token_ids[-len(self.tables) :])):
            logits_V = logits_V + self.tables[distance, token_id]
        return logits_V

    def forward(self, token_ids_T: torch.Tensor, cache: TableCache, *, num_logits: int) -> torch.Tensor:
        num_tokens = len(token_ids_T)
        if not 1 <= num_tokens <= self.max_block:
            raise ValueError(f"a call takes 1 to {self.max_block} tokens, got {num_tokens}")
        if not 0 <= num_logits <= num_tokens:
            raise ValueError(f"num_logits must lie in [0, {num_tokens}], got {num_logits}")
        self.num_calls += 1
        if self.num_calls == self.fail_at_call:
            raise RuntimeError(f"planted failure in {self.name}")
        rows = []
        for index, token_id in enumerate(token_ids_T.tolist()):
            cache.append(token_id)
            if index >= num_tokens - num_logits:
                rows.append(self.logits_after(cache.context(len(self.tables))))
        return torch.stack(rows) if rows else torch.empty(0, self.vocab_size)
