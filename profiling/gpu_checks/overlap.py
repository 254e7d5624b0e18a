"""How much each lane slows down while the other one runs, with and without stream priorities.

Owns the meeting of two streams. Both calls are enqueued behind one sleep, so that the device begins both at once and no
host is in the way. As its launch queue takes about a thousand kernels, the models are their own first layers.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass

from models import Decoder
from profiling.gpu_checks.bench import GpuBench
from profiling.gpu_checks.check import Budget, Finding
from profiling.gpu_checks.model_calls import ModelCalls
from profiling.gpu_checks.timing import Spread
from scheduler import CudaStream

_TARGET_LAYERS = 8
_DRAFT_LAYERS = 4
_MOST_STEPS = 4
_VERIFY_WIDTH = 5
_HELD_MS = 40.0
"""What the host needs to enqueue a few hundred kernels, with room."""


@dataclass(frozen=True, kw_only=True)
class _Priorities:
    name: str
    target: int
    draft: int


class _Meeting:
    """A lane's calls on two streams, alone and together."""

    def __init__(self, bench: GpuBench, priorities: _Priorities) -> None:
        self._bench = bench
        self._gate = bench.stream("gate")
        self._streams = {
            "verify": bench.stream("target", priority=priorities.target),
            "draft step": bench.stream("draft", priority=priorities.draft),
        }

    async def run(self, calls: dict[str, tuple[Callable[[], object], int]]) -> dict[str, float]:
        """Milliseconds of each name's first call, all of them begun at once; each is made that many times."""
        held_ms = _HELD_MS if self._bench.device.type == "cuda" else 1.0
        self._gate.launch(lambda: self._bench.driver.sleep(self._bench.cycles(held_ms)))
        opened = self._gate.record()
        spans = {}
        ends = []
        for name, (call, num_calls) in calls.items():
            stream = self._streams[name]
            stream.wait(opened)
            start = stream.record()
            stream.launch(call)
            spans[name] = (start, stream.record())
            for _ in range(num_calls - 1):
                stream.launch(call)
            ends.append(stream.record())
        for end in ends:
            await end
        return {name: end.elapsed_ms_since(start) for name, (start, end) in spans.items()}

    def close(self) -> None:
        for stream in self._all():
            stream.close()

    def _all(self) -> list[CudaStream]:
        return [self._gate, *self._streams.values()]


async def measure_overlap(bench: GpuBench, budget: Budget) -> Finding:
    """Slow-down of a verify beside draft steps, and of a draft step beside a verify."""
    pair = bench.large_pair()
    target, draft = _cut(pair.target, _TARGET_LAYERS), _cut(pair.draft, _DRAFT_LAYERS)
    verify = ModelCalls(bench, target).verify(_VERIFY_WIDTH)
    step = ModelCalls(bench, draft).step()
    least, most = bench.driver.priority_range()
    arrangements = (
        _Priorities(name="equal priorities", target=least, draft=least),
        _Priorities(name="draft more urgent", target=least, draft=most),
        _Priorities(name="target more urgent", target=most, draft=least),
    )
    meetings = {priorities.name: _Meeting(bench, priorities) for priorities in arrangements}
    slow_downs: dict[str, dict[str, list[float]]] = {name: {"verify": [], "draft step": []} for name in meetings}
    alone: dict[str, list[float]] = {"verify": [], "draft step": []}
    for repeat in budget.spend(range(1 + bench.sizes.num_timed_calls), "repeats", least=2):
        for name, meeting in meetings.items():
            verify_ms = (await meeting.run({"verify": (verify, 1)}))["verify"]
            step_ms = (await meeting.run({"draft step": (step, 1)}))["draft step"]
            num_steps = min(_MOST_STEPS, max(1, math.ceil(verify_ms / max(step_ms, 1e-3))))
            together = await meeting.run({"draft step": (step, num_steps), "verify": (verify, 1)})
            if repeat:  # the first one is cold
                alone["verify"].append(verify_ms)
                alone["draft step"].append(step_ms)
                slow_downs[name]["verify"].append(together["verify"] / max(verify_ms, 1e-6))
                slow_downs[name]["draft step"].append(together["draft step"] / max(step_ms, 1e-6))
    for meeting in meetings.values():
        meeting.close()
    spreads = {name: {lane: Spread.of(own) for lane, own in lanes.items()} for name, lanes in slow_downs.items()}
    return Finding(
        summary="slow-down of verify and draft step: "
        + "; ".join(
            f"{name} {lanes['verify'].median:.2f} and {lanes['draft step'].median:.2f}"
            for name, lanes in spreads.items()
        ),
        figures={
            "target_layers": target.config.num_layers,
            "draft_layers": draft.config.num_layers,
            "verify_width": _VERIFY_WIDTH,
            "alone_ms": {lane: dataclasses.asdict(Spread.of(own)) for lane, own in alone.items()},
            "slow_down": {
                name: {lane: dataclasses.asdict(spread) for lane, spread in lanes.items()}
                for name, lanes in spreads.items()
            },
        },
    )


def _cut(decoder: Decoder, num_layers: int) -> Decoder:
    return decoder.first_layers(min(num_layers, decoder.config.num_layers))
