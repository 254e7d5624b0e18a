"""What a check is, and what comes of it.

Owns `Check`, `Finding` and the time that a check may take. Knows nothing of devices.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from profiling.gpu_checks.bench import GpuBench

Item = TypeVar("Item")


class Kind(StrEnum):
    """What a check is for."""

    CORRECTNESS = "correctness"
    FIGURE = "figure"


class Status(StrEnum):
    """What came of a check."""

    PASSED = "passed"
    FAILED = "failed"
    MEASURED = "measured"
    SKIPPED = "skipped"
    RUNNING = "running"
    """Stands in a record that was written before the check ended: it crashed, or is not over."""


class CannotRun(Exception):
    """A check does not apply to this device; the message says why."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What a check found."""

    summary: str
    """One line for people."""
    figures: dict[str, object] = field(default_factory=dict)
    """Ready for JSON."""
    faults: tuple[str, ...] = ()
    """What is wrong; none where all is right."""


class Budget:
    """The seconds that a check may take: it repeats itself until they are gone."""

    def __init__(self, seconds: float) -> None:
        """Start the clock."""
        self.seconds = seconds
        self.cut_short: list[str] = []
        """What was left undone, in words."""
        self._end_s = time.perf_counter() + seconds

    @property
    def left_s(self) -> float:
        """What is left; below 0 once it is overdrawn."""
        return self._end_s - time.perf_counter()

    def spend(self, items: Sequence[Item], what: str, *, share: float = 1.0, least: int = 1) -> Iterator[Item]:
        """The items, until that share of what is left now is gone; `least` of them in any case.

        Args:
            items: what to do.
            what: their name in the plural, for the record of what was left undone.
            share: of the time that is left.
            least: how many are done even without any time.
        """
        until_s = time.perf_counter() + share * max(0.0, self.left_s)
        for number, item in enumerate(items):
            if number >= least and time.perf_counter() > until_s:
                self.cut_short.append(f"{number} of {len(items)} {what}")
                return
            yield item


RunCheck = Callable[["GpuBench", Budget], Awaitable[Finding]]


@dataclass(frozen=True, kw_only=True)
class Check:
    """One thing to find out."""

    name: str
    """As `--only` takes it."""
    question: str
    kind: Kind
    budget_s: float
    """What it takes on a current data-centre GPU, with room."""
    run: RunCheck


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """A check and what came of it."""

    name: str
    question: str
    kind: Kind
    status: Status
    budget_s: float
    took_s: float = 0.0
    summary: str = ""
    figures: dict[str, object] = field(default_factory=dict)
    faults: tuple[str, ...] = ()
    cut_short: tuple[str, ...] = ()
    """What of it the time did not allow."""
