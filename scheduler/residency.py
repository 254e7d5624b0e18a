"""Where a round's values live: as numbers on the host, or as tensors that stay on the device.

Owns the protocol by which a loop gets its two halves, and the one for values on the host. Knows nothing of streams.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from scheduler.chain import Chain
from scheduler.decoding import Decoding
from scheduler.gamma import Leads
from scheduler.history import TokenHistory
from scheduler.lane import Lane
from scheduler.proposers.base import Proposer
from scheduler.round import Drafted, Judgement
from scheduler.target_side import HostTarget, TargetSide


class DraftSide(Protocol):
    """What a drafter launches on the draft's stream; see `scheduler.chain.Chain`, which has values on the host."""

    @property
    def learns_late(self) -> bool:
        """Whether settling cannot look into a verdict, so that `note` has to tell of it."""
        ...

    def begin(self, decoding: Decoding, history: TokenHistory) -> None:
        """Start a request."""
        ...

    def draft_block(self, max_tokens: int, slot: int) -> Drafted:
        """A whole block at once; its tokens may stay in that slot until it was judged."""
        ...

    def catch_up(self) -> None:
        """Read a part of what a source has missed."""
        ...

    def look_up(self, slot: int) -> Drafted:
        """What an instant source has to offer."""
        ...

    def step(self, slot: int, *, ahead: bool = True) -> Drafted:
        """One more token of a model."""
        ...

    def settle(self, judged: Any) -> None:
        """Take in what the target's `judge` gave, behind it."""
        ...

    def note(self, judgement: Judgement) -> None:
        """Launched once the host knows the verdict that was settled last, where settling learns late."""
        ...

    def explain(self) -> str:
        """Which source was heard, and why, in words; nothing where there is one. Any thread may ask."""
        ...


class Residency(Protocol):
    """Makes the two halves of a loop, which understand each other's values."""

    def target_side(self, lane: Lane, *, max_gamma: int, num_slots: int) -> TargetSide:
        """What runs on the target's stream, with that many slots for verdicts."""
        ...

    def draft_side(self, proposers: Sequence[Proposer], *, max_gamma: int, leads: Leads, num_slots: int) -> DraftSide:
        """What runs on the draft's stream, with that many slots for drafted tokens."""
        ...


class HostResidency:
    """Values are numbers as soon as their launch has run: for streams whose launches run on threads of their own."""

    def target_side(self, lane: Lane, *, max_gamma: int, num_slots: int) -> HostTarget:
        """Reads and judges on the host."""
        return HostTarget(lane)

    def draft_side(self, proposers: Sequence[Proposer], *, max_gamma: int, leads: Leads, num_slots: int) -> Chain:
        """Drafts and settles on the host, from any number of sources."""
        return Chain(proposers, leads=leads)
