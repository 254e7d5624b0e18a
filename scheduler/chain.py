"""The chain: what the draft's stream has written past the committed tokens.

Owns the choice among draft sources, the unjudged tokens and how they are settled when a verdict comes. All methods run
as launches on the draft's stream, so nothing here is ever touched from two threads. Knows nothing of streams or events.

A chain has one source at a time: all are asked, and the one that promises most (`scheduler.arbiter`) goes on until the
chain was used up or thrown away.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from scheduler.arbiter import Arbiter
from scheduler.decoding import Decoding
from scheduler.first_error import FirstError
from scheduler.gamma import IN_TURN, Leads
from scheduler.history import TokenHistory
from scheduler.proposers.base import Proposer
from scheduler.round import Drafted, Judgement, Proposal


class Chain:
    """Tokens of one request that wait for a verdict, and the source they come from."""

    learns_late = False
    """A verdict is known as soon as it is settled."""

    def __init__(self, proposers: Sequence[Proposer], *, leads: Leads = IN_TURN) -> None:
        """Bind the sources.

        Args:
            proposers: the one that promises most is heard, the earlier of two that promise the same.
            leads: how far past a block they may draft.
        """
        self._proposers = tuple(proposers)
        self._arbiter = Arbiter(self._proposers)
        self._leads = leads
        self._decoding: Decoding
        self._history: TokenHistory
        self._token_ids: list[int] = []
        self._source: int | None = None
        self._gamma = 0
        self._lead = 0
        self._asked = False
        self._errors = FirstError()

    def begin(self, decoding: Decoding, history: TokenHistory) -> None:
        """Start a request; whatever an earlier one left, even an error, is forgotten."""
        self._decoding, self._history = decoding, history
        self._errors.forget()
        self._throw_away()
        self._arbiter.begin()
        with self._errors.remembered():
            for proposer in self._proposers:
                proposer.begin(history, self._leads, decoding.request.gamma)

    def draft_block(self, max_tokens: int, slot: int = 0) -> Drafted:
        """A whole block at once, of the source that promises most among those that have one.

        Tokens are numbers, which need no slot.
        """
        draft_ms = 0.0
        with self._errors.remembered():
            for offer in self._arbiter.ranked(self._history) if max_tokens else ():
                gamma = min(offer.gamma, max_tokens)
                proposal = self._proposers[offer.source].extend(self._decoding.law, self._history, (), gamma)
                # A source that only caught up took its time all the same.
                draft_ms += proposal.draft_ms
                if proposal:
                    proposal = dataclasses.replace(proposal, source=offer.source, draft_ms=draft_ms)
                    return Drafted(proposal=proposal, gamma=gamma)
        return Drafted(proposal=Proposal(draft_ms=draft_ms))

    def catch_up(self) -> None:
        """Let every source read a part of what it has missed; another one may be asked next."""
        with self._errors.remembered():
            self._read_along()

    def look_up(self, slot: int = 0) -> Drafted:
        """What an instant source has to offer; where a model is to draft instead, or nobody, nothing."""
        return self._draft(instant=True, ahead=True)

    def step(self, slot: int = 0, *, ahead: bool = True) -> Drafted:
        """One more token of a model; where the chain is an instant source's, or nobody's, nothing.

        Unless it is to go `ahead`, it brings no more than a block and a guess: the target may be waiting for it, and
        gamma is chosen only after it was launched.
        """
        return self._draft(instant=False, ahead=ahead)

    def settle(self, judgement: Judgement) -> None:
        """Take in a verdict: after a hit the rest of the chain stands, else all sources forget it."""
        with self._errors.remembered():
            self._history = judgement.history
            if judgement.proposal:
                source, counts = judgement.proposal.source, (len(judgement.proposal), judgement.verdict.num_accepted)
                self._proposers[source].observe(*counts)
                self._arbiter.note(source, *counts)
            if judgement.hit:
                self._use_up(len(judgement.verdict.token_ids))
                return
            self._throw_away()
            for proposer in self._proposers:
                proposer.roll_back(judgement.kept_length)

    def note(self, judgement: Judgement) -> None:
        """Nothing to do: `settle` has done it."""

    def explain(self) -> str:
        """Which source was heard, and why, as a person would say it; nothing where there is one."""
        return self._arbiter.explain()

    def _use_up(self, num_tokens: int) -> None:
        del self._token_ids[:num_tokens]
        if not self._token_ids:
            self._throw_away()
        elif self._source is not None and not self._proposers[self._source].instant:
            self._choose(self._proposers[self._source])

    def _throw_away(self) -> None:
        self._token_ids.clear()
        self._source = None
        self._gamma = 0
        self._lead = 0
        self._asked = False

    def _choose(self, proposer: Proposer) -> None:
        self._gamma = proposer.choose(self._history)
        self._lead = proposer.lead

    def _draft(self, *, instant: bool, ahead: bool) -> Drafted:
        with self._errors.remembered():
            return self._extended(instant=instant, ahead=ahead)

    def _extended(self, *, instant: bool, ahead: bool) -> Drafted:
        room = self._decoding.room_ahead(self._history, len(self._token_ids))
        if not room:
            return Drafted()
        self._ask()
        if self._source is None or self._gamma <= 0:
            return Drafted()
        proposer = self._proposers[self._source]
        behind = proposer.is_behind(self._history)
        if proposer.instant is not instant:
            if not instant:
                # A model that is passed over for long would have much to read when it is heard again.
                self._read_along()
            return Drafted(gamma=self._gamma, lead=self._lead, behind=behind)
        num_wanted = min(self._num_welcome(ahead=ahead) - len(self._token_ids), room)
        if num_wanted <= 0:
            return Drafted(gamma=self._gamma, lead=self._lead)
        if not instant:
            num_wanted = 1
        proposal = proposer.extend(self._decoding.law, self._history, tuple(self._token_ids), num_wanted)
        self._token_ids.extend(proposal.token_ids)
        return Drafted(
            proposal=dataclasses.replace(proposal, source=self._source),
            gamma=self._gamma,
            lead=self._lead,
            behind=behind and proposer.is_behind(self._history),
        )

    def _num_welcome(self, *, ahead: bool) -> int:
        """Tokens that the chain may hold: a block, and the lookahead past it."""
        if self._proposers[self._source or 0].instant and self._token_ids:
            # The target does not wait for more of a chain that it has some of: these are its block.
            return min(len(self._token_ids), self._gamma) + self._lead
        return self._gamma + (self._lead if ahead else min(self._lead, 1))

    def _ask(self) -> None:
        """Find the source that is to propose; asked once for each chain."""
        if self._asked:
            return
        self._asked = True
        offers = self._arbiter.ranked(self._history)
        # A source that has yet to read is passed by where another is ready.
        for offer in sorted(offers, key=lambda offer: self._proposers[offer.source].is_behind(self._history))[:1]:
            self._source, self._gamma, self._lead = offer.source, offer.gamma, offer.lead

    def _read_along(self) -> None:
        for proposer in self._proposers:
            proposer.catch_up(self._history)
