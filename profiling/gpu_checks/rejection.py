"""The rejection rule emits the target's own law: on tables, where that law is known.

Owns two experiments. One judges many blocks at once, each at positions of its own; the other lets loops write long
texts.

Shape suffixes: N draws, B tokens of a block, R rows, V vocabulary.
"""

from __future__ import annotations

import torch

from profiling.gpu_checks.bench import GpuBench
from profiling.gpu_checks.check import Budget, Finding
from profiling.gpu_checks.rig import LoopKind, LoopPlan, LoopRig
from profiling.gpu_checks.table_chain import TableChain
from scheduler import DecodeRequest, SamplingSettings, Verification
from scheduler.on_device import DeviceLaw, NoiseTable, judge_on_device, purposes_of

BOUND = 0.02
"""Total variation that sampling alone does not reach; the classic faults lie from 0.1 on."""
_VOCAB = 4
_FIRST_ID = 1
_PLANS = (
    LoopPlan(kind=LoopKind.SEQUENTIAL, gamma=3),
    LoopPlan(kind=LoopKind.PIPELINED, gamma=3, lead=3),
)


async def check_rejection(bench: GpuBench, budget: Budget) -> Finding:
    """Total variation against the exact law, of the judgement and of both loops."""
    target = TableChain(_VOCAB, seed=11, device=bench.device, sharpness=1.2)
    draft = TableChain(_VOCAB, seed=13, device=bench.device, sharpness=1.2)
    figures: dict[str, object] = {}
    faults: list[str] = []
    distances: list[float] = []

    def note(name: str, distance: float, bound: float, num_draws: int) -> None:
        figures[name] = {"total_variation": distance, "bound": bound, "num_draws": num_draws}
        distances.append(distance)
        if not distance <= bound:
            faults.append(f"{name}: total variation {distance:.3f} over {num_draws} draws, the bound is {bound:.3f}")

    num_draws = bench.sizes.num_law_draws
    note("judgement", _judged_distance(target, draft, num_draws), BOUND, num_draws)
    for plan in _PLANS:
        token_ids = await _text(bench, target, draft, plan)
        distance, expected = _text_distance(target, token_ids)
        note(str(plan), distance, BOUND + 2 * expected, len(token_ids))
    return Finding(
        summary="total variation from the exact law: " + ", ".join(f"{distance:.4f}" for distance in distances),
        figures=figures,
        faults=tuple(faults),
    )


@torch.inference_mode()
def _judged_distance(target: TableChain, draft: TableChain, num_draws: int) -> float:
    """Two tokens behind one, drafted and judged under the rule; `num_draws` times at once."""
    settings = SamplingSettings(temperature=1.0, seed=3, verification=Verification.REJECTION)
    device = target.device
    law = DeviceLaw(settings, vocab_size=_VOCAB, device=device)
    noise = NoiseTable(settings.seed, device=device, num_positions=3 * num_draws, purposes=purposes_of(settings))
    noise.reserve(3 * num_draws)
    purposes = {purpose.name: purpose for purpose in purposes_of(settings)}
    target_VV, draft_VV = (table.logits_VV.to(device) for table in (target, draft))
    weights_VV, _ = law.apply(draft_VV, num_output_R=torch.arange(_VOCAB, device=device), counts=None)
    probabilities_VV = law.probabilities_RV(weights_VV)
    start_N = torch.arange(num_draws, device=device) * 3

    def step(ids_N: torch.Tensor, positions_N: torch.Tensor) -> torch.Tensor:
        noise_NV = noise.gumbel_RV(purposes["DRAFT"], positions_N, law.token_ids_V)
        return law.draw_R(weights_VV[ids_N] + noise_NV, None)

    before_N = torch.full((num_draws,), _FIRST_ID, device=device)
    first_N = step(before_N, start_N)
    second_N = step(first_N, start_N + 1)

    def judge(start: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        before = torch.full((1,), _FIRST_ID, device=device)
        block_ids_B = torch.stack([first, second])
        read_R = torch.cat([before, block_ids_B])
        verdict = judge_on_device(
            law,
            noise,
            target_VV.index_select(0, read_R),
            position=start,
            num_output=0,
            counts=None,
            block_ids_B=block_ids_B,
            guess_ids_G=block_ids_B[:0],
            draft_probabilities=list(probabilities_VV.index_select(0, read_R[:2]).unbind(0)),
        )
        return verdict.token_ids_R, verdict.num_emitted

    emitted_NR, num_emitted_N = torch.vmap(judge)(start_N, first_N, second_N)
    # What the verdict did not emit follows from the target alone, here with noise that was not used.
    purpose = purposes["TARGET"]
    drawn_N = law.draw_R(target_VV[emitted_NR[:, 0]] + noise.gumbel_RV(purpose, start_N, law.token_ids_V), None)
    next_N = torch.where(num_emitted_N > 1, emitted_NR[:, 1], drawn_N)
    counts_V2 = torch.bincount(emitted_NR[:, 0] * _VOCAB + next_N, minlength=_VOCAB**2).double().cpu()
    law_VV = target.logits_VV.double().softmax(-1)
    joint_V2 = (law_VV[_FIRST_ID][:, None] * law_VV).flatten()
    return float((counts_V2 / num_draws - joint_V2).abs().sum() / 2)


async def _text(bench: GpuBench, target: TableChain, draft: TableChain, plan: LoopPlan) -> list[int]:
    num_tokens = bench.sizes.num_law_tokens
    request = DecodeRequest(
        prompt_ids=(_FIRST_ID,),
        settings=SamplingSettings(temperature=1.0, seed=17, verification=Verification.REJECTION),
        max_tokens=num_tokens,
    )
    with LoopRig(bench, target, draft, plan, capacity=num_tokens + 2) as rig:
        output = await rig.run(request)
        await rig.idle()
    return [_FIRST_ID, *output.token_ids]


def _text_distance(target: TableChain, token_ids: list[int]) -> tuple[float, float]:
    """Total variation of the pairs from what the table says follows each token, and what chance alone makes of it."""
    ids_T = torch.tensor(token_ids)
    counts_VV = torch.bincount(ids_T[:-1] * _VOCAB + ids_T[1:], minlength=_VOCAB**2).double().view(_VOCAB, _VOCAB)
    num_pairs = len(token_ids) - 1
    law_VV = target.logits_VV.double().softmax(-1)
    num_before_V1 = counts_VV.sum(-1, keepdim=True)
    distance = float((counts_VV - num_before_V1 * law_VV).abs().sum() / (2 * num_pairs))
    # The mean absolute deviation of a binomial count, by its normal approximation.
    deviation_VV = (2 / torch.pi * num_before_V1 * law_VV * (1 - law_VV)).sqrt()
    return distance, float(deviation_VV.sum() / (2 * num_pairs))
