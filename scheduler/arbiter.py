"""The arbiter: which of a request's draft sources proposes.

Owns the comparison of what the sources promise, and the rounds in which one that was long passed over is tried again.
Knows nothing of models, chains or costs.

The source that promises the most tokens a second is heard; of two that promise the same, the earlier one. A source with
a fixed gamma does not know its speed, so among such ones, whose gamma is the same, the highest acceptance decides.

A source that is never heard would never learn. One that is instant scores for itself what it was not asked to propose,
since that costs nothing. A model is tried after a pause that doubles while it does not do well.

What is chosen depends on costs, on earlier verdicts and on committed tokens, never on a proposed token's own value:
under the rejection rule that would change the law.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scheduler.history import TokenHistory
from scheduler.promise import Promise
from scheduler.proposers.base import Proposer

_FIRST_PAUSE = 4
_LAST_PAUSE = 64
"""Rounds in which a model is passed over before it is tried: doubling from the first to the last."""


@dataclass(frozen=True, kw_only=True)
class Offer:
    """What a source would propose in the coming round."""

    source: int
    gamma: int
    lead: int
    promise: Promise


@dataclass(kw_only=True)
class _Standing:
    """What is remembered of a source."""

    num_heard: int = 0
    """Rounds of this request that judged a proposal of it."""
    num_tried: int = 0
    """Those among them that another source would have had by its promise."""
    num_passed_over: int = 0
    """Rounds since it was heard last in which it had an offer."""
    pause: int = _FIRST_PAUSE
    on_trial: bool = False
    """Whether it is heard, or was last, although another one promised more."""


class Arbiter:
    """Ranks the sources of one chain."""

    def __init__(self, proposers: Sequence[Proposer]) -> None:
        """Bind the sources, the earliest of which is heard where promises are equal."""
        self._proposers = tuple(proposers)
        self._standings = [_Standing() for _ in self._proposers]
        self._words = ""

    def begin(self) -> None:
        """Start a request; how seldom a source is tried is kept from the one before."""
        self._words = ""
        for standing in self._standings:
            standing.num_heard = standing.num_tried = 0

    def ranked(self, history: TokenHistory) -> tuple[Offer, ...]:
        """All offers for what follows `history`, the one to be heard first; the next where that one has no token."""
        offers = [offer for source in range(len(self._proposers)) if (offer := self._offer(source, history)).gamma > 0]
        if len(offers) < 2:
            for offer in offers:
                self._standings[offer.source].on_trial = False
            return tuple(offers)
        best = offers[0]
        for offer in offers[1:]:
            if offer.promise.beats(best.promise):
                best = offer
        first = next((offer for offer in offers if offer is not best and self._is_due(offer)), best)
        for offer in offers:
            standing = self._standings[offer.source]
            standing.on_trial = offer is first and first is not best
            standing.num_passed_over += offer is not first
        self._words = self._in_words(offers, first)
        # Of those that remain, the best is next.
        return (first, *([best] if first is not best else []), *(o for o in offers if o is not first and o is not best))

    def note(self, source: int, num_proposed: int, num_accepted: int) -> None:
        """A proposal of that source was judged."""
        standing = self._standings[source]
        standing.num_heard += 1
        standing.num_passed_over = 0
        if not standing.on_trial:
            standing.pause = _FIRST_PAUSE
            return
        standing.num_tried += 1
        if num_accepted == num_proposed:
            # It goes on as long as it is right: what it is worth shows in a few rounds then, and these cost little.
            standing.pause = standing.num_passed_over = _FIRST_PAUSE
        else:
            standing.pause = min(2 * standing.pause, _LAST_PAUSE)

    def explain(self) -> str:
        """Who was heard how often, and what was promised last, as a person would say it; any thread may ask."""
        if len(self._proposers) < 2 or not any(standing.num_heard for standing in self._standings):
            return ""
        heard = [
            f"{proposer.name} in {standing.num_heard}"
            + (f" ({standing.num_tried} to try it)" if standing.num_tried else "")
            for proposer, standing in zip(self._proposers, self._standings, strict=True)
        ]
        return "rounds proposed by " + ", ".join(heard) + self._words

    def _offer(self, source: int, history: TokenHistory) -> Offer:
        proposer = self._proposers[source]
        gamma = proposer.choose(history)
        return Offer(source=source, gamma=gamma, lead=proposer.lead, promise=proposer.promise)

    def _is_due(self, offer: Offer) -> bool:
        """Whether a source is to be heard although another one promises more."""
        if self._proposers[offer.source].instant:
            return False
        standing = self._standings[offer.source]
        return offer.promise.trial or standing.num_passed_over >= standing.pause

    def _in_words(self, offers: Sequence[Offer], first: Offer) -> str:
        names = [proposer.name for proposer in self._proposers]
        promised = " and ".join(f"{names[offer.source]} promised {_in_words(offer.promise)}" for offer in offers)
        return f"; where they last competed, {promised}, and {names[first.source]} was heard"


def _in_words(promise: Promise) -> str:
    if promise.tokens_per_ms is None:
        return f"an acceptance of {promise.acceptance:.2f}"
    return f"{1e3 * promise.tokens_per_ms:.1f} tokens a second"
