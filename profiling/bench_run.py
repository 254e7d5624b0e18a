"""One timed run of a benchmark, and which run it is compared with.

Owns `Run` and the names that say what is compared. Knows nothing of how runs are made.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from profiling.prompts import PromptKind

REFERENCE = "transformers float32"
REFERENCE_LOOKUP = "transformers float32, prompt lookup"


@dataclass(frozen=True, kw_only=True)
class Run:
    """One system on one prompt at one temperature."""

    system: str
    threads: int
    temperature: float = 0.0
    kind: PromptKind
    prompt: int
    seed: int = 0
    """The same for all systems on one prompt."""
    tpot_ms: float
    ttft_ms: float
    token_ids: tuple[int, ...]
    acceptance_rate: float | None = None
    acceptance_length: float | None = None
    drafts: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """By draft source: proposed and accepted tokens."""
    worst_tick_ms: float | None = None
    """Longest wait of a task beside it that wanted to run every 10 ms."""
    decision: str = ""
    """What was decided to do, and why, in words."""


def plain_of(system: str) -> str:
    """The system that decodes one token a step with the same weights: what a system's speed is told over."""
    return REFERENCE if system.startswith(REFERENCE) else f"{system.partition(',')[0]}, plain"


def runs_by_system(runs: Sequence[Run]) -> Iterator[dict[str, dict[int, Run]]]:
    """The runs that may be compared: of one number of threads, temperature and kind, by system and prompt.

    Threads come in order, temperatures as they were first run.
    """
    for threads in sorted({run.threads for run in runs}):
        for temperature in dict.fromkeys(run.temperature for run in runs):
            for kind in PromptKind:
                by_system: dict[str, dict[int, Run]] = {}
                for run in runs:
                    if (run.threads, run.temperature, run.kind) == (threads, temperature, kind):
                        by_system.setdefault(run.system, {})[run.prompt] = run
                if by_system:
                    yield by_system
