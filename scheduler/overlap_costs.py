"""What the steps of two lanes cost while both run.

Owns the measurement, for streams with a thread each, where a launch takes as long as its work, and for streams that
only enqueue, where events tell. Knows nothing of requests.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from statistics import median

from scheduler.lane import Lane
from scheduler.streams.base import elapsed_between

_WIDTHS = (2, 5, 9)
_LEAST_STEPS = 5
_MOST_STEPS = 200
_RUNS = 3
_MARGIN = 1.3
"""The draft is given this much more to do than the target, so that the target is never alone."""


async def measure_together(target: Lane, draft: Lane) -> None:
    """Time blocks of the target beside steps of the draft, whose costs alone are known; leaves both caches empty.

    Raises:
        BaseException: whatever a model raised.
    """
    widths = _widths(target)
    num_steps = _num_steps(target, draft, dict.fromkeys(widths, _RUNS))
    draft.stream.launch(
        partial(draft.measure_costs, together=True, widths=(1,), num_runs=num_steps),
        writes=(draft.cache_buffer,),
        label="measure draft",
    )
    drafted = draft.stream.record()
    target.stream.launch(
        partial(target.measure_costs, together=True, widths=widths, num_runs=_RUNS),
        writes=(target.cache_buffer,),
        label="measure target",
    )
    verified = target.stream.record()
    await verified
    await drafted


async def measure_enqueued_together(target: Lane, draft: Lane) -> None:
    """The same on streams whose launches only enqueue; nothing is measured unless their events note the time.

    A block is enqueued first, then as many steps as take about as long: the order in which rounds do it.

    Raises:
        BaseException: whatever a model raised.
    """
    verify_ms: dict[int, list[float]] = {width: [] for width in _widths(target)}
    step_ms: list[float] = []
    # The first run is for the device to warm up.
    for run in range(_RUNS + 1):
        for width, own_ms in verify_ms.items():
            num_steps = _num_steps(target, draft, {width: 1})
            block_began = target.stream.record()
            _launch_block(target, width)
            block_ended = target.stream.record()
            steps_began = draft.stream.record()
            for _ in range(num_steps):
                _launch_block(draft, 1)
            steps_ended = draft.stream.record()
            await block_ended
            await steps_ended
            block_ms, steps_ms = elapsed_between(block_began, block_ended), elapsed_between(steps_began, steps_ended)
            if block_ms is None or steps_ms is None:
                return
            if run:
                own_ms.append(block_ms)
                step_ms.append(steps_ms / num_steps)
    target.costs_together.calibrate({width: median(own_ms) for width, own_ms in verify_ms.items()})
    draft.costs_together.calibrate({1: median(step_ms)})


def _widths(target: Lane) -> tuple[int, ...]:
    return tuple(width for width in _WIDTHS if width <= min(target.model.max_block, target.capacity)) or (1,)


def _num_steps(target: Lane, draft: Lane, runs_by_width: Mapping[int, int]) -> int:
    """Steps of the draft that take a little longer than these blocks of the target."""
    total_ms = sum(num_runs * (target.costs.estimate(width) or 0.0) for width, num_runs in runs_by_width.items())
    step_ms = draft.costs.estimate(1) or 1.0
    return min(max(math.ceil(_MARGIN * total_ms / step_ms), _LEAST_STEPS), _MOST_STEPS)


def _launch_block(lane: Lane, width: int) -> None:
    def run() -> None:
        lane.feed([0] * width, num_logits=width)
        lane.roll_back(0)

    lane.stream.launch(run, writes=(lane.cache_buffer,), label=f"measure {lane.name}")
