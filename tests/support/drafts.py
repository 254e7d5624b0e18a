"""Pieces of a chain, and draft sources that do what a script says, for tests without streams or models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from scheduler import Generation, Leads, Proposal, SamplingLaw, TokenHistory
from scheduler.block import Piece
from scheduler.gamma import IN_TURN
from scheduler.promise import Promise
from scheduler.round import Drafted, Judgement, Verdict


class HandLaunch:
    """A launch and the event behind it, run when the test says so."""

    def __init__(self, drafted: Drafted) -> None:
        self._drafted = drafted
        self._error: BaseException | None = None
        self.has_run = False
        self.skipped = False

    def run(self, error: BaseException | None = None) -> None:
        self.has_run, self._error = True, error

    def skip(self) -> None:
        self.has_run = self.skipped = True

    def result(self) -> Drafted:
        assert self.has_run, "the result was read too early"
        assert not self.skipped, "the result of skipped work was read"
        if self._error is not None:
            raise self._error
        return self._drafted

    def done(self) -> bool:
        return self.has_run


def hand_piece(
    *token_ids: int,
    gamma: int = 4,
    lead: int = 0,
    behind: bool = False,
    instant: bool = False,
    draft_ms: float = 1.0,
    generation: Generation | None = None,
) -> tuple[HandLaunch, Piece]:
    """A piece that will hold these tokens."""
    launch = HandLaunch(
        Drafted(proposal=Proposal(token_ids=token_ids, draft_ms=draft_ms), gamma=gamma, lead=lead, behind=behind)
    )
    return launch, Piece(launch=launch, drafted=launch, buffer="ring[0]", instant=instant, generation=generation)  # type: ignore[arg-type]  # as much of an event as is looked at


def judgement_of(
    block: Sequence[int], guess: int | None, num_accepted: int, next_id: int, history: TokenHistory, *, source: int = 0
) -> Judgement:
    """What a verdict comes to: of the block and its guess that many tokens are accepted, else `next_id` follows."""
    proposed = (*block, *(() if guess is None else (guess,)))
    accepted = proposed[:num_accepted]
    token_ids = accepted if guess is not None and num_accepted == len(proposed) else (*accepted, next_id)
    return Judgement(
        proposal=Proposal(token_ids=proposed, source=source),
        num_verified=len(block),
        verdict=Verdict(num_accepted=num_accepted, token_ids=token_ids),
        history=history.extended(token_ids),
        kept_length=history.length + min(num_accepted, len(block)),
    )


@dataclass(kw_only=True)
class ScriptedSource:
    """A draft source that counts up from the last token, and notes what is asked of it."""

    gamma: int = 2
    instant: bool = False
    name: str = "scripted"
    buffers: tuple[str, ...] = ("scripted.state",)
    most: int = 100
    """Tokens that one call gives at most."""
    behind: bool = False
    max_block: int = 64
    calls: list[tuple[object, ...]] = field(default_factory=list)
    lead: int = 0
    promise: Promise = field(default_factory=lambda: Promise(acceptance=0.5))
    errors: dict[str, Exception] = field(default_factory=dict)
    """What a method is to raise, by its name."""

    def begin(self, history: TokenHistory, leads: Leads = IN_TURN, gamma: int | None = None) -> None:
        self._called("begin", history.length)
        self.lead = leads.most

    def choose(self, history: TokenHistory) -> int:
        self._called("choose", history.length)
        return self.gamma

    def extend(self, law: SamplingLaw, history: TokenHistory, chain_ids: Sequence[int], max_tokens: int) -> Proposal:
        self._called("extend", history.length, tuple(chain_ids), max_tokens)
        last = [*history.ids(), *chain_ids][-1]
        count = min(max_tokens, self.most)
        return Proposal(token_ids=tuple(range(last + 1, last + 1 + count)), draft_ms=1.0)

    def is_behind(self, history: TokenHistory) -> bool:
        return self.behind

    def catch_up(self, history: TokenHistory) -> None:
        self._called("catch_up", history.length)

    def roll_back(self, length: int) -> None:
        self._called("roll_back", length)

    def observe(self, num_proposed: int, num_accepted: int) -> None:
        self._called("observe", num_proposed, num_accepted)

    def explain(self) -> str:
        return "scripted"

    def asked(self, name: str) -> list[tuple[object, ...]]:
        """The arguments of every call of that method."""
        return [call[1:] for call in self.calls if call[0] == name]

    def _called(self, name: str, *arguments: object) -> None:
        self.calls.append((name, *arguments))
        if name in self.errors:
            raise self.errors[name]
