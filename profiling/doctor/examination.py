"""Running checks one after the other, whatever becomes of one of them.

Owns what a check's own failure comes to. Knows nothing of what is checked or shown.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from profiling.doctor.check import CannotTell, Check, CheckResult, Finding, Verdict
from profiling.doctor.loaded_pair import LoadedPair


async def examine(
    pair: LoadedPair,
    checks: Sequence[Check],
    *,
    put: Callable[[CheckResult], None],
    tell: Callable[[str], None] = lambda name: None,
) -> None:
    """Run the checks.

    Args:
        pair: what is examined.
        checks: in this order.
        put: gets each result at once, so that whoever is interrupted has what was found so far.
        tell: gets each check's name before it runs.
    """
    for check in checks:
        tell(check.name)
        started_s = time.perf_counter()
        finding = await _finding(check, pair)
        put(CheckResult(check=check, finding=finding, took_s=time.perf_counter() - started_s))


async def _finding(check: Check, pair: LoadedPair) -> Finding:
    try:
        return await check.run(pair)
    except CannotTell as reason:
        return Finding(verdict=Verdict.SKIPPED, measured=str(reason))
    except Exception as error:  # whatever a check stumbles over is its finding; the others still run
        sentence = " ".join(str(error).split())
        return Finding(
            verdict=Verdict.FAIL,
            measured=f"{type(error).__name__}: {sentence}" if sentence else type(error).__name__,
            advice="this check stopped with an error, which a runtime would meet as well; try it alone with --only "
            f"{check.name}, and report it if the message gives no way out",
        )
