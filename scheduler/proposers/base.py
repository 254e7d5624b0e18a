"""What the loops ask of a draft source.

Owns the `Proposer` protocol. A proposal is a function of the tokens before it and of the noise; whether and how much is
proposed may depend on time and on earlier verdicts, never on a proposed token's own value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from scheduler.distribution import SamplingLaw
from scheduler.gamma import IN_TURN, Leads
from scheduler.history import TokenHistory
from scheduler.promise import Promise
from scheduler.round import Proposal


class Proposer(Protocol):
    """One source of draft tokens. Every method runs as a launch on the draft's stream."""

    @property
    def name(self) -> str:
        """A name for metrics."""
        ...

    @property
    def buffers(self) -> tuple[str, ...]:
        """Names of the buffers that its methods touch."""
        ...

    @property
    def instant(self) -> bool:
        """Whether a whole proposal costs microseconds: then a target may as well wait for it.

        Such a source scores for itself what it chose to propose and was not asked for (`scheduler.arbiter`).
        """
        ...

    @property
    def max_block(self) -> int:
        """Most tokens that the source reads at once."""
        ...

    def begin(self, history: TokenHistory, leads: Leads = IN_TURN, gamma: int | None = None) -> None:
        """Start a request of a loop with these leads: keep what is still true of an earlier one, forget the rest.

        Where the request has a `gamma` of its own, `choose` keeps to it.
        """
        ...

    def choose(self, history: TokenHistory) -> int:
        """How many tokens after `history` are worth verifying at once; 0 where the source has nothing to offer.

        Asked at the start of a chain, so once a round at most; of a source that takes a step for each token, also after
        each hit. `extend` may come with a longer history than `choose` saw, or not at all where another source promises
        more.
        """
        ...

    @property
    def lead(self) -> int:
        """How many tokens past the block of the last choice are worth drafting while it is verified."""
        ...

    @property
    def promise(self) -> Promise:
        """What the last choice is expected to bring, by committed tokens, costs and earlier verdicts alone."""
        ...

    def extend(self, law: SamplingLaw, history: TokenHistory, chain_ids: Sequence[int], max_tokens: int) -> Proposal:
        """At most `max_tokens` tokens to follow `history` and the unjudged `chain_ids`, which are this source's own."""
        ...

    def is_behind(self, history: TokenHistory) -> bool:
        """Whether the source has yet to read much of `history` before it can propose."""
        ...

    def catch_up(self, history: TokenHistory) -> None:
        """If the source is behind, read a part of what it has missed: as much as takes about one step."""
        ...

    def roll_back(self, length: int) -> None:
        """Forget whatever lies at and beyond `length` tokens."""
        ...

    def observe(self, num_proposed: int, num_accepted: int) -> None:
        """Learn from the verdict on this source's own proposal; a guess that was judged counts like the block."""
        ...

    def explain(self) -> str:
        """What was chosen last, and why, as a person would say it; any thread may ask."""
        ...
