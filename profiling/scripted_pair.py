"""A target and a draft that are given by what they say and what that costs.

Owns the models of the simulation. Knows nothing of loops, and of time only how much of it a call claims.

Shape suffixes: T tokens of a call, R logit rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from models import Cache
from profiling.counting_cache import CountingCache, own_cache

_VOCAB_SIZE = 8
MAX_BLOCK = 65
"""Most tokens of one call."""


class ScriptedModel:
    """Says for each position which token comes next, and takes a set time for it.

    A sequence's tokens do not matter, so what the draft gets right does not depend on how often it was rolled back.
    """

    context_length = 1_000_000
    max_block = MAX_BLOCK
    vocab_size = _VOCAB_SIZE
    device = torch.device("cpu")

    def __init__(self, name: str, next_ids: Sequence[int], *, call_ms: float, extra_token_ms: float) -> None:
        self.name = name
        self._rows_TV = torch.nn.functional.one_hot(torch.tensor(next_ids), _VOCAB_SIZE).float()
        self._call_ms = call_ms
        self._extra_token_ms = extra_token_ms
        self._spent_ms = 0.0

    def new_cache(self, capacity: int) -> CountingCache:
        """A cache that only counts."""
        return CountingCache(capacity)

    def forward(self, token_ids_T: torch.Tensor, cache: Cache, *, num_logits: int) -> torch.Tensor:
        """logits_RV: one for the next token of each of the last positions, else zero."""
        counter = own_cache(cache)
        counter.length += len(token_ids_T)
        self._spent_ms += self._call_ms + self._extra_token_ms * (len(token_ids_T) - 1)
        return self._rows_TV[counter.length - num_logits : counter.length]

    def take_spent_ms(self) -> float:
        """Time of the calls since the last time this was asked."""
        spent_ms, self._spent_ms = self._spent_ms, 0.0
        return spent_ms


def scripted_ids(pattern: Sequence[bool]) -> tuple[list[int], list[int]]:
    """What the target says at each position, and the draft, which is right where the pattern is True."""
    target_ids = [position % _VOCAB_SIZE for position in range(len(pattern))]
    draft_ids = [
        token_id if right else (token_id + 1) % _VOCAB_SIZE for token_id, right in zip(target_ids, pattern, strict=True)
    ]
    return target_ids, draft_ids
