"""Asking one draft source for a block, without a loop."""

from __future__ import annotations

from scheduler import Proposal, Proposer, SamplingLaw, TokenHistory


def propose(proposer: Proposer, law: SamplingLaw, history: TokenHistory, max_tokens: int) -> Proposal:
    """A block as a sequential round asks for it."""
    gamma = min(proposer.choose(history), max_tokens)
    return proposer.extend(law, history, (), gamma) if gamma > 0 else Proposal()
