"""A recording, put together by requests and rounds.

Owns which launches belong to which round, and where one request ends and the next begins. Knows nothing of what is made
of them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from scheduler import LaneName, LaunchKind, LaunchOutcome, LaunchSpan, Recording, RoundSpan, Stage

TARGET, DRAFT = LaneName.TARGET, LaneName.DRAFT


class RoundKind(StrEnum):
    """What became of a round."""

    HIT = "hit"
    """The whole block was accepted and the guess behind it right: drafting just went on."""
    MISS = "miss"
    """The guess was wrong, or stood behind a rejected token: the draft began anew."""
    NO_GUESS = "no guess"
    """Something was proposed and nothing guessed, as in every round of lanes that take turns."""
    PLAIN = "plain"
    """Nothing was proposed."""


def kind_of(span: RoundSpan) -> RoundKind:
    """What became of it."""
    if span.hit is not None:
        return RoundKind.HIT if span.hit else RoundKind.MISS
    return RoundKind.NO_GUESS if span.num_proposed else RoundKind.PLAIN


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """A piece of time."""

    start_ms: float
    end_ms: float

    @property
    def span_ms(self) -> float:
        """How long it is."""
        return self.end_ms - self.start_ms


@dataclass(frozen=True, kw_only=True)
class TracedRound:
    """A round with its launches; of these only such that ran."""

    span: RoundSpan
    verify: LaunchSpan | None
    judge: LaunchSpan | None
    settle: LaunchSpan | None
    """What took the verdict in on the draft's lane: after a miss, the rollback."""
    drafts: tuple[LaunchSpan, ...]
    """What block and guess were cut from."""

    @property
    def kind(self) -> RoundKind:
        """What became of it."""
        return kind_of(self.span)

    @property
    def judged_ms(self) -> float | None:
        """When the target was through with it; None where nobody knows."""
        last = self.judge or self.verify
        return None if last is None else last.end_ms

    @property
    def width(self) -> int:
        """Tokens that the target read."""
        known = None if self.verify is None else self.verify.num_tokens
        return 1 + self.span.num_proposed if known is None else known


@dataclass(frozen=True, kw_only=True)
class TracedRequest:
    """Rounds of one request, in order; a request that was given up has only those that came to something."""

    rounds: tuple[TracedRound, ...]
    prefill: Stretch | None
    """From its first launch to its first round; None where the recording begins later."""

    @property
    def decoding(self) -> Stretch:
        """From the first round's start to the last verdict."""
        return Stretch(start_ms=self.rounds[0].span.start_ms, end_ms=self.rounds[-1].span.verdict_ms)

    def refuted(self) -> list[TracedRound]:
        """The rounds of which the draft was rolled back: the guess was wrong or, without one, a token was rejected.

        Of a last round without a guess nobody knows: its block may have been cut where the answer ended.
        """
        return [
            traced
            for traced in self.rounds
            if traced.span.hit is False
            or (
                traced.span.hit is None
                and traced.span.num_accepted < traced.span.num_proposed
                and traced is not self.rounds[-1]
            )
        ]

    def pairs(self) -> list[tuple[TracedRound, TracedRound]]:
        """Each round with the one directly behind it."""
        return [(one, other) for one, other in pairwise(self.rounds) if other.span.number == one.span.number + 1]


def traced_requests(recording: Recording) -> tuple[TracedRequest, ...]:
    """The requests of which a round was recorded, in order.

    The target's lane begins each with a launch that keeps what it can of the one before.
    """
    by_number = {launch.number: launch for launch in recording.launches if has_run(launch)}
    by_round = {(launch.round_number, launch.label): launch for launch in by_number.values()}
    starts_ms = sorted(
        launch.queued_ms for launch in recording.launches if launch.lane == TARGET and launch.label == LaunchKind.RESUME
    )
    grouped: dict[int, list[TracedRound]] = {}
    for span in recording.rounds:
        traced = TracedRound(
            span=span,
            verify=by_round.get((span.number, LaunchKind.VERIFY)),
            judge=by_round.get((span.number, LaunchKind.JUDGE)),
            settle=by_round.get((span.number, LaunchKind.SETTLE)),
            drafts=tuple(by_number[number] for number in span.drafts if number in by_number),
        )
        grouped.setdefault(bisect_right(starts_ms, span.start_ms), []).append(traced)
    return tuple(
        TracedRequest(
            rounds=tuple(rounds),
            prefill=Stretch(start_ms=starts_ms[index - 1], end_ms=rounds[0].span.start_ms) if index else None,
        )
        for index, rounds in sorted(grouped.items())
    )


def has_run(launch: LaunchSpan) -> bool:
    """Whether it took time that is known."""
    return launch.outcome is LaunchOutcome.RAN and launch.start_ms is not None and launch.end_ms is not None


def of_lane(launches: Iterable[LaunchSpan], lane: str) -> list[LaunchSpan]:
    """Those of one lane that ran."""
    return [launch for launch in launches if launch.lane == lane and has_run(launch)]


def discarded(recording: Recording) -> frozenset[int]:
    """Numbers of the launches that wrote a token of which no block or guess was ever cut: lookahead thrown away."""
    used = {number for span in recording.rounds for number in span.drafts}
    return frozenset(
        launch.number
        for launch in of_lane(recording.launches, DRAFT)
        if launch.label in (LaunchKind.DRAFT, LaunchKind.LOOK_UP) and launch.num_tokens and launch.number not in used
    )


def rollbacks(recording: Recording) -> frozenset[int]:
    """Numbers of the launches that rolled the draft back; any other one that settles took in a verdict that held."""
    return frozenset(
        traced.settle.number
        for request in traced_requests(recording)
        for traced in request.refuted()
        if traced.settle is not None
    )


def shown_stage(launch: LaunchSpan, rolled_back: frozenset[int]) -> Stage:
    """The stage that a launch is shown as, once it is known which ones rolled back."""
    return Stage.ROLLBACK if launch.number in rolled_back else launch.stage


def all_rounds(requests: Sequence[TracedRequest]) -> list[TracedRound]:
    """Those of all requests, in order."""
    return [traced for request in requests for traced in request.rounds]
