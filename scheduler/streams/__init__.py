"""Streams: ordered work, events between streams, one protocol for every kind of device."""

from scheduler.streams.base import Event, Launch, Stream, TimedLaunch, TimedStream, TimeSource
from scheduler.streams.cuda import (
    AwaitMethod,
    CopyDriver,
    CudaDriver,
    CudaEvent,
    CudaStream,
    DeviceMemory,
    DeviceProperties,
    HostCopyDriver,
    PinnedRing,
    PinnedSlot,
    TorchCudaDriver,
    why_no_cuda,
)
from scheduler.streams.lineage import Generation, Lineage
from scheduler.streams.threads import ThreadStream
from scheduler.streams.virtual import (
    CostModel,
    TimelineEntry,
    TimelineSummary,
    VirtualDevice,
    VirtualEvent,
    VirtualStream,
    summarize_timeline,
)

__all__ = [
    "AwaitMethod",
    "CopyDriver",
    "CostModel",
    "CudaDriver",
    "CudaEvent",
    "CudaStream",
    "DeviceMemory",
    "DeviceProperties",
    "Event",
    "Generation",
    "HostCopyDriver",
    "Launch",
    "Lineage",
    "PinnedRing",
    "PinnedSlot",
    "Stream",
    "ThreadStream",
    "TimeSource",
    "TimedLaunch",
    "TimedStream",
    "TimelineEntry",
    "TimelineSummary",
    "TorchCudaDriver",
    "VirtualDevice",
    "VirtualEvent",
    "VirtualStream",
    "summarize_timeline",
    "why_no_cuda",
]
