"""What the loop asks of a draft source.

Owns the `Proposer` protocol. A proposal is a function of committed tokens and of the noise; whether and how much is
proposed may depend on time and on earlier verdicts, never on a proposed token's own value.
"""

from __future__ import annotations

from typing import Protocol

from scheduler.distribution import SamplingLaw
from scheduler.history import TokenHistory
from scheduler.round import Proposal


class Proposer(Protocol):
    """One source of draft tokens. Every method but `observe` runs as a launch on the draft's stream."""

    @property
    def name(self) -> str:
        """A name for metrics."""
        ...

    @property
    def buffers(self) -> tuple[str, ...]:
        """Names of the buffers that proposing and rolling back touch."""
        ...

    def begin(self, history: TokenHistory) -> None:
        """Start a request: keep what is still true of an earlier one, forget the rest."""
        ...

    def propose(self, law: SamplingLaw, history: TokenHistory, max_tokens: int) -> Proposal:
        """At most `max_tokens` tokens to follow `history`; none where the source has nothing to offer."""
        ...

    def roll_back(self, length: int) -> None:
        """Forget whatever lies at and beyond `length` committed tokens."""
        ...

    def observe(self, proposal: Proposal, num_accepted: int) -> None:
        """Learn from the verdict on this source's own proposal; called on the host between rounds."""
        ...
