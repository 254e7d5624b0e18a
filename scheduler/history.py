"""The tokens a draw may depend on: prompt and output so far, as immutable views.

Owns `TokenHistory`, which lanes on different streams may hold at different lengths at the
same time. Knows nothing of models or probabilities.

Shape suffix: V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True, kw_only=True)
class TokenCounts:
    """How often each token was seen; kept only where a penalty asks for it."""

    in_output_V: torch.Tensor
    """float32; times seen in the output."""
    seen_V: torch.Tensor
    """bool; seen in prompt or output."""

    def with_tokens(self, token_ids: Sequence[int]) -> TokenCounts:
        """New counts that include `token_ids` as output."""
        index = torch.tensor(token_ids, dtype=torch.int64, device=self.seen_V.device)
        ones = torch.ones(len(token_ids), dtype=torch.float32, device=self.seen_V.device)
        return TokenCounts(
            in_output_V=self.in_output_V.index_add(0, index, ones),
            seen_V=self.seen_V.index_fill(0, index, True),
        )


class TokenHistory:
    """Prompt and output up to one moment.

    `extended` shares the underlying list, which only ever grows: a view keeps its own length, so an older one
    stays true while a newer one is read on another thread.
    """

    def __init__(self, prompt_ids: Sequence[int], *, count_vocab_size: int | None = None) -> None:
        """Start from a prompt; `count_vocab_size` (V) keeps token counts for penalties."""
        self._log = list(prompt_ids)
        self.num_prompt_tokens = len(self._log)
        self.length = len(self._log)
        self.counts: TokenCounts | None = None
        if count_vocab_size is not None:
            seen_V = torch.zeros(count_vocab_size, dtype=torch.bool)
            seen_V[torch.tensor(self._log, dtype=torch.int64)] = True
            self.counts = TokenCounts(in_output_V=torch.zeros(count_vocab_size), seen_V=seen_V)

    @property
    def num_output_tokens(self) -> int:
        """Tokens generated so far."""
        return self.length - self.num_prompt_tokens

    def ids(self, start: int = 0) -> list[int]:
        """The tokens from `start` on, copied."""
        return self._log[start : self.length]

    def extended(self, token_ids: Sequence[int]) -> TokenHistory:
        """The history after `token_ids` were emitted.

        Raises:
            ValueError: if this view is not the newest one.
        """
        if len(self._log) != self.length:
            raise ValueError(
                f"only the newest history can grow: it has {len(self._log)} tokens, this view {self.length}"
            )
        longer = object.__new__(TokenHistory)
        longer._log = self._log
        longer._log.extend(token_ids)
        longer.num_prompt_tokens = self.num_prompt_tokens
        longer.length = self.length + len(token_ids)
        longer.counts = self.counts.with_tokens(token_ids) if self.counts is not None and token_ids else self.counts
        return longer
