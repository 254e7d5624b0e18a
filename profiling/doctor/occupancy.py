"""Does anybody else use the GPU, or the cores?

Owns both verdicts. What NVML does not tell is skipped with its reason.
"""

from __future__ import annotations

import asyncio

import torch

from profiling.doctor.check import CannotTell, Finding, Verdict
from profiling.doctor.loaded_pair import LoadedPair
from runtime import LoadSettings
from scheduler import overlap_advice, why_no_cuda

_MOST_OTHERS = 0.5
"""Cores that others may use: less than a thread of the pair loses."""


async def check_gpu(pair: LoadedPair) -> Finding:
    """NVML's reading of the GPU that the pair runs on."""
    probe = pair.engine.probe
    if probe is None:
        raise CannotTell(await asyncio.to_thread(_why_on_cpu, pair))
    if not probe.available:
        raise CannotTell(f"NVML gives no reading: {probe.reason}")
    occupancy = await asyncio.to_thread(probe.read)
    others = occupancy.num_other_processes
    if others.value is None:
        raise CannotTell(f"not known whether others use the GPU: {others.reason}")
    advice = overlap_advice(occupancy)
    figures: dict[str, object] = {
        name: {"value": field.value, "reason": field.reason} for name, field in occupancy.measured().items()
    }
    return Finding(
        verdict=Verdict.WARN if others.value else Verdict.OK,
        measured=occupancy.describe(),
        advice=f"other processes take time and memory, and figures vary with them ({advice.reason}): end them, or "
        "choose another GPU with --device cuda:N"
        if others.value
        else "",
        figures=figures,
    )


async def check_cores(pair: LoadedPair) -> Finding:
    """What other processes used of the cores before anything was loaded."""
    others, num_cores = pair.surroundings.others, pair.surroundings.num_cores
    if others.num_cores is None:
        raise CannotTell(others.reason)
    is_loaded = others.num_cores > _MOST_OTHERS
    return Finding(
        verdict=Verdict.WARN if is_loaded else Verdict.OK,
        measured=f"others used {others.num_cores:.2f} of {num_cores} cores before anything was loaded; at most "
        f"{_MOST_OTHERS:g} is good",
        advice="other programs take time from the pair, so do not trust the times above: end them and run this again"
        if is_loaded
        else "",
        figures={"others_num_cores": others.num_cores, "source": others.reason, "num_cores": num_cores},
    )


def _why_on_cpu(pair: LoadedPair) -> str:
    if pair.runtime.settings.device != LoadSettings.device:
        return "the models run on the CPU, as was asked for"
    return f"the models run on the CPU: {why_no_cuda(torch.device('cuda:0'))}"
