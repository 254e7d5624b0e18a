"""Proposals from a draft model: a separate one, or the target's own first layers.

Owns the draft lane's catch-up and the token-by-token proposing on it. Knows nothing of verdicts.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import torch

from scheduler.costs import elapsed_ms
from scheduler.distribution import Distribution, SamplingLaw
from scheduler.errors import NonFiniteLogitsError
from scheduler.gamma import IN_TURN, GammaPolicy, Leads
from scheduler.history import TokenHistory
from scheduler.lane import Lane
from scheduler.noise import Purpose
from scheduler.promise import Promise
from scheduler.round import Proposal
from scheduler.settings import Verification


class ModelProposer:
    """Draws gamma tokens from a draft model, one after the other."""

    def __init__(
        self,
        lane: Lane,
        policy: GammaPolicy,
        *,
        num_shared_ids: int | None = None,
        proposable_ids_C: torch.Tensor | None = None,
    ) -> None:
        """Bind the draft's lane to its gamma policy.

        Args:
            lane: the draft model on its stream.
            policy: chooses gamma.
            num_shared_ids: ids from here on mean nothing to target and draft alike (padding of their heads): they are
                neither proposed nor read. None shares all that the draft has.
            proposable_ids_C: int64, ascending; all that a head cut to them gives a chance. None where it is whole.
        """
        self._lane = lane
        self._policy = policy
        self._num_shared_ids = min(num_shared_ids or lane.model.vocab_size, lane.model.vocab_size)
        self._proposable_ids_C = proposable_ids_C

    @property
    def name(self) -> str:
        """The draft model's name."""
        return self._lane.model.name

    @property
    def buffers(self) -> tuple[str, ...]:
        """The draft's cache."""
        return (self._lane.cache_buffer,)

    @property
    def lane(self) -> Lane:
        """The draft model, its cache and its stream."""
        return self._lane

    @property
    def num_shared_ids(self) -> int:
        """Ids from here on are neither proposed nor read."""
        return self._num_shared_ids

    @property
    def instant(self) -> bool:
        """A model takes a step for each token."""
        return False

    @property
    def max_block(self) -> int:
        """Tokens that one call of the draft takes."""
        return self._lane.model.max_block

    def begin(self, history: TokenHistory, leads: Leads = IN_TURN, gamma: int | None = None) -> None:
        """Keep the common prefix; the rest of the prompt is read when something is first proposed."""
        self._policy.begin(leads, gamma)
        # The last token is always read anew: its row is what the first proposed token is drawn from.
        self._lane.resume(history.ids()[:-1])

    def choose(self, history: TokenHistory) -> int:
        """What the policy says, as far as the draft's context reaches; nothing behind a token that it does not know."""
        gamma = min(self._policy.choose(), self._lane.capacity - history.length)
        # Were it to offer what it then cannot draw, other sources would not be heard.
        return gamma if gamma <= 0 or max(history.ids(self._lane.num_held), default=0) < self._num_shared_ids else 0

    @property
    def lead(self) -> int:
        """What the policy says."""
        return self._policy.lead

    @property
    def promise(self) -> Promise:
        """What the policy says."""
        return self._policy.promise

    def extend(self, law: SamplingLaw, history: TokenHistory, chain_ids: Sequence[int], max_tokens: int) -> Proposal:
        """Catch up with what was written since the last call, in one call, then draw.

        A draft that is more than a block behind (a new prompt, a long stretch without proposals) reads one block and
        proposes nothing, so that a round's device work stays bounded. A draft that does not know one of the tokens
        proposes nothing from there on.
        """
        started_s = time.perf_counter()
        length = history.length + len(chain_ids)
        num_wanted = min(max_tokens, self._lane.capacity - length)
        if num_wanted <= 0:
            return Proposal()
        next_ids = _written_since(history, chain_ids, self._lane.num_held)[: self._lane.model.max_block]
        if max(next_ids) >= self._num_shared_ids:
            # A wider target wrote a token that the draft does not know.
            return Proposal()
        self._lane.share(together=self._policy.lead > 0)
        logits_RV = self._lane.feed(next_ids, num_logits=1)
        if self._lane.num_held < length:
            return Proposal(draft_ms=elapsed_ms(started_s))
        coupled = law.settings.verification is Verification.COUPLED
        purpose = Purpose.SHARED if coupled else Purpose.DRAFT
        token_ids = list(chain_ids)
        probabilities: list[torch.Tensor] = []
        while True:
            row_V = logits_RV[0, : self._num_shared_ids]
            try:
                distribution = self._distribution(law, row_V, history, token_ids)
            except NonFiniteLogitsError:
                if not _is_cut(row_V):
                    raise
                # All that a cut head can propose is forbidden here.
                break
            if not coupled:
                probabilities.append(distribution.probabilities_V())
            token_ids.append(distribution.draw(law.settings.seed, history.length + len(token_ids), purpose))
            if len(token_ids) == len(chain_ids) + num_wanted:
                break
            logits_RV = self._lane.feed(token_ids[-1:], num_logits=1)
        return Proposal(
            token_ids=tuple(token_ids[len(chain_ids) :]),
            probabilities=None if coupled else tuple(probabilities),
            draft_ms=elapsed_ms(started_s),
        )

    def _distribution(
        self, law: SamplingLaw, row_V: torch.Tensor, history: TokenHistory, token_ids: Sequence[int]
    ) -> Distribution:
        distribution = law.apply(row_V, history, token_ids)
        return distribution if self._proposable_ids_C is None else distribution.among(self._proposable_ids_C)

    def is_behind(self, history: TokenHistory) -> bool:
        """Whether the draft needs more than one call to catch up."""
        return history.length - self._lane.num_held > self._lane.model.max_block

    def catch_up(self, history: TokenHistory) -> None:
        """Read one block of a history that is longer than that."""
        next_ids = history.ids(self._lane.num_held)[: self._lane.model.max_block]
        if self._policy.idle:
            return
        # The target reads the prompt meanwhile.
        self._lane.share(together=True)
        if self.is_behind(history) and history.length < self._lane.capacity and max(next_ids) < self._num_shared_ids:
            self._lane.feed(next_ids, num_logits=0)

    def roll_back(self, length: int) -> None:
        """Cut the draft's cache back to `length` tokens."""
        self._lane.roll_back(length)

    def observe(self, num_proposed: int, num_accepted: int) -> None:
        """Tell the gamma policy."""
        self._policy.observe(num_proposed, num_accepted)

    def explain(self) -> str:
        """The gamma policy's reason."""
        return self._policy.explain()


def _is_cut(row_V: torch.Tensor) -> bool:
    """Whether a head left tokens out and knows of others; damaged weights are no such head."""
    return bool((row_V == float("-inf")).any()) and math.isfinite(float(row_V.max()))


def _written_since(history: TokenHistory, chain_ids: Sequence[int], num_held: int) -> list[int]:
    """The tokens from `num_held` on, committed ones first."""
    if num_held >= history.length:
        return list(chain_ids[num_held - history.length :])
    return [*history.ids(num_held), *chain_ids]
