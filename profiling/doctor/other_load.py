"""How many cores other processes keep busy.

Owns the sampling: what the kernel counts for the cores that this process may use, less its own time. Knows nothing of
verdicts.
"""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass
from pathlib import Path

KERNEL_STATISTICS = Path("/proc/stat")
_IDLE_FIELDS = (3, 4)
"""Idle and waiting for a disk."""
_NUM_FIELDS = 8
"""Guests' time, which comes behind these, is in the first two as well (proc(5))."""


@dataclass(frozen=True, kw_only=True)
class OtherLoad:
    """One sample."""

    num_cores: float | None
    """Cores that others kept busy, as a mean; None where the system does not tell."""
    reason: str
    """Where it comes from, or why there is none."""


async def sample_other_load(watch_s: float, statistics: Path = KERNEL_STATISTICS) -> OtherLoad:
    """Watch for so many seconds, and do nothing meanwhile."""
    try:
        before_s, own_before_s, started_s = busy_seconds(statistics), time.process_time(), time.perf_counter()
        await asyncio.sleep(watch_s)
        after_s, own_after_s, ended_s = busy_seconds(statistics), time.process_time(), time.perf_counter()
    except (OSError, ValueError) as error:
        return OtherLoad(num_cores=None, reason=f"{statistics} does not tell what others use: {error}")
    others_s = after_s - before_s - (own_after_s - own_before_s)
    return OtherLoad(
        num_cores=max(0.0, others_s / (ended_s - started_s)), reason=f"{statistics} over {ended_s - started_s:.1f} s"
    )


def busy_seconds(statistics: Path = KERNEL_STATISTICS) -> float:
    """What the cores that this process may use have worked since they started, for whomever.

    Raises:
        OSError: if there is no such file.
        ValueError: if it counts nothing.
    """
    ours = {f"cpu{core}" for core in os.sched_getaffinity(0)} if hasattr(os, "sched_getaffinity") else None
    num_ticks = num_idle = 0
    for line in statistics.read_text().splitlines():
        name, *fields = line.split()
        if not name.startswith("cpu") or name == "cpu" or (ours is not None and name not in ours):
            continue
        counts = [int(field) for field in fields[:_NUM_FIELDS]]
        num_ticks += sum(counts)
        num_idle += sum(counts[index] for index in _IDLE_FIELDS)
    if not num_ticks:
        raise ValueError("it counts no time for the cores that this process may use")
    return (num_ticks - num_idle) / os.sysconf("SC_CLK_TCK")
