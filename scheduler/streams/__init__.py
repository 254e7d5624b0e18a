"""Streams: ordered work, events between streams, one protocol for every kind of device."""

from scheduler.streams.base import Event, Launch, Stream
from scheduler.streams.lineage import Generation, Lineage
from scheduler.streams.threads import ThreadStream
from scheduler.streams.virtual import VirtualDevice, VirtualEvent, VirtualStream

__all__ = [
    "Event",
    "Generation",
    "Launch",
    "Lineage",
    "Stream",
    "ThreadStream",
    "VirtualDevice",
    "VirtualEvent",
    "VirtualStream",
]
