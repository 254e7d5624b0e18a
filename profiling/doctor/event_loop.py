"""Does the event loop stay free while a text is written?

Owns the comparison of a ticker beside a generation with one on an idle loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial

from profiling.doctor.check import CannotTell, Finding, Verdict, graded, worst
from profiling.doctor.loaded_pair import LoadedPair
from profiling.prompts import PromptKind, bench_prompts
from profiling.ticker import ticking
from runtime import Metrics

Ticking = Callable[[], AbstractAsyncContextManager[list[float]]]

TICK_S = 0.002
"""Short beside a round, or the ticker would still sleep while it passes."""
LOOSE_S = 0.006
"""A thread may keep Python's lock for 5 ms (`sys.getswitchinterval`), which holds nobody up."""
WARN_SHARE = 0.5
FAIL_SHARE = 0.9
"""Of a round, for which one tick in ten is held up: where every round holds the loop up, all of them are."""
_LATE_QUANTILE = 0.9
_WORST_SHARE = 2.0
"""Of a round, for which a single tick may be held up."""
_ticking = partial(ticking, TICK_S)


async def check_event_loop(pair: LoadedPair, ticks: Ticking = _ticking) -> Finding:
    """How late a task that wants to run every two milliseconds comes, beside a generation and beside nothing."""
    num_tokens = pair.effort.max_tokens
    prompt_ids = pair.prompt_ids(bench_prompts(PromptKind.CHAT)[3].messages, num_tokens)
    async with ticks() as idle_s:
        await asyncio.sleep(pair.effort.idle_s)
    num_before = 0
    metrics: Metrics | None = None
    async with ticks() as busy_s, pair.runtime.stream(prompt_ids, max_tokens=num_tokens, ignore_eos=True) as chunks:
        async for chunk in chunks:
            metrics = chunk.metrics
            # The many ticks while the prompt is read would hide the few that rounds hold up.
            num_before = num_before or len(busy_s)
    if metrics is None or metrics.ttft_ms is None:
        raise CannotTell("the answer ended without telling its times")
    num_rounds = metrics.num_spec_steps + metrics.num_plain_steps
    if num_rounds < 2:
        raise CannotTell("the answer came in one round, which gives no time")
    round_ms = (metrics.total_ms - metrics.ttft_ms) / (num_rounds - 1)
    return judge_lag(idle_s, busy_s[num_before:], round_ms=round_ms, before_s=busy_s[:num_before])


def judge_lag(
    idle_s: Sequence[float], busy_s: Sequence[float], *, round_ms: float, before_s: Sequence[float] = ()
) -> Finding:
    """The verdict on times between ticks; they count relative to a round, which is as long as a blocked loop waits.

    Args:
        idle_s: times between ticks of a loop on which nothing ran.
        busy_s: the same beside rounds.
        round_ms: how long one of these took, reading the prompt left out.
        before_s: times between ticks while the prompt was read; of these the longest alone counts.

    Raises:
        CannotTell: if the generation was over before the ticker had ticked.
    """
    if not idle_s or not busy_s:
        raise CannotTell("the answer was there before the ticker had ticked once")
    busy_ms, idle_ms = _usual_ms(busy_s), _usual_ms(idle_s)
    worst_ms, worst_idle_ms = max(*busy_s, *before_s, 0.0) * 1e3, max(idle_s) * 1e3
    share = _held_up_ms(busy_ms, idle_ms) / round_ms
    worst_share = _held_up_ms(worst_ms, worst_idle_ms) / round_ms
    # One tick that is held up for long is a single call, or the machine: a warning, and no more.
    verdict = worst(
        (graded(share, warn_above=WARN_SHARE, fail_above=FAIL_SHARE), graded(worst_share, warn_above=_WORST_SHARE))
    )
    return Finding(
        verdict=verdict,
        measured=f"one tick in ten comes after {busy_ms:.1f} ms or more beside rounds of {round_ms:.1f} ms, after "
        f"{idle_ms:.1f} ms on an idle loop; the last of all after {worst_ms:.1f} ms, idle {worst_idle_ms:.1f}; it "
        f"wants to come after {TICK_S * 1e3:.0f}",
        advice=""
        if verdict is Verdict.OK
        else "something computes on the event loop: keep your own work in threads (asyncio.to_thread); on a GPU a "
        "large model's launches take their time there, and a machine with more load than cores delays every task",
        figures={
            "tick_ms": busy_ms,
            "tick_idle_ms": idle_ms,
            "worst_ms": worst_ms,
            "worst_idle_ms": worst_idle_ms,
            "round_ms": round_ms,
            "share": share,
            "worst_share": worst_share,
        },
    )


def _held_up_ms(gap_ms: float, idle_ms: float) -> float:
    """How long the loop was held up for a tick to come so late: it may have slept before, so the whole gap counts."""
    own_ms = max(0.0, idle_ms - TICK_S * 1e3)
    return gap_ms - own_ms if gap_ms - max(idle_ms, TICK_S * 1e3) > LOOSE_S * 1e3 else 0.0


def _usual_ms(gaps_s: Sequence[float]) -> float:
    """The time between two ticks that one in ten exceeds."""
    ordered = sorted(gaps_s)
    return ordered[int(_LATE_QUANTILE * (len(ordered) - 1))] * 1e3
