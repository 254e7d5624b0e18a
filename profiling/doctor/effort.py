"""How much a run of the doctor does.

Owns the two sizes, the quick and the full one. Knows nothing of checks.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Effort:
    """Numbers that decide how long the checks take."""

    num_prompts: int
    """Of each kind."""
    num_drawn_prompts: int
    """Of these, in all, how many are answered at `temperature` as well."""
    max_tokens: int
    """Of each answer."""
    num_memory_tokens: int
    """Written twice: once to touch all memory there is, once to see whether it grows."""
    num_draws: int
    """Of one token, to be held against the target's law."""
    num_step_runs: int
    """Of each timed step; medians count."""
    watch_s: float
    """How long other processes are watched before anything is loaded."""
    idle_s: float
    """How long an event loop on which nothing runs is watched."""


QUICK = Effort(
    num_prompts=1,
    num_drawn_prompts=1,
    max_tokens=28,
    num_memory_tokens=64,
    num_draws=60,
    num_step_runs=5,
    watch_s=1.0,
    idle_s=0.2,
)
FULL = Effort(
    num_prompts=2,
    num_drawn_prompts=6,
    max_tokens=96,
    num_memory_tokens=2000,
    num_draws=600,
    num_step_runs=15,
    watch_s=1.0,
    idle_s=1.0,
)
