"""An output head over a few tokens that answers for the whole vocabulary.

Owns the spreading of its rows. Knows nothing of which tokens were chosen, or why.

Shape suffixes: T rows, I input features, V vocabulary, C tokens of the head.
"""

from __future__ import annotations

import torch

from models.linear import PackedLinear


class CutHead:
    """A `models.linear.PackedLinear` whose other tokens have logit minus infinity, so that none can be drawn."""

    def __init__(self, head: PackedLinear, token_ids_C: torch.Tensor, *, vocab_size: int) -> None:
        """Wrap the head of C rows; `token_ids_C` (int64, on its device) says which tokens they stand for."""
        self._head = head
        self._token_ids_C = token_ids_C
        self._vocab_size = vocab_size

    @property
    def num_bytes(self) -> int:
        """Bytes of the head and its ids."""
        return self._head.num_bytes + self._token_ids_C.nbytes

    def __call__(self, x_TI: torch.Tensor) -> torch.Tensor:
        """Multiply rows; logits_TV, float32."""
        logits_TC = self._head(x_TI)
        logits_TV = logits_TC.new_full((logits_TC.shape[0], self._vocab_size), float("-inf"))
        return logits_TV.index_copy_(1, self._token_ids_C, logits_TC)
