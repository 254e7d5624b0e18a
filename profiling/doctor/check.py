"""What a check is, and what comes of it.

Owns `Verdict`, `Finding`, `Check` and `CheckResult`. Knows nothing of what is checked or how it is shown.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from profiling.doctor.loaded_pair import LoadedPair


class Verdict(StrEnum):
    """What a check came to, the better first."""

    OK = "ok"
    SKIPPED = "skipped"
    """It does not apply here, or nobody can tell; the finding says why."""
    WARN = "warn"
    """It works, and not as well as it could."""
    FAIL = "fail"
    """It is wrong, or does harm."""


class CannotTell(Exception):
    """A check does not apply to this pair or machine, or lacks what it would need; the message says why."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What a check found."""

    verdict: Verdict
    measured: str
    """The value in words, with its unit, and what it is held against."""
    advice: str = ""
    """What to do; empty where there is nothing to be done."""
    figures: Mapping[str, object] = field(default_factory=dict)
    """Ready for JSON."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """One question about a pair."""

    name: str
    """As `--only` takes it."""
    question: str
    why: str
    """One sentence: why it matters."""
    run: Callable[[LoadedPair], Awaitable[Finding]]


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """A check and what came of it."""

    check: Check
    finding: Finding
    took_s: float = 0.0

    def as_dict(self) -> dict[str, object]:
        """Ready for JSON."""
        finding = self.finding
        return {
            "name": self.check.name,
            "question": self.check.question,
            "verdict": finding.verdict.value,
            "measured": finding.measured,
            "why": self.check.why,
            "advice": finding.advice,
            "figures": dict(finding.figures),
            "took_s": round(self.took_s, 3),
        }


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """The worst of some verdicts; those that were skipped say nothing, and ok is what there is without any."""
    order = list(Verdict)
    return max((one for one in verdicts if one is not Verdict.SKIPPED), key=order.index, default=Verdict.OK)


def graded(value: float, *, warn_above: float, fail_above: float = float("inf")) -> Verdict:
    """The verdict on a value of which less is better."""
    if value > fail_above:
        return Verdict.FAIL
    return Verdict.WARN if value > warn_above else Verdict.OK
