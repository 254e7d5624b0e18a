"""Free memory of a device.

Owns `AvailableMemory` and where the figure comes from on each platform. Knows nothing of models.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import torch

MEMORY_FILE = Path("/proc/meminfo")
CONTROL_GROUP_FOLDER = Path("/sys/fs/cgroup")


@dataclass(frozen=True, kw_only=True)
class AvailableMemory:
    """Free memory of a device."""

    num_bytes: int | None
    """None where it cannot be known."""
    reason: str
    """Where the number comes from, or why there is none."""
    kept_bytes: int = 0
    """Part of it that torch keeps from tensors that are gone, and uses again: the driver counts these as used."""


def available_memory(device: str | torch.device = "cpu") -> AvailableMemory:
    """Free memory of a device now: CUDA's own figure, or what this process may still take of the machine's."""
    device = torch.device(device)
    if device.type == "cuda":
        try:
            free, _ = torch.cuda.mem_get_info(device)
            kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        except (RuntimeError, AssertionError) as error:  # torch says so where it was built or started without CUDA
            return AvailableMemory(num_bytes=None, reason=f"CUDA does not tell: {error}")
        return AvailableMemory(num_bytes=free + kept, reason=f"free on {device}", kept_bytes=kept)
    if device.type != "cpu":
        return AvailableMemory(num_bytes=None, reason=f"devices of type {device.type} do not tell")
    machine, container = _machine_memory(), _control_group_memory()
    if container.num_bytes is None or (machine.num_bytes is not None and machine.num_bytes < container.num_bytes):
        return machine
    return container


def _machine_memory() -> AvailableMemory:
    try:
        for line in MEMORY_FILE.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return AvailableMemory(num_bytes=int(line.split()[1]) * 1024, reason=f"MemAvailable in {MEMORY_FILE}")
    except (OSError, ValueError, IndexError):
        pass  # not Linux, or not readable: the portable call below knows a little less
    try:
        num_bytes = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError) as error:
        return AvailableMemory(num_bytes=None, reason=f"the operating system does not tell: {error}")
    return AvailableMemory(num_bytes=num_bytes, reason="free pages of the machine")


def _control_group_memory() -> AvailableMemory:
    """What a container's limit leaves (control groups, version 2); file pages that can be dropped count as free."""
    try:
        limit = int((CONTROL_GROUP_FOLDER / "memory.max").read_text())
        used = int((CONTROL_GROUP_FOLDER / "memory.current").read_text())
        statistics = dict(line.split() for line in (CONTROL_GROUP_FOLDER / "memory.stat").read_text().splitlines())
        droppable = int(statistics.get("inactive_file", 0))
    except (OSError, ValueError):  # no control group, or "max": no limit
        return AvailableMemory(num_bytes=None, reason="no memory limit on this control group")
    return AvailableMemory(num_bytes=max(0, limit - used + droppable), reason="the container's memory limit")
