"""Virtual streams: real work in any order that the events allow, with races and deadlocks found."""

from scheduler.streams.virtual.choices import Choice
from scheduler.streams.virtual.device import VirtualDevice
from scheduler.streams.virtual.operations import Hold, VirtualEvent, VirtualLaunch
from scheduler.streams.virtual.stream import VirtualStream
from scheduler.streams.virtual.timed import CostModel
from scheduler.streams.virtual.timeline import TimelineEntry, TimelineSummary, summarize_timeline

__all__ = [
    "Choice",
    "CostModel",
    "Hold",
    "TimelineEntry",
    "TimelineSummary",
    "VirtualDevice",
    "VirtualEvent",
    "VirtualLaunch",
    "VirtualStream",
    "summarize_timeline",
]
