"""Where a chain stands, on the device: its next position, the two tokens before it, and what the text has counted.

Owns these tensors and how a verdict moves them, without anybody looking at it. Knows nothing of models or laws.

Shape suffixes: R rows of a verdict's block, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from scheduler.on_device.law import DeviceCounts
from scheduler.upload import upload_ids


@dataclass(frozen=True, kw_only=True)
class Restart:
    """What a draft needs of a verdict to go on from it; views of a slot that the target writes."""

    hit: torch.Tensor
    """bool, one element; whether the chain stands."""
    next_position: torch.Tensor
    """int64, one element; position of the first token behind the verdict's."""
    tail_2: torch.Tensor
    """int64; the last two committed tokens, the verdict's among them."""
    token_ids_R: torch.Tensor
    """int64; the verdict's tokens, -1 behind them."""


class ChainPosition:
    """Tensors of one chain; their addresses stay, and every shape is the same in every round.

    They are made without a kernel, as whoever makes them does so on no stream.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.next_position = torch.empty(1, dtype=torch.int64, device=device)
        """int64, one element; of the token to be drawn next."""
        self.tail_2 = torch.empty(2, dtype=torch.int64, device=device)
        """int64; the two tokens before it."""
        self._committed: DeviceCounts | None = None
        self.counts: DeviceCounts | None = None
        """Of text and chain; None where no penalty asks for them."""

    def begin(self, prompt_ids: tuple[int, ...], counts: DeviceCounts | None) -> None:
        """A chain behind a prompt; one token alone stands for the one before it as well, and is read twice."""
        self.next_position.fill_(len(prompt_ids))
        self.tail_2.copy_(upload_ids((prompt_ids[-2:] * 2)[:2], self._device))
        self._committed = self.counts = counts

    def tail_positions_2(self) -> torch.Tensor:
        """int64; where the two tokens stand."""
        return (self.next_position + torch.arange(-2, 0, device=self._device)).clamp_(min=0)

    def advance(self, token_id: torch.Tensor) -> None:
        """The token (int64, one element) was drawn."""
        self.tail_2.copy_(torch.cat([self.tail_2[1:], token_id]))
        self.next_position.add_(1)
        if self.counts is not None:
            self.counts = self.counts.with_tokens(token_id)

    def settle(self, restart: Restart) -> None:
        """After a hit all stays as it is, else the chain begins anew behind the verdict."""
        self.next_position.copy_(torch.where(restart.hit, self.next_position, restart.next_position))
        self.tail_2.copy_(torch.where(restart.hit, self.tail_2, restart.tail_2))
        if self.counts is None or self._committed is None:
            return
        committed = self._committed.with_tokens(restart.token_ids_R)
        self._committed = committed
        self.counts = DeviceCounts(
            in_output_V=torch.where(restart.hit, self.counts.in_output_V, committed.in_output_V),
            seen_V=torch.where(restart.hit, self.counts.seen_V, committed.seen_V),
        )
