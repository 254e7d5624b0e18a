"""Memory after many tokens equals memory after few, in every loop.

Owns the comparison.
"""

from __future__ import annotations

import dataclasses

from profiling.gpu_checks.bench import GpuBench
from profiling.gpu_checks.check import Budget, Finding
from profiling.gpu_checks.gauge import MemoryInUse
from profiling.gpu_checks.rig import PLAIN, LoopKind, LoopPlan, LoopRig
from profiling.gpu_checks.scripted_model import ScriptedModel, draft_script, target_script
from scheduler import DecodeRequest, SamplingSettings

_PLANS = (
    PLAIN,
    LoopPlan(kind=LoopKind.SEQUENTIAL, gamma=4),
    LoopPlan(kind=LoopKind.PIPELINED, gamma=4, lead=4),
)
_NUM_PROMPT_TOKENS = 20
_MARGIN = 64
"""Tokens that are never asked for, so that every run is left while rounds are under way."""
_ACCEPTANCE = 0.8
_LOOSE_BYTES = {"allocated_bytes": 4096, "reserved_bytes": 2 << 20}
"""Rounds under way hold a few small tensors, more or fewer, for which torch may reserve one more of its small segments;
what is lost every round comes to far more."""


async def check_memory(bench: GpuBench, budget: Budget) -> Finding:
    """Allocated and reserved bytes behind a short and a long run of one request, after another long one."""
    few, many = bench.sizes.num_memory_tokens
    target, draft, request = _scripted(bench)
    figures: dict[str, object] = {}
    faults: list[str] = []
    num_plans = 0
    for plan in budget.spend(_PLANS, "loops"):
        num_plans += 1
        after_few, after_many = await _use(bench, target, draft, plan, request)
        figures[str(plan)] = {
            f"after {few} tokens": dataclasses.asdict(after_few),
            f"after {many} tokens": dataclasses.asdict(after_many),
        }
        for name, loose_bytes in _LOOSE_BYTES.items():
            grown_bytes = getattr(after_many, name) - getattr(after_few, name)
            if grown_bytes > loose_bytes:
                faults.append(f"{plan}: {name} grew by {grown_bytes:,} between {few} and {many} tokens")
    return Finding(
        summary=f"{num_plans} of {len(_PLANS)} loops looked at, {len(faults)} that grow",
        figures=figures,
        faults=tuple(faults),
    )


def _scripted(bench: GpuBench) -> tuple[ScriptedModel, ScriptedModel, DecodeRequest]:
    """Scripted, the draft is right often enough for a long text to be short work, and wrong often enough."""
    pair = bench.small_pair()
    num_tokens = bench.sizes.num_memory_tokens[1] + _MARGIN
    vocab_size = min(pair.target.vocab_size, pair.draft.vocab_size)
    script = target_script(_NUM_PROMPT_TOKENS + num_tokens + _MARGIN, vocab_size, seed=3)
    request = DecodeRequest(
        prompt_ids=tuple(script[:_NUM_PROMPT_TOKENS]),
        settings=SamplingSettings(temperature=1.0, seed=1),
        max_tokens=num_tokens,
    )
    drafted = draft_script(script, vocab_size, acceptance=_ACCEPTANCE, seed=4)
    return ScriptedModel(pair.target, script), ScriptedModel(pair.draft, drafted), request


async def _use(
    bench: GpuBench, target: ScriptedModel, draft: ScriptedModel, plan: LoopPlan, request: DecodeRequest
) -> list[MemoryInUse]:
    with LoopRig(bench, target, draft, plan, capacity=_NUM_PROMPT_TOKENS + request.max_tokens) as rig:
        few, many = bench.sizes.num_memory_tokens
        in_use = []
        # The first long run brings the allocator to its full size.
        for num_tokens in (many, few, many):
            await _run_tokens(rig, request, num_tokens)
            await rig.idle()
            bench.gauge.synchronize()
            in_use.append(bench.gauge.memory_in_use())
    return in_use[1:]


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
