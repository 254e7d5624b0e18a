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
    """The load average before anything was loaded, against the cores."""
    load, num_cores = pair.surroundings.load_average, pair.surroundings.num_cores
    if load is None:
        raise CannotTell("the system does not tell its load")
    is_loaded = load > num_cores
    return Finding(
        verdict=Verdict.WARN if is_loaded else Verdict.OK,
        measured=f"load average {load:.1f} on {num_cores} cores before anything was loaded",
        advice="other programs wanted more than there is, so do not trust the times above: end them and run this again"
        if is_loaded
        else "",
        figures={"load_average": load, "num_cores": num_cores},
    )


def _why_on_cpu(pair: LoadedPair) -> str:
    if pair.runtime.settings.device != LoadSettings.device:
        return "the models run on the CPU, as was asked for"
    return f"the models run on the CPU: {why_no_cuda(torch.device('cuda:0'))}"
