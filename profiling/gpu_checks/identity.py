"""What the checks ran on: the GPU and the software between it and this program.

Owns the description. What cannot be found out is a reason, not an error.
"""

from __future__ import annotations

import dataclasses
from importlib.metadata import PackageNotFoundError, version

import torch

from profiling.gpu_checks.bench import GpuBench


def describe_device(bench: GpuBench) -> dict[str, object]:
    """Card, driver and versions, ready for JSON."""
    memory = bench.driver.memory()
    return {
        "device": str(bench.device),
        **dataclasses.asdict(bench.driver.properties()),
        "free_bytes_at_start": memory.free_bytes,
        "cuda": torch.version.cuda,
        "driver": _driver_version(),
        "transformers": _version_of("transformers"),
        "sleep_cycles_per_ms": bench.cycles_per_ms,
    }


def _driver_version() -> str:
    try:
        import pynvml
    except ImportError:
        return "unknown: nvidia-ml-py is not installed"
    try:
        pynvml.nvmlInit()
        try:
            found = pynvml.nvmlSystemGetDriverVersion()
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        return f"unknown: {error}"
    return found.decode() if isinstance(found, bytes) else str(found)


def _version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
