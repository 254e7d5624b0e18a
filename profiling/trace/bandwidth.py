"""How fast the memory is that the models' weights lie in.

Owns the measurement, which takes a fraction of a second. Knows nothing of models.

On a CPU, memory is read by as many threads as the models have (the sum of a tensor) and copied, which reads and writes
each byte; on a GPU it is copied. The best of some runs counts: it is to be a bound.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from scheduler import CudaStream, ThreadStream, TimedStream, TorchCudaDriver

_CPU_BYTES = 128 << 20
_GPU_BYTES = 256 << 20
_NUM_RUNS = 5


@dataclass(frozen=True, kw_only=True)
class Bandwidth:
    """What was measured."""

    bytes_per_s: float
    method: str
    """How, in words."""


async def measure_bandwidth(device: torch.device, *, num_threads: int) -> Bandwidth:
    """Measure a device; nothing else should run there.

    Args:
        device: where the weights lie.
        num_threads: intra-op threads of a CPU's work.

    Raises:
        DeviceUnavailableError: if there is no such GPU.
    """
    if device.type == "cuda":
        stream: TimedStream = CudaStream("bandwidth", TorchCudaDriver(device), timing=True)
        num_bytes, how = _GPU_BYTES, f"copying on {device}"
    else:
        stream = ThreadStream("bandwidth", num_threads=num_threads)
        num_bytes, how = _CPU_BYTES, f"reading or copying with {num_threads} thread{'s' * (num_threads != 1)}"
    try:
        bytes_per_s = await best_rate(stream, device, num_bytes=num_bytes, reads=device.type != "cuda")
    finally:
        stream.close()
    return Bandwidth(bytes_per_s=bytes_per_s, method=f"{how}, {num_bytes >> 20} MiB at a time, the best of {_NUM_RUNS}")


async def best_rate(
    stream: TimedStream, device: torch.device, *, num_bytes: int, reads: bool, num_runs: int = _NUM_RUNS
) -> float:
    """Bytes a second of the fastest run, by the stream's own clock.

    Args:
        stream: what to run on.
        device: where that is.
        num_bytes: of each of two tensors.
        reads: whether to try reading alone as well.
        num_runs: of each kind; one more comes first, which is cold.
    """
    making = stream.launch(lambda: [torch.zeros(num_bytes // 4, device=device) for _ in range(2)], label="make")
    await stream.record()
    source, target = making.result()
    passes: list[tuple[Callable[[], object], int]] = [(lambda: target.copy_(source), 2)]
    if reads:
        passes.append((source.sum, 1))
    stream.time_launches(stream.new_time_source())
    rates = []
    for run in range(num_runs + 1):
        for work, num_passes in passes:
            launch = stream.launch(work, label="move")
            await stream.record()
            times = launch.times()
            if run and times is not None and times.end_ms > times.start_ms:
                rates.append(num_passes * num_bytes / (times.end_ms - times.start_ms) * 1e3)
    stream.time_launches(None)
    return max(rates)
