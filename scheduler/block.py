"""What is in flight between the lanes: launched pieces of a chain, the block made of them, the verdict to come.

Owns these handles and how a block and its guess are cut from pieces once these have run. Of streams it knows launches
and events only.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from scheduler.round import Drafted, Proposal
from scheduler.streams.base import Event, Launch
from scheduler.streams.lineage import Generation


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A launch that lengthens the chain, and the slot that its tokens are in."""

    launch: Launch[Drafted]
    drafted: Event
    buffer: str
    number: int = 0
    """Pieces are numbered as they are launched."""
    instant: bool = False
    """Whether it takes microseconds: a look-up, not a step of a model."""
    generation: Generation | None = None


@dataclass(frozen=True, kw_only=True)
class BlockPlan:
    """Which pieces a block is made of; what they hold may be known only when the target comes to it."""

    pieces: tuple[Piece, ...] = ()
    """The block comes from these, as far as it goes; what they hold beyond it gives the guess."""
    num_taken: int = 0
    """Tokens at the front of the pieces that are committed already."""
    max_tokens: int = 0
    """Most tokens of the block."""
    guesses: tuple[Piece, ...] = ()
    """Where the pieces hold no more than the block, the first token of these is the guess."""
    may_guess: bool = False
    """Whether there is to be a guess at all."""
    together: bool = False
    """Whether a draft goes on meanwhile, and wants its share of the machine."""

    def block(self) -> Proposal:
        """The tokens that the target reads; legal once the pieces have run."""
        chain, gamma = _chain(self.pieces)
        return chain.part(self.num_taken, self.num_taken + min(gamma, self.max_tokens))

    def guess(self) -> Proposal:
        """The token after the block, or none; legal once all pieces have run. Its cost is not counted."""
        if not self.may_guess:
            return Proposal()
        chain, gamma = _chain(self.pieces)
        rest = chain.part(self.num_taken + min(gamma, self.max_tokens))
        if not rest:
            rest, _ = _chain(self.guesses)
        return dataclasses.replace(rest.part(0, 1), draft_ms=0.0)


def _chain(pieces: tuple[Piece, ...]) -> tuple[Proposal, int]:
    """What the pieces hold together, and how much of it is worth verifying at once."""
    chain, gamma = Proposal(), 0
    for piece in pieces:
        drafted = piece.launch.result()
        chain = chain.followed_by(drafted.proposal)
        gamma = drafted.gamma or gamma
    return chain, gamma


@dataclass(frozen=True, kw_only=True)
class Flight:
    """A block on its way through the target."""

    judged: Launch[Any]
    """Its value is understood by the side that judged and by the chain that settles (`scheduler.residency`)."""
    verified: Event
    buffer: str
    """The slot that the verdict is in."""
    slot: int
    """Its number."""
    began: Event | None = None
    """Where launches only enqueue: the point behind all that the block waited for."""
    read: Event | None = None
    """There, the point at which the block was read, and the guess may still be waited for."""
    round_number: int | None = None
    """Its number in a recording; None where nothing is recorded."""
