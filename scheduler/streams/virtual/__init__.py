"""Virtual streams: real work in any order that the events allow, with races and deadlocks found."""

from scheduler.streams.virtual.choices import Choice
from scheduler.streams.virtual.device import VirtualDevice
from scheduler.streams.virtual.operations import Hold, VirtualEvent, VirtualLaunch
from scheduler.streams.virtual.stream import VirtualStream

__all__ = ["Choice", "Hold", "VirtualDevice", "VirtualEvent", "VirtualLaunch", "VirtualStream"]
