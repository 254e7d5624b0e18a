"""The record of a run: JSON that is on disk after every check, and a table for people.

Owns both forms. Knows nothing of how checks run.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path

from profiling.gpu_checks.check import CheckResult, Kind, Status

FORMAT = 1
"""Of the JSON; another number is another set of keys."""
_RANKS = {Status.FAILED: 0, Status.RUNNING: 1, Status.PASSED: 2, Status.MEASURED: 2, Status.SKIPPED: 3}
_NAME_WIDTH = 14


class Record:
    """What is known so far."""

    def __init__(self, *, machine: dict[str, object], device: dict[str, object], dry_run: bool, path: Path | None):
        """Begin.

        Args:
            machine: the host.
            device: the GPU and its software.
            dry_run: whether the CPU stands in for the GPU.
            path: where the JSON is kept; None keeps none.
        """
        self._head: dict[str, object] = {
            "format": FORMAT,
            "program": "profiling.gpu_check",
            "dry_run": dry_run,
            "machine": machine,
            "device": device,
        }
        self._path = path
        self._results: dict[str, CheckResult] = {}

    def put(self, result: CheckResult) -> None:
        """Add or replace a check's result, and write the file."""
        self._results[result.name] = result
        if self._path is not None:
            # Never half a file, whatever ends the program.
            beside = self._path.with_name(f"{self._path.name}.part")
            beside.write_text(json.dumps(self.as_json(), indent=1) + "\n")
            os.replace(beside, self._path)

    @property
    def results(self) -> tuple[CheckResult, ...]:
        """In the order in which they were first put."""
        return tuple(self._results.values())

    @property
    def passed(self) -> bool:
        """Whether nothing failed or was left running; what was skipped is no failure."""
        return not any(result.status in (Status.FAILED, Status.RUNNING) for result in self.results)

    def as_json(self) -> dict[str, object]:
        """Ready for JSON."""
        return {
            **self._head,
            "passed": self.passed,
            "took_s": sum(result.took_s for result in self.results),
            "skipped": [result.name for result in self.results if result.status is Status.SKIPPED],
            "checks": [asdict(result) for result in self.results],
        }

    def table(self) -> str:
        """One line a check, failures first, correctness before figures; faults below their check."""
        lines = []
        kinds = list(Kind)
        for result in sorted(self.results, key=lambda one: (_RANKS[one.status], kinds.index(one.kind))):
            lines.append(f"{result.status:<8} {result.name:<{_NAME_WIDTH}} {result.took_s:6.1f} s  {result.summary}")
            indent = " " * (_NAME_WIDTH + 20)
            lines += [f"{indent}! {fault}" for fault in result.faults]
            lines += [f"{indent}time allowed {cut}" for cut in result.cut_short]
        return "\n".join(lines)
