"""How much each check does: on a GPU, and in a dry run on the CPU.

Owns the numbers, and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass

from models import QWEN2_5_0_5B, QWEN2_5_7B, TOY_DRAFT, TOY_TARGET, ModelConfig


@dataclass(frozen=True, kw_only=True)
class CheckSizes:
    """What is to be run, and how often."""

    large_target: ModelConfig
    large_draft: ModelConfig
    small_target: ModelConfig = TOY_TARGET
    small_draft: ModelConfig = TOY_DRAFT
    num_equality_seeds: int
    num_equality_tokens: int
    num_law_draws: int
    """Two-token draws of the judgement alone."""
    num_law_tokens: int
    """Tokens of a loop under the rejection rule."""
    num_churn_runs: int
    num_churn_tokens: int
    churn_sleep_us: int
    """Longest sleep of a stream before a launch."""
    churn_bytes: int
    """Largest tensor that is made and dropped meanwhile."""
    num_memory_tokens: tuple[int, int]
    num_ring_results: int
    copy_bytes: int
    num_copies: int
    position: int
    """Tokens in the caches where calls are timed."""
    num_timed_calls: int
    acceptances: tuple[float, ...]
    num_planted_tokens: int
    num_planted_repeats: int
    gamma: int
    lead: int
    await_ms: tuple[float, ...]
    num_awaits: int
    blocked_ms: float
    """How long a stream sleeps while a ticker must go on."""
    occupancy_s: float
    """How long the device is kept busy for a reading."""


GPU_SIZES = CheckSizes(
    large_target=QWEN2_5_7B,
    large_draft=QWEN2_5_0_5B,
    num_equality_seeds=16,
    num_equality_tokens=32,
    num_law_draws=60_000,
    num_law_tokens=6_000,
    num_churn_runs=200,
    num_churn_tokens=16,
    churn_sleep_us=200,
    churn_bytes=1 << 24,
    num_memory_tokens=(100, 2_000),
    num_ring_results=2_000,
    copy_bytes=1 << 30,
    num_copies=10,
    position=512,
    num_timed_calls=10,
    acceptances=(0.6, 0.7, 0.8, 0.9),
    num_planted_tokens=96,
    num_planted_repeats=3,
    gamma=4,
    lead=4,
    await_ms=(0.2, 1.0, 5.0, 20.0),
    num_awaits=20,
    blocked_ms=300.0,
    occupancy_s=1.0,
)

DRY_SIZES = CheckSizes(
    large_target=TOY_TARGET,
    large_draft=TOY_DRAFT,
    num_equality_seeds=1,
    num_equality_tokens=12,
    num_law_draws=60_000,
    num_law_tokens=300,
    num_churn_runs=3,
    num_churn_tokens=8,
    churn_sleep_us=200,
    churn_bytes=1 << 14,
    num_memory_tokens=(10, 50),
    num_ring_results=50,
    copy_bytes=1 << 20,
    num_copies=3,
    position=40,
    num_timed_calls=2,
    acceptances=(0.6, 0.9),
    num_planted_tokens=12,
    num_planted_repeats=1,
    gamma=2,
    lead=2,
    await_ms=(0.2, 5.0),
    num_awaits=3,
    blocked_ms=400.0,
    occupancy_s=0.1,
)
