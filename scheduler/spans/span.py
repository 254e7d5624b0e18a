"""What a recording holds: when each launch and each round was.

Owns `LaunchSpan`, `RoundSpan` and `Recording`, frozen values in milliseconds of one clock. Knows nothing of how they
were taken or what is made of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from scheduler.launch_kind import Stage, stage_of


class LaunchOutcome(StrEnum):
    """What became of a launch."""

    RAN = "ran"
    FAILED = "failed"
    """Its work raised."""
    SKIPPED = "skipped"
    """Its generation was stale when the stream came to it."""
    UNKNOWN = "unknown"
    """It stood behind another one's error, or the recording stopped before it was over."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchSpan:
    """One launch."""

    number: int
    """Launches are numbered as they are launched, over all lanes."""
    lane: str
    """Which lane it is for: "target" or "draft"."""
    stream: str
    """Which stream ran it: lanes that take turns share one."""
    label: str
    """What it does, as `LaunchKind` has it."""
    queued_ms: float
    """When the host launched it."""
    start_ms: float | None
    """When it began on its stream, by that stream's clock; None unless it ran. On a GPU that is when the device came to
    it, and what the device then waits for between kernels counts as well."""
    end_ms: float | None
    """When it was over there; None unless it ran."""
    outcome: LaunchOutcome
    round_number: int | None
    """The newest round when it was launched: a verify's own, and of a draft the one that it may run beside. None
    before the first."""
    generation: int | None
    """Number of the generation that it was launched in; None if it was to run in any case."""
    num_tokens: int | None
    """How wide it was: tokens that the target read, or that the draft wrote. None where neither is known."""
    enqueue_ms: float | None = None
    """Time that the work took on the thread that ran it, by the host's clock: on a GPU that of enqueueing its kernels,
    elsewhere about its whole duration. None unless it was begun."""

    @property
    def stage(self) -> Stage:
        """Where in a request it belongs."""
        return stage_of(self.label)

    @property
    def duration_ms(self) -> float:
        """Time on its stream; 0 unless it ran."""
        return 0.0 if self.start_ms is None or self.end_ms is None else self.end_ms - self.start_ms


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundSpan:
    """One round, as the host saw it."""

    number: int
    start_ms: float
    """Its block was handed to the target."""
    verdict_ms: float
    """The host heard the verdict."""
    end_ms: float
    """It was committed, and in a pipelined request the next round was on its way."""
    drafts: tuple[int, ...]
    """Numbers of the launches that block and guess were cut from."""
    gamma: int | None
    """Tokens that were thought worth verifying at once, 0 where drafting did not pay; None where nobody was asked."""
    lead: int | None
    """Tokens that were thought worth drafting past such a block meanwhile."""
    num_proposed: int
    num_accepted: int
    num_tokens: int
    """Committed, the target's own included."""
    hit: bool | None
    """Whether the guess for the token after the block was right; None where nothing was guessed."""
    num_discarded: int
    """Lookahead tokens thrown away since the round before."""
    together: bool
    """Whether a draft went on past the block meanwhile."""
    source: int
    """Number of the draft source that proposed."""
    draft_ms: float
    verify_ms: float


@dataclass(frozen=True, kw_only=True)
class Recording:
    """What was recorded between a start and a stop."""

    launches: tuple[LaunchSpan, ...]
    """In the order of their numbers."""
    rounds: tuple[RoundSpan, ...]
    """In order; one that was cancelled or failed is missing."""
    start_ms: float
    end_ms: float
    num_dropped: int = 0
    """Launches and rounds that were forgotten for want of room, the oldest."""
