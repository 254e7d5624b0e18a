"""Does the event loop stay free while a text is written?

Owns the comparison of a ticker beside a generation with one on an idle loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager

from profiling.doctor.check import CannotTell, Finding, Verdict, graded
from profiling.doctor.loaded_pair import LoadedPair
from profiling.prompts import PromptKind, bench_prompts
from profiling.ticker import TICK_S, ticking

Ticking = Callable[[], AbstractAsyncContextManager[list[float]]]

WARN_SHARE = 0.5
FAIL_SHARE = 0.9
"""Of a round, by which one tick in ten is late: where every round holds the loop up, all of them are."""
_LATE_QUANTILE = 0.9


async def check_event_loop(pair: LoadedPair, ticks: Ticking = ticking) -> Finding:
    """How late a task that wants to run every ten milliseconds comes, beside a generation and beside nothing."""
    num_tokens = pair.effort.max_tokens
    prompt_ids = pair.prompt_ids(bench_prompts(PromptKind.CHAT)[3].messages, num_tokens)
    async with ticks() as idle_s:
        await asyncio.sleep(pair.effort.num_idle_ticks * TICK_S)
    async with ticks() as busy_s:
        result = await pair.runtime.generate(prompt_ids, max_tokens=num_tokens, ignore_eos=True)
    metrics = result.metrics
    num_rounds = metrics.num_spec_steps + metrics.num_plain_steps
    return judge_lag(idle_s, busy_s, round_ms=metrics.total_ms / num_rounds)


def judge_lag(idle_s: Sequence[float], busy_s: Sequence[float], *, round_ms: float) -> Finding:
    """The verdict on times between ticks; lag counts relative to a round, which is as long as a blocked loop waits.

    Args:
        idle_s: times between ticks of a loop on which nothing ran.
        busy_s: the same beside a generation.
        round_ms: how long a round of that took.

    Raises:
        CannotTell: if the generation was over before the ticker had ticked.
    """
    if not idle_s or not busy_s:
        raise CannotTell("the answer was there before the ticker had ticked once")
    idle_ms, busy_ms = _late_ms(idle_s), _late_ms(busy_s)
    lag_ms = max(0.0, busy_ms - idle_ms)
    tick_ms = TICK_S * 1e3
    # A tick that comes at most a tick late was not held up, as far as such a ticker can tell.
    share = lag_ms / round_ms if lag_ms > tick_ms else 0.0
    verdict = graded(share, warn_above=WARN_SHARE, fail_above=FAIL_SHARE)
    return Finding(
        verdict=verdict,
        measured=f"one tick in ten comes {busy_ms:.1f} ms late or more beside a generation, {idle_ms:.1f} ms on an "
        f"idle loop; a round takes {round_ms:.1f} ms",
        advice=""
        if verdict is Verdict.OK
        else "something computes on the event loop: keep your own work in threads (asyncio.to_thread); on a GPU a "
        "large model's launches take their time there, and a machine with more load than cores delays every task",
        figures={
            "late_ms": busy_ms,
            "late_idle_ms": idle_ms,
            "worst_ms": max(busy_s) * 1e3,
            "round_ms": round_ms,
            "share": share,
        },
    )


def _late_ms(gaps_s: Sequence[float]) -> float:
    ordered = sorted(gaps_s)
    return max(0.0, ordered[int(_LATE_QUANTILE * (len(ordered) - 1))] - TICK_S) * 1e3
