"""Streams: ordered work, events between streams, one protocol for every kind of device."""

from scheduler.streams.base import Event, Launch, Stream
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
    "CostModel",
    "Event",
    "Generation",
    "Launch",
    "Lineage",
    "Stream",
    "ThreadStream",
    "TimelineEntry",
    "TimelineSummary",
    "VirtualDevice",
    "VirtualEvent",
    "VirtualStream",
    "summarize_timeline",
]
