"""Proposals from a draft model: a separate one, or the target's own first layers.

Owns the draft lane's catch-up and the token-by-token proposing on it. Knows nothing of verdicts.
"""

from __future__ import annotations

import time

import torch

from scheduler.distribution import SamplingLaw
from scheduler.gamma import GammaPolicy
from scheduler.history import TokenHistory
from scheduler.lane import Lane
from scheduler.noise import Purpose
from scheduler.round import Proposal
from scheduler.settings import Verification


class ModelProposer:
    """Draws gamma tokens from a draft model, one after the other."""

    def __init__(self, lane: Lane, policy: GammaPolicy, *, source: int = 0, num_shared_ids: int | None = None) -> None:
        """Bind the draft's lane to its gamma policy.

        Args:
            lane: the draft model on its stream.
            policy: chooses gamma.
            source: marks this proposer's proposals.
            num_shared_ids: ids from here on mean nothing to target and draft alike (padding of their heads): they are
                neither proposed nor read. None shares all that the draft has.
        """
        self._lane = lane
        self._policy = policy
        self._source = source
        self._num_shared_ids = min(num_shared_ids or lane.model.vocab_size, lane.model.vocab_size)

    @property
    def name(self) -> str:
        """The draft model's name."""
        return self._lane.model.name

    @property
    def buffers(self) -> tuple[str, ...]:
        """The draft's cache."""
        return (self._lane.cache_buffer,)

    def begin(self, history: TokenHistory) -> None:
        """Keep the common prefix; the rest of the prompt is read when something is first proposed."""
        # The last token is always read anew: its row is what the first proposed token is drawn from.
        self._lane.resume(history.ids()[:-1])

    def propose(self, law: SamplingLaw, history: TokenHistory, max_tokens: int) -> Proposal:
        """Catch up with the committed tokens in one call, then draw.

        A draft that is more than a block behind (a new prompt, a long stretch without proposals) reads one block and
        proposes nothing this round, so that a round's device work stays bounded. A draft that does not know one of the
        tokens proposes nothing from there on.
        """
        started = time.perf_counter()
        gamma = min(self._policy.choose(), max_tokens, self._lane.capacity - history.length)
        if gamma <= 0:
            return Proposal(source=self._source)
        next_ids = history.ids(self._lane.num_held)[: self._lane.model.max_block]
        if max(next_ids) >= self._num_shared_ids:
            # A wider target wrote a token that the draft does not know.
            return Proposal(source=self._source)
        logits_RV = self._lane.feed(next_ids, num_logits=1)
        if self._lane.num_held < history.length:
            return Proposal(source=self._source, draft_ms=_elapsed_ms(started))
        coupled = law.settings.verification is Verification.COUPLED
        purpose = Purpose.SHARED if coupled else Purpose.DRAFT
        token_ids: list[int] = []
        probabilities: list[torch.Tensor] = []
        while True:
            distribution = law.apply(logits_RV[0, : self._num_shared_ids], history, token_ids)
            if not coupled:
                probabilities.append(distribution.probabilities_V())
            token_ids.append(distribution.draw(law.settings.seed, history.length + len(token_ids), purpose))
            if len(token_ids) == gamma:
                break
            logits_RV = self._lane.feed(token_ids[-1:], num_logits=1)
        return Proposal(
            token_ids=tuple(token_ids),
            probabilities=None if coupled else tuple(probabilities),
            source=self._source,
            draft_ms=_elapsed_ms(started),
        )

    def roll_back(self, length: int) -> None:
        """Cut the draft's cache back to `length` tokens."""
        self._lane.roll_back(length)

    def observe(self, proposal: Proposal, num_accepted: int) -> None:
        """Tell the gamma policy."""
        self._policy.observe(len(proposal.token_ids), num_accepted)


def _elapsed_ms(started: float) -> float:
    return (time.perf_counter() - started) * 1e3
