"""The arbiter: which of a request's draft sources proposes.

Owns the comparison of what the sources promise, and the rounds in which one that promises less is tried all the same.
Knows nothing of models, chains or costs.

The source that promises the most tokens a second is heard; of two that promise the same, the earlier one. A source with
a fixed gamma does not know its speed, so among such ones, whose gamma is the same, the highest acceptance decides.

A source that is never heard would never learn. One that is instant scores for itself what it was not asked to propose,
since that costs nothing. A model is tried now and then, so often that what that loses stays a small share of all: the
nearer its promise comes, the more often, and a trial that goes well costs nothing. It is not tried where it would lose
even if all its tokens were accepted.

What is chosen depends on costs, on earlier verdicts and on committed tokens, never on a proposed token's own value:
under the rejection rule that would change the law.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scheduler.gamma import expected_tokens
from scheduler.history import TokenHistory
from scheduler.promise import Promise
from scheduler.proposers.base import Proposer

_TRIAL_SHARE = 0.02
"""Of its speed that a request may lose to trials of a source."""
_FIRST_CREDIT = 0.2
_LEAST_CREDIT = 0.08
_MOST_CREDIT = 1.0
"""Rounds that a trial may cost. It takes some credit even where it promises to cost nothing, since an estimate that is
as good as the earlier source's by chance is no reason to leave that one."""


@dataclass(frozen=True, kw_only=True)
class Offer:
    """What a source would propose in the coming round."""

    source: int
    gamma: int
    lead: int
    promise: Promise


@dataclass(frozen=True, kw_only=True)
class _Trial:
    """A source is heard although another one promised more."""

    ratio: float
    """Its promise as a share of the other's."""
    expected_tokens: float
    """Of its round, by its promise."""

    def cost(self, num_accepted: int) -> float:
        """Rounds of the other source that it lost; less than nothing where it did better than that one would have."""
        return 1 - self.ratio * (num_accepted + 1) / self.expected_tokens


@dataclass(kw_only=True)
class _Standing:
    """What is remembered of a source."""

    num_heard: int = 0
    """Rounds of this request that judged a proposal of it."""
    num_tried: int = 0
    """Those among them that another source would have had by its promise."""
    credit: float = _FIRST_CREDIT
    """What its trials may cost now, in rounds; grows while it is passed over."""
    trial: _Trial | None = None
    """What the verdict on its proposal is to be compared with, where another source promised more."""


class Arbiter:
    """Ranks the sources of one chain."""

    def __init__(self, proposers: Sequence[Proposer]) -> None:
        """Bind the sources, the earliest of which is heard where promises are equal."""
        self._proposers = tuple(proposers)
        self._standings = [_Standing() for _ in self._proposers]
        self._words = ""

    def begin(self) -> None:
        """Start a request; what trials may cost is kept from the one before."""
        self._words = ""
        for standing in self._standings:
            standing.num_heard = standing.num_tried = 0

    def ranked(self, history: TokenHistory) -> tuple[Offer, ...]:
        """All offers for what follows `history`, the one to be heard first; the next where that one has no token."""
        offers = [offer for source in range(len(self._proposers)) if (offer := self._offer(source, history)).gamma > 0]
        if len(offers) < 2:
            for offer in offers:
                self._standings[offer.source].trial = None
            return tuple(offers)
        best = offers[0]
        for offer in offers[1:]:
            if offer.promise.beats(best.promise):
                best = offer
        first = next((offer for offer in offers if self._may_be_tried(offer, best)), best)
        for offer in offers:
            standing = self._standings[offer.source]
            standing.trial = _trial(first, best) if offer is first and first is not best else None
            if offer is not first:
                standing.credit = min(standing.credit + _TRIAL_SHARE, _MOST_CREDIT)
        self._words = self._in_words(offers, first)
        # Of those that remain, the best is next.
        return (first, *([best] if first is not best else []), *(o for o in offers if o is not first and o is not best))

    def note(self, source: int, num_proposed: int, num_accepted: int) -> None:
        """A proposal of that source was judged."""
        standing = self._standings[source]
        standing.num_heard += 1
        if standing.trial is not None:
            standing.num_tried += 1
            standing.credit = min(standing.credit - standing.trial.cost(num_accepted), _MOST_CREDIT)

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

    def _may_be_tried(self, offer: Offer, best: Offer) -> bool:
        """Whether a source is to be heard although another one promises more."""
        if offer is best or self._proposers[offer.source].instant or not offer.promise.could_beat(best.promise):
            return False
        cost = 1 - offer.promise.ratio(best.promise)
        return cost > 0 and self._standings[offer.source].credit >= max(cost, _LEAST_CREDIT)

    def _in_words(self, offers: Sequence[Offer], first: Offer) -> str:
        names = [proposer.name for proposer in self._proposers]
        promised = " and ".join(f"{names[offer.source]} promised {_in_words(offer.promise)}" for offer in offers)
        return f"; where they last competed, {promised}, and {names[first.source]} was heard"


def _trial(offer: Offer, best: Offer) -> _Trial:
    return _Trial(
        ratio=offer.promise.ratio(best.promise),
        expected_tokens=expected_tokens(offer.gamma, offer.promise.acceptance),
    )


def _in_words(promise: Promise) -> str:
    if promise.tokens_per_ms is None:
        return f"an acceptance of {promise.acceptance:.2f}"
    return f"{1e3 * promise.tokens_per_ms:.1f} tokens a second"
