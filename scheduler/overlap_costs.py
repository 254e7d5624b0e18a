"""What the steps of two lanes cost while both run.

Owns the measurement on streams with a thread each, where a launch takes as long as its work. Knows nothing of requests.
"""

from __future__ import annotations

import math
from functools import partial

from scheduler.lane import Lane

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
    widths = [width for width in _WIDTHS if width <= min(target.model.max_block, target.capacity)] or [1]
    total_ms = _RUNS * sum(target.costs.estimate(width) or 0.0 for width in widths)
    step_ms = draft.costs.estimate(1) or 1.0
    num_steps = min(max(math.ceil(_MARGIN * total_ms / step_ms), _LEAST_STEPS), _MOST_STEPS)
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
