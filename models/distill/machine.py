"""The machine as far as a card and a hint name it.

Owns what is read from the operating system. Knows nothing of distillation.
"""

from __future__ import annotations

import platform
from pathlib import Path

import torch

_CPU_FILE = Path("/proc/cpuinfo")


def machine_text(device: torch.device, num_workers: int) -> str:
    """In words, such as "2 cores of AMD EPYC 7763 64-Core Processor"."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    name = _cpu_entry("model name") or platform.processor() or platform.machine() or "unknown processor"
    return f"{num_workers} core{'' if num_workers == 1 else 's'} of {name}"


def has_bfloat16_units() -> bool:
    """Whether the processor has AMX units for bfloat16; False also where it cannot be known."""
    return "amx_bf16" in _cpu_entry("flags").split()


def _cpu_entry(name: str) -> str:
    """Of the first processor; empty where there is none."""
    try:
        lines = _CPU_FILE.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((value.strip() for key, _, value in (line.partition(":") for line in lines) if key.strip() == name), "")
