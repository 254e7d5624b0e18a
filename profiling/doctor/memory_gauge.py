"""How much memory this process holds, as far as the system tells.

Owns the readings. What cannot be read is None with a reason, never 0. Knows nothing of models.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from profiling.gpu_checks.gauge import CudaGauge, DeviceGauge, HostGauge

PROCESS_STATUS = Path("/proc/self/status")


@dataclass(frozen=True, kw_only=True)
class HeldMemory:
    """One reading."""

    tensor_bytes: int
    """In tensors that live: all that torch's allocator has given out on a GPU, all that Python knows of on a CPU."""
    process_bytes: int | None
    """Of the process, beside what is mapped from files; None where the system does not tell."""
    source: str
    """Where `process_bytes` comes from, or why there is none."""


ReadMemory = Callable[[], HeldMemory]


def memory_reader(device: torch.device) -> ReadMemory:
    """Reads what a process that computes on `device` holds; everything it enqueued must be over."""
    gauge: DeviceGauge = CudaGauge(device) if device.type == "cuda" else HostGauge()

    def read() -> HeldMemory:
        # The device first: it collects garbage.
        tensor_bytes = gauge.memory_in_use().allocated_bytes
        process_bytes, source = anonymous_bytes()
        return HeldMemory(tensor_bytes=tensor_bytes, process_bytes=process_bytes, source=source)

    return read


def anonymous_bytes(status: Path = PROCESS_STATUS) -> tuple[int | None, str]:
    """Memory of this process that is no file's (RssAnon of proc(5)), and where that comes from."""
    try:
        for line in status.read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024, f"RssAnon in {status}"
    except (OSError, ValueError, IndexError) as error:
        return None, f"{status} cannot be read: {error}"
    return None, f"{status} has no RssAnon"
