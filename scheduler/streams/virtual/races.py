"""Races: two launches that touch one buffer, at least one writing, and nothing orders them.

Owns the last accesses of every buffer. Knows nothing of queues or of how an order comes about.

It is enough to keep, of each buffer, the last write and each stream's last read since: if a launch is unordered with an
older access, it is unordered with one of these too, or these are with the older one and were found earlier (Flanagan
and Freund 2009, FastTrack). So which pair is named may depend on the order of execution, never whether one is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from scheduler.streams.virtual.clock import Clock, knows


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchSite:
    """Where a launch stands in the program."""

    label: str
    stream: str
    stream_index: int
    number: int
    """Place on its stream, from 1."""
    position: int
    """Place among all that the host has enqueued."""

    def __str__(self) -> str:
        return f"{self.label!r} (launch {self.number} on {self.stream!r})"


@dataclass(frozen=True, kw_only=True, slots=True)
class Race:
    """Two accesses that nothing orders; the host enqueued `first` first."""

    subject: str
    """What both touch, in words."""
    first: LaunchSite
    first_access: str
    second: LaunchSite
    second_access: str

    def __str__(self) -> str:
        return (
            f"race on {self.subject}: {self.first} {self.first_access} it, {self.second} {self.second_access} it, and "
            f"nothing orders the two: {self.second.stream!r} must wait for an event recorded on {self.first.stream!r} "
            f"behind {self.first.label!r}, or the host await one before it launches {self.second.label!r}"
        )


def result_race(read: LaunchSite, reader: LaunchSite) -> Race:
    """The race of work that reads another launch's result without being ordered after it."""
    return Race(
        subject=f"the result of {read.label!r}",
        first=read,
        first_access="makes",
        second=reader,
        second_access="reads",
    )


@dataclass(slots=True)
class _Accesses:
    write: LaunchSite | None = None
    reads: dict[int, LaunchSite] = field(default_factory=dict)
    """By stream: the last read since the write."""


class RaceDetector:
    """Remembers who touched what."""

    def __init__(self) -> None:
        self._buffers: dict[str, _Accesses] = {}

    def access(self, site: LaunchSite, clock: Clock, reads: Iterable[str], writes: Iterable[str]) -> Race | None:
        """Note a launch's accesses; returns the first race among them.

        Args:
            site: the launch.
            clock: what has happened before it.
            reads: names of buffers.
            writes: names of buffers that are written, or read and written.
        """
        for buffer in writes:
            accesses = self._buffers.setdefault(buffer, _Accesses())
            for earlier in accesses.reads.values():
                if not knows(clock, earlier.stream_index, earlier.number):
                    return _race(buffer, earlier, "reads", site, "writes")
            if accesses.write is not None and not knows(clock, accesses.write.stream_index, accesses.write.number):
                return _race(buffer, accesses.write, "writes", site, "writes")
            self._buffers[buffer] = _Accesses(write=site)
        for buffer in reads:
            accesses = self._buffers.setdefault(buffer, _Accesses())
            if accesses.write is not None and not knows(clock, accesses.write.stream_index, accesses.write.number):
                return _race(buffer, accesses.write, "writes", site, "reads")
            accesses.reads[site.stream_index] = site
        return None


def _race(buffer: str, one: LaunchSite, one_access: str, other: LaunchSite, other_access: str) -> Race:
    # Which of the two ran first is luck; the program says which one was meant to.
    if one.position > other.position:
        one, one_access, other, other_access = other, other_access, one, one_access
    return Race(subject=repr(buffer), first=one, first_access=one_access, second=other, second_access=other_access)
