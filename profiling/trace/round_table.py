"""What rounds cost and what they brought, by width and by what became of them.

Owns the rows. Knows nothing of lanes at rest.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from profiling.trace.traced_round import RoundKind, TracedRequest, TracedRound

Key = TypeVar("Key")


@dataclass(frozen=True, kw_only=True)
class RoundRow:
    """Rounds that have something in common."""

    what: str
    """What that is: a width in tokens, or a kind of round."""
    count: int
    verify_ms: float | None
    """Median time in which the target read the block; None where no launch of theirs has times."""
    draft_ms_per_token: float | None
    """Time of the draft's launches that their blocks and guesses were cut from, over the tokens that these wrote; None
    where they wrote none."""
    tokens_per_round: float
    """Committed, the target's own included."""
    ms_per_token: float | None
    """Time from the verdict before (of a first round, from its start) to their own verdicts, over their tokens."""


def rows_by_width(requests: Sequence[TracedRequest]) -> tuple[RoundRow, ...]:
    """A row for each number of tokens that the target read at once, ascending."""
    grouped = _grouped(requests, lambda traced: traced.width)
    return tuple(_row(str(width), rounds) for width, rounds in sorted(grouped.items()))


def rows_by_kind(requests: Sequence[TracedRequest]) -> tuple[RoundRow, ...]:
    """A row for each kind of round that occurred."""
    grouped = _grouped(requests, lambda traced: traced.kind)
    return tuple(_row(kind.value, grouped[kind]) for kind in RoundKind if kind in grouped)


_Timed = tuple[TracedRound, float]
"""A round, and the time that it took on the host's way from verdict to verdict."""


def _grouped(requests: Sequence[TracedRequest], key: Callable[[TracedRound], Key]) -> Mapping[Key, Sequence[_Timed]]:
    groups: dict[Key, list[_Timed]] = {}
    for request in requests:
        since_ms = request.decoding.start_ms
        for traced in request.rounds:
            groups.setdefault(key(traced), []).append((traced, traced.span.verdict_ms - since_ms))
            since_ms = traced.span.verdict_ms
    return groups


def _row(what: str, timed: Sequence[_Timed]) -> RoundRow:
    rounds = [traced for traced, _ in timed]
    verifies_ms = [traced.verify.duration_ms for traced in rounds if traced.verify is not None]
    drafts = {launch.number: launch for traced in rounds for launch in traced.drafts}.values()
    num_drafted = sum(launch.num_tokens or 0 for launch in drafts)
    num_tokens = sum(traced.span.num_tokens for traced in rounds)
    return RoundRow(
        what=what,
        count=len(rounds),
        verify_ms=statistics.median(verifies_ms) if verifies_ms else None,
        draft_ms_per_token=sum(launch.duration_ms for launch in drafts) / num_drafted if num_drafted else None,
        tokens_per_round=num_tokens / len(rounds),
        ms_per_token=sum(elapsed_ms for _, elapsed_ms in timed) / num_tokens if num_tokens else None,
    )
