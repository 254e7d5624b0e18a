"""CUDA streams: kernels enqueued at once, events awaited without blocking, results through a pinned ring."""

from scheduler.streams.cuda.awaiting import AwaitMethod
from scheduler.streams.cuda.copies import CopyDriver, DriverEvent, HostCopyDriver
from scheduler.streams.cuda.driver import CudaDriver, DeviceMemory, DeviceProperties, TorchCudaDriver, why_no_cuda
from scheduler.streams.cuda.event import CudaEvent
from scheduler.streams.cuda.ring import PinnedRing, PinnedSlot
from scheduler.streams.cuda.stream import CudaStream

__all__ = [
    "AwaitMethod",
    "CopyDriver",
    "CudaDriver",
    "CudaEvent",
    "CudaStream",
    "DeviceMemory",
    "DeviceProperties",
    "DriverEvent",
    "HostCopyDriver",
    "PinnedRing",
    "PinnedSlot",
    "TorchCudaDriver",
    "why_no_cuda",
]
