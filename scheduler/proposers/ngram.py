"""Proposals copied from the text itself (prompt lookup).

Owns the index's life over a request and one gamma policy for each class of match length: a match of twelve tokens is
worth a longer copy than a match of two. Knows nothing of models.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from models.ngram import NgramIndex
from scheduler.distribution import SamplingLaw
from scheduler.gamma import IN_TURN, GammaPolicy, Leads
from scheduler.history import TokenHistory
from scheduler.promise import Promise
from scheduler.round import Proposal

_CLASS_LIMITS = (4, 8)
"""Match lengths below the first, below the second, and from it on are judged apart."""


@dataclass(frozen=True, kw_only=True)
class _Guess:
    """The next tokens as the index saw them, to be scored should they not be proposed."""

    position: int
    token_ids: tuple[int, ...]
    policy: GammaPolicy


class NgramProposer:
    """Proposes what followed the latest tokens when they occurred before."""

    def __init__(self, new_policy: Callable[[], GammaPolicy], *, min_match: int = 2, max_match: int = 8) -> None:
        """Prepare an index for each request.

        Args:
            new_policy: makes the gamma policy of one class of match lengths.
            min_match: shortest suffix that counts as a match.
            max_match: longest suffix that is looked up.
        """
        self._min_match = min_match
        self._max_match = max_match
        self._index = NgramIndex(min_match=min_match, max_match=max_match)
        self._policies = [new_policy() for _ in range(len(_CLASS_LIMITS) + 1)]
        self._used = self._policies[0]
        self._lead = 0
        self._guess: _Guess | None = None
        self._found: bool | None = None
        """Whether any text of this request stood there before; None before it was looked up."""

    @property
    def name(self) -> str:
        """A fixed name."""
        return "ngram"

    @property
    def buffers(self) -> tuple[str, ...]:
        """The index."""
        return ("ngram.index",)

    @property
    def instant(self) -> bool:
        """A lookup takes microseconds, however many tokens it gives."""
        return True

    def begin(self, history: TokenHistory, leads: Leads = IN_TURN, gamma: int | None = None) -> None:
        """Index the prompt."""
        for policy in self._policies:
            # A look-up takes no time that could be hidden behind a verify.
            policy.begin(leads if leads.fixed else IN_TURN, gamma)
        self._lead = 0
        self._index = NgramIndex(min_match=self._min_match, max_match=self._max_match)
        self._index.extend(history.ids())
        self._guess = None
        self._found = None

    def choose(self, history: TokenHistory) -> int:
        """Look the latest tokens up; the match's class decides how many are worth verifying."""
        new_ids = history.ids(len(self._index))
        self._settle_guess(history)
        self._index.extend(new_ids)
        match = self._index.propose(1)
        self._found = bool(match.tokens) or bool(self._found)
        if not match.tokens:
            return 0
        policy = self._policies[sum(match.match_length >= limit for limit in _CLASS_LIMITS)]
        gamma = policy.choose()
        token_ids = match.tokens
        if gamma > 0:
            self._used, self._lead = policy, policy.lead
            token_ids = self._index.propose(gamma).tokens
        self._guess = _Guess(position=history.length, token_ids=token_ids, policy=policy)
        return gamma

    @property
    def lead(self) -> int:
        """What the policy of the match's class says."""
        return self._lead

    @property
    def promise(self) -> Promise:
        """What the policy of the match's class says."""
        return self._used.promise

    def extend(self, law: SamplingLaw, history: TokenHistory, chain_ids: Sequence[int], max_tokens: int) -> Proposal:
        """What followed these tokens where they occurred before; the chain is looked up, but never indexed."""
        # What is proposed is judged by the target.
        self._guess = None
        # After a hit the chain goes on without `choose`, so what was committed meanwhile is not indexed yet.
        self._index.extend(history.ids(len(self._index)))
        num_committed = len(self._index)
        self._index.extend(chain_ids)
        match = self._index.propose(max_tokens)
        self._index.truncate(num_committed)
        return Proposal(token_ids=match.tokens)

    def is_behind(self, history: TokenHistory) -> bool:
        """Never: what was not indexed yet takes microseconds."""
        return False

    @property
    def max_block(self) -> int:
        """No text is too long to be indexed at once."""
        return sys.maxsize

    def catch_up(self, history: TokenHistory) -> None:
        """Nothing to do: never behind."""

    def roll_back(self, length: int) -> None:
        """Nothing to do: the index holds committed tokens only."""

    def observe(self, num_proposed: int, num_accepted: int) -> None:
        """Tell the policy of the match's class: the one chosen last, for a verdict comes before the next choice."""
        self._used.observe(num_proposed, num_accepted)

    def explain(self) -> str:
        """The reason of the policy that was followed last, if there was any text to copy."""
        if self._found is False:
            return "nothing is proposed, as the latest tokens never stood together before"
        return self._used.explain()

    def _settle_guess(self, history: TokenHistory) -> None:
        """Score what was not proposed, so that a class can return at no cost: it was given up, or another was heard."""
        guess, self._guess = self._guess, None
        if guess is None or history.length <= guess.position:
            return
        followed_by = history.ids(guess.position)[: len(guess.token_ids)]
        num_right = 0
        while num_right < len(followed_by) and followed_by[num_right] == guess.token_ids[num_right]:
            num_right += 1
        guess.policy.observe(len(followed_by), num_right)
