"""One timed run of a benchmark, which run it is compared with, and what is said of a peer.

Owns `Run` and `PeerRecord`. Knows nothing of how runs are made.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from profiling.peers.label import SystemLabel
from profiling.prompts import PromptKind

OWN = "slipstream"


@dataclass(frozen=True, kw_only=True)
class Run:
    """One system on one prompt at one temperature."""

    label: SystemLabel
    threads: int
    temperature: float = 0.0
    kind: PromptKind
    prompt: int
    seed: int = 0
    """The same for all systems on one prompt."""
    repeat: int = 0
    """Above 0 it was asked the same once more, only to see how much two runs differ."""
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
    peak_memory_bytes: int | None = None
    """Resident in the process that had this system alone, since it began."""
    idle_cpu_share: float | None = None
    """Processor time over time that this process took before this run, while others had their turn."""
    bench_cpu_share: float | None = None
    """Likewise of the benchmark's own process, which has our systems, while this peer was timed."""

    @property
    def system(self) -> str:
        """The name of whoever ran."""
        return self.label.name

    @property
    def tokens_per_s(self) -> float:
        """After the first token."""
        return 1e3 / self.tpot_ms


class PeerState(StrEnum):
    """What came of a peer."""

    MEASURED = "measured"
    MISSING = "missing"
    FAILED = "failed"
    """At load, or later: then there are runs of it, but not of every prompt."""
    INCOMPLETE = "incomplete"
    """Some prompts gave no time."""


@dataclass(frozen=True, kw_only=True)
class PeerRecord:
    """One system of a peer, or one of ours that failed, at one number of threads."""

    system: str
    threads: int
    state: PeerState
    version: str = ""
    settled: str = ""
    """The settings that it ran with, in words."""
    reason: str = ""
    """Why it was not measured, or not to the end."""


def runs_by_system(runs: Sequence[Run]) -> Iterator[dict[str, dict[int, Run]]]:
    """The runs that may be compared: of one number of threads, temperature and kind, by system and prompt.

    Of what was asked twice the first run counts.
    Threads come in order, temperatures as they were first run.
    """
    for threads in sorted({run.threads for run in runs}):
        for temperature in dict.fromkeys(run.temperature for run in runs):
            for kind in PromptKind:
                by_system: dict[str, dict[int, Run]] = {}
                for run in runs:
                    if (run.threads, run.temperature, run.kind, run.repeat) == (threads, temperature, kind, 0):
                        by_system.setdefault(run.system, {})[run.prompt] = run
                if by_system:
                    yield by_system
