"""Which rounds of a recording are worth a picture.

Owns the choice. Knows nothing of drawing.
"""

from __future__ import annotations

from collections.abc import Sequence

from profiling.trace.traced_round import RoundKind, TracedRequest, TracedRound, traced_requests
from scheduler import Recording

MOST_ROUNDS = 4
"""Of a picture that nobody chose the rounds of: bars must be wide enough to be seen."""


def chosen_rounds(recording: Recording) -> list[TracedRound]:
    """A few rounds, one behind the other, that show a hit, a miss and the rollback behind it, where there are such.

    A miss counts only where its rollback ran and a round follows in which its consequence is seen, a hit likewise. Of
    runs that show as much, a shorter one is taken, then one without a request's first round, which reads the prompt,
    then the earliest.

    Raises:
        ValueError: if no round was recorded.
    """
    runs = [run for request in traced_requests(recording) for run in _runs(request)]
    if not runs:
        raise ValueError("no round was recorded, so there is nothing to draw; record a request with more tokens")
    # The first of the best: `max` keeps to the order of the rounds.
    return list(max(runs, key=lambda run: (_num_shown(run[1]), -len(run[1]), not run[0]))[1])


def rounds_between(recording: Recording, first: int, last: int) -> list[TracedRound]:
    """The rounds with these numbers, both included.

    Raises:
        ValueError: if there is none of them.
    """
    rounds = [traced for request in traced_requests(recording) for traced in request.rounds]
    chosen = [traced for traced in rounds if first <= traced.span.number <= last]
    if not chosen:
        known = f"{rounds[0].span.number} to {rounds[-1].span.number}" if rounds else "none"
        raise ValueError(f"no round from {first} to {last} was recorded; the rounds are {known}")
    return chosen


_Run = tuple[bool, Sequence[TracedRound]]
"""Whether it has its request's first round, and the rounds."""


def _runs(request: TracedRequest) -> list[_Run]:
    """All runs of at most so many rounds with consecutive numbers."""
    rounds = request.rounds
    runs: list[_Run] = []
    for start in range(len(rounds)):
        for stop in range(start + 1, min(start + MOST_ROUNDS, len(rounds)) + 1):
            if rounds[stop - 1].span.number - rounds[start].span.number == stop - 1 - start:
                runs.append((start == 0, rounds[start:stop]))
    return runs


def _num_shown(rounds: Sequence[TracedRound]) -> int:
    """How many of hit and miss are seen with what comes of them."""
    seen = {
        traced.kind
        for traced in rounds[:-1]
        if traced.kind is RoundKind.HIT or (traced.kind is RoundKind.MISS and traced.settle is not None)
    }
    return len(seen)
