"""The findings, as people read them and as JSON.

Owns both forms. Knows nothing of how findings are made.
"""

from __future__ import annotations

import json
import math
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence

from profiling.doctor.check import Check, CheckResult, Verdict, worst

FORMAT = 1
"""Of the JSON; another number is another set of keys."""
_COLOURS = {Verdict.OK: "32", Verdict.WARN: "33", Verdict.FAIL: "31", Verdict.SKIPPED: "2"}
"""ANSI graphic renditions: green, yellow, red, faint (ECMA-48, section 8.3.117)."""
_VERDICT_WIDTH = max(len(verdict) for verdict in Verdict)
_GAP = "  "


def table(results: Sequence[CheckResult], *, width: int, coloured: bool) -> str:
    """One paragraph a check; why it matters and what to do where something is to be done.

    Args:
        results: in the order in which they are shown.
        width: columns of the terminal.
        coloured: whether verdicts have the colours of a terminal.
    """
    if not results:
        return "nothing was found yet"
    name_width = max(len(result.check.name) for result in results)
    indent = " " * (_VERDICT_WIDTH + name_width + 2 * len(_GAP))
    lines = []
    for result in results:
        finding = result.finding
        head = f"{_word(finding.verdict, coloured)}{_GAP}{result.check.name:<{name_width}}{_GAP}"
        lines.append(head + _wrapped(finding.measured, indent, width))
        if finding.verdict in (Verdict.WARN, Verdict.FAIL):
            lines.append(indent + _wrapped(f"why: {result.check.why}", indent, width))
            if finding.advice:
                lines.append(indent + _wrapped(f"do: {finding.advice}", indent, width))
    return "\n".join([*lines, "", _summary(results)])


def as_json(
    results: Sequence[CheckResult],
    *,
    machine: Mapping[str, object],
    pair: Mapping[str, object],
    quick: bool,
    interrupted: bool,
    error: str | None = None,
) -> str:
    """One object on one line.

    Args:
        results: the findings.
        machine: what they were made on.
        pair: what was examined.
        quick: whether it was done quickly.
        interrupted: whether checks are missing for that reason.
        error: why nothing could be loaded, which is a failure; None where it could.
    """
    verdict = worst(result.finding.verdict for result in results) if error is None else Verdict.FAIL
    return json.dumps(
        _plain(
            {
                "format": FORMAT,
                "program": "profiling.doctor",
                "machine": machine,
                "pair": pair,
                "quick": quick,
                "interrupted": interrupted,
                "verdict": verdict.value,
                "error": error,
                "checks": [result.as_dict() for result in results],
            }
        ),
        allow_nan=False,
    )


def listing(checks: Sequence[Check], *, width: int) -> str:
    """Names, questions and why they matter."""
    name_width = max(len(check.name) for check in checks)
    indent = " " * (name_width + len(_GAP))
    return "\n".join(
        f"{check.name:<{name_width}}{_GAP}" + _wrapped(f"{check.question} {check.why}", indent, width)
        for check in checks
    )


def _wrapped(text: str, indent: str, width: int) -> str:
    """Text for behind something as wide as the indent, whose further lines begin below it."""
    lines = textwrap.wrap(text, max(20, width - len(indent)), break_long_words=False, break_on_hyphens=False)
    return f"\n{indent}".join(lines)


def _word(verdict: Verdict, coloured: bool) -> str:
    padded = f"{verdict.value:<{_VERDICT_WIDTH}}"
    return f"\x1b[{_COLOURS[verdict]}m{padded}\x1b[0m" if coloured else padded


def _summary(results: Sequence[CheckResult]) -> str:
    counts = Counter(result.finding.verdict for result in results)
    return ", ".join(f"{counts[verdict]} {verdict.value}" for verdict in Verdict if counts[verdict])


def _plain(value: object) -> object:
    """JSON has neither infinity nor NaN."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return value
