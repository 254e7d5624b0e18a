"""Memory after many tokens equals memory after few, in every loop.

Owns the comparison.
"""

from __future__ import annotations

import dataclasses

from profiling.gpu_checks.bench import GpuBench, Pair
from profiling.gpu_checks.check import Budget, Finding
from profiling.gpu_checks.gauge import MemoryInUse
from profiling.gpu_checks.rig import PLAIN, LoopKind, LoopPlan, LoopRig
from scheduler import DecodeRequest, SamplingSettings

_PLANS = (
    PLAIN,
    LoopPlan(kind=LoopKind.SEQUENTIAL, gamma=4),
    LoopPlan(kind=LoopKind.PIPELINED, gamma=4, lead=4),
)
_PROMPT = tuple(range(20))


async def check_memory(bench: GpuBench, budget: Budget) -> Finding:
    """Allocated and reserved bytes behind a short and a long run of one request, after another long one."""
    few, many = bench.sizes.num_memory_tokens
    pair = bench.small_pair()
    figures: dict[str, object] = {}
    faults: list[str] = []
    num_plans = 0
    for plan in budget.spend(_PLANS):
        num_plans += 1
        after_few, after_many = await _use(bench, pair, plan, few=few, many=many)
        figures[str(plan)] = {
            f"after {few} tokens": dataclasses.asdict(after_few),
            f"after {many} tokens": dataclasses.asdict(after_many),
        }
        for name in ("allocated_bytes", "reserved_bytes"):
            grown_bytes = getattr(after_many, name) - getattr(after_few, name)
            if grown_bytes > 0:
                faults.append(f"{plan}: {name} grew by {grown_bytes:,} between {few} and {many} tokens")
    return Finding(
        summary=f"{num_plans} of {len(_PLANS)} loops looked at, {len(faults)} that grow",
        figures=figures,
        faults=tuple(faults),
    )


async def _use(bench: GpuBench, pair: Pair, plan: LoopPlan, *, few: int, many: int) -> tuple[MemoryInUse, MemoryInUse]:
    request = DecodeRequest(prompt_ids=_PROMPT, settings=SamplingSettings(temperature=1.0, seed=1), max_tokens=many)
    draft = None if plan.kind is LoopKind.PLAIN else pair.draft
    with LoopRig(bench, pair.target, draft, plan, capacity=len(_PROMPT) + many + 1) as rig:
        # The first long run brings the allocator to its full size, and the request's tables to theirs.
        await rig.run(request)
        in_use = []
        for num_tokens in (few, many):
            # The same request, left early: what depends on its length is there both times.
            await _run_tokens(rig, request, num_tokens)
            await rig.idle()
            bench.gauge.synchronize()
            in_use.append(bench.gauge.memory_in_use())
    return in_use[0], in_use[1]


async def _run_tokens(rig: LoopRig, request: DecodeRequest, num_tokens: int) -> None:
    """Decode until so many tokens have come."""
    await rig.loop.prefill(request)
    rounds = rig.loop.rounds(request)
    num_so_far = 0
    async for report in rounds:
        num_so_far += len(report.token_ids)
        if num_so_far >= num_tokens:
            break
    await rounds.aclose()
