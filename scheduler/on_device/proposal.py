"""Drafted tokens whose values only the device knows, and the slots that they stand in.

Owns `DeviceProposal`, which counts, cuts and joins like any proposal, and `TokenSlots`, the memory by which tokens pass
from the draft's stream to the target's. Knows nothing of streams: who may write a slot when is the drafter's affair.

Memory that one stream allocates and another reads must not be given back in between. So nothing that the target reads
is allocated by a step: slots are there once and for all, and empty until a launch fills them.

Shape suffixes: S slots, N tokens a slot, T tokens of a proposal, V vocabulary.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch

from scheduler.round import Proposal


@dataclass(frozen=True, kw_only=True)
class DeviceToken:
    """One drafted token: views of a slot."""

    token_id: torch.Tensor
    """int64, one element."""
    sound: torch.Tensor
    """bool, one element: whether the draft's row allowed a token at all."""


@dataclass(frozen=True, kw_only=True)
class DeviceProposal(Proposal):
    """A chain of which the host knows the length; `token_ids` stays empty."""

    tokens: tuple[DeviceToken, ...] = ()

    def __len__(self) -> int:
        """Tokens of the chain."""
        return len(self.tokens)

    def part(self, start: int, stop: int | None = None) -> DeviceProposal:
        """The tokens from `start` to `stop`, with what belongs to them."""
        probabilities = self.probabilities
        return dataclasses.replace(
            self,
            tokens=self.tokens[start:stop],
            probabilities=None if probabilities is None else probabilities[start:stop],
        )

    def followed_by(self, other: Proposal) -> Proposal:
        """One chain of both; an empty one has no say in the source.

        Raises:
            TypeError: if the other one's tokens are known to the host.
        """
        draft_ms = self.draft_ms + other.draft_ms
        if not other or not self:
            return dataclasses.replace(self if self else other, draft_ms=draft_ms)
        if not isinstance(other, DeviceProposal):
            raise TypeError("a chain on the device can be followed by tokens on the device only")
        probabilities = None
        if self.probabilities is not None and other.probabilities is not None:
            probabilities = (*self.probabilities, *other.probabilities)
        return dataclasses.replace(
            self, tokens=(*self.tokens, *other.tokens), probabilities=probabilities, draft_ms=draft_ms
        )


def tokens_of(proposal: Proposal) -> tuple[DeviceToken, ...]:
    """A proposal's tokens on the device; none of an empty one.

    Raises:
        TypeError: if its tokens are known to the host.
    """
    if isinstance(proposal, DeviceProposal):
        return proposal.tokens
    if proposal:
        raise TypeError("the host knows these tokens; draft and target must have the same residency")
    return ()


def joined_ids(tokens: tuple[DeviceToken, ...], device: torch.device) -> torch.Tensor:
    """token_ids_T, int64, of any number of tokens."""
    if not tokens:
        return torch.empty(0, dtype=torch.int64, device=device)
    return torch.cat([token.token_id for token in tokens])


class TokenSlots:
    """Preallocated places for drafted tokens, and under the rejection rule for what they were drawn from."""

    def __init__(self, *, num_slots: int, num_tokens: int, device: torch.device) -> None:
        """Allocate the places of token ids.

        Args:
            num_slots: S.
            num_tokens: N, the most that one launch drafts.
            device: where the draft runs.
        """
        self._ids_SN = torch.empty(num_slots, num_tokens, dtype=torch.int64, device=device)
        self._sound_SN = torch.empty(num_slots, num_tokens, dtype=torch.bool, device=device)
        self._probabilities_SNV: torch.Tensor | None = None
        self._keeps_probabilities = False

    def begin(self, *, vocab_size: int, keeps_probabilities: bool) -> None:
        """Start a request; the first one under the rejection rule allocates S * N rows of V float32 numbers."""
        self._keeps_probabilities = keeps_probabilities
        if not keeps_probabilities:
            return
        wanted = (*self._ids_SN.shape, vocab_size)
        if self._probabilities_SNV is None or self._probabilities_SNV.shape != wanted:
            self._probabilities_SNV = torch.empty(wanted, device=self._ids_SN.device)

    def write(self, slot: int, place: int, token_id: torch.Tensor, sound: torch.Tensor) -> DeviceToken:
        """Put down a token (int64, one element), and whether its row was sound (bool, one element)."""
        token = DeviceToken(
            token_id=self._ids_SN[slot, place : place + 1], sound=self._sound_SN[slot, place : place + 1]
        )
        token.token_id.copy_(token_id)
        token.sound.copy_(sound)
        return token

    def write_probabilities(self, slot: int, place: int, probabilities_V: torch.Tensor) -> torch.Tensor:
        """Put down what a token was drawn from; returns the view of the slot.

        Raises:
            RuntimeError: if the request began without probabilities.
        """
        if self._probabilities_SNV is None or not self._keeps_probabilities:
            raise RuntimeError("the request keeps no probabilities: begin it under the rejection rule")
        kept_V = self._probabilities_SNV[slot, place]
        kept_V.copy_(probabilities_V)
        return kept_V
