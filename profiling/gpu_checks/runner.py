"""Running checks within some minutes, whatever becomes of one of them.

Owns the order of events: what runs, for how long, and what is written down when. Knows nothing of what is checked.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence

from profiling.gpu_checks.bench import GpuBench
from profiling.gpu_checks.check import Budget, CannotRun, Check, CheckResult, Finding, Kind, Status
from profiling.gpu_checks.record import Record

_ENOUGH = 0.5
"""Of its budget: a check that has less time left is skipped."""
_PATIENCE = 3.0
"""A check that takes this many times its budget, and a while, is taken to hang."""
_PATIENCE_S = 30.0
_HUNG_STATUS = 1


class Runner:
    """Runs checks one after the other, each on an event loop of its own."""

    def __init__(
        self, bench: GpuBench, record: Record, *, minutes: float, tell: Callable[[str], None] = lambda line: None
    ) -> None:
        """Start the clock.

        Args:
            bench: the device.
            record: what comes of it.
            minutes: for all checks.
            tell: is given a line when a check begins or ends.
        """
        self._bench = bench
        self._record = record
        self._end_s = time.perf_counter() + 60 * minutes
        self._tell = tell
        self._dead: str | None = None

    def run(self, checks: Sequence[Check]) -> None:
        """Run what fits; what does not is recorded as skipped."""
        for check in checks:
            left_s = self._end_s - time.perf_counter()
            if self._dead is not None:
                self._record.put(_result(check, Status.SKIPPED, summary=self._dead))
            elif left_s < _ENOUGH * check.budget_s:
                words = f"takes up to {check.budget_s:.0f} s, {max(0.0, left_s):.0f} s were left; give more --minutes"
                self._record.put(_result(check, Status.SKIPPED, summary=words))
            else:
                self._run_one(check, Budget(min(check.budget_s, left_s)))

    def _run_one(self, check: Check, budget: Budget) -> None:
        self._tell(f"{check.name}: {check.question}")
        self._record.put(_result(check, Status.RUNNING, summary="was running when this was written"))
        started_s = time.perf_counter()
        limit_s = _PATIENCE * check.budget_s + _PATIENCE_S
        watchdog = threading.Timer(limit_s + _PATIENCE_S, self._give_up, (check, started_s))
        watchdog.daemon = True
        watchdog.start()
        try:
            result = self._outcome(check, budget, limit_s)
        finally:
            watchdog.cancel()
            watchdog.join()
        took_s = time.perf_counter() - started_s
        self._record.put(dataclasses.replace(result, took_s=took_s, cut_short=tuple(budget.cut_short)))
        self._tell(f"{check.name}: {result.status}, {result.summary}")

    def _outcome(self, check: Check, budget: Budget, limit_s: float) -> CheckResult:
        try:
            finding = asyncio.run(_within(check, self._bench, budget, limit_s))
        except CannotRun as reason:
            return _result(check, Status.SKIPPED, summary=str(reason))
        except TimeoutError:
            self._look_for_life(check)
            return _result(check, Status.FAILED, faults=(f"did not end within {limit_s:.0f} s",), summary="hung")
        except Exception as error:  # whatever a check stumbles over is its result; the others still run
            self._look_for_life(check)
            where = "".join(traceback.format_exception(error)).rstrip()
            summary = f"{type(error).__name__}: {error}"
            return _result(check, Status.FAILED, summary=summary, faults=(where,))
        if finding.faults:
            status = Status.FAILED
        else:
            status = Status.PASSED if check.kind is Kind.CORRECTNESS else Status.MEASURED
        return _result(check, status, summary=finding.summary, figures=finding.figures, faults=finding.faults)

    def _look_for_life(self, check: Check) -> None:
        """After a kernel went wrong every later call fails, and says nothing new."""
        try:
            self._bench.gauge.synchronize()
        except RuntimeError as error:
            self._dead = f"not run: the device failed in {check.name} ({str(error).splitlines()[0]})"

    def _give_up(self, check: Check, started_s: float) -> None:
        """Called by the watchdog's thread when the main thread is stuck inside of a call."""
        took_s = time.perf_counter() - started_s
        fault = f"still stuck after {took_s:.0f} s in a call that cannot be interrupted"
        self._record.put(_result(check, Status.FAILED, summary="hung", faults=(fault,), took_s=took_s))
        print(self._record.table(), flush=True)
        print(f"{check.name} hung: {fault}", file=sys.stderr, flush=True)
        os._exit(_HUNG_STATUS)


async def _within(check: Check, bench: GpuBench, budget: Budget, limit_s: float) -> Finding:
    async with asyncio.timeout(limit_s):
        return await check.run(bench, budget)


def _result(
    check: Check,
    status: Status,
    *,
    summary: str,
    figures: dict[str, object] | None = None,
    faults: tuple[str, ...] = (),
    took_s: float = 0.0,
) -> CheckResult:
    return CheckResult(
        name=check.name,
        question=check.question,
        kind=check.kind,
        status=status,
        budget_s=check.budget_s,
        took_s=took_s,
        summary=summary,
        figures=figures or {},
        faults=faults,
    )
