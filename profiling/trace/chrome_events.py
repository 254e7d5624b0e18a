"""Chrome's Trace Event Format: its events, their order, and the file.

Owns what an event looks like and what viewers need to place it: times are whole nanoseconds from the recording's start,
written in microseconds; slices of one track lie one behind the other, each at least a nanosecond long, since Perfetto
drops a slice that reaches into the next and binds no arrow to one without length. Knows nothing of launches or rounds.

Format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

Event = dict[str, object]

PROCESS = 1
"""All tracks belong to one process, whatever its number was when it ran."""
_FIRST_TRACK = 2
"""A thread with its process's number would count as the main thread."""


class Phase(StrEnum):
    """Kinds of events, as `ph` writes them."""

    SLICE = "X"
    INSTANT = "i"
    COUNTER = "C"
    FLOW_START = "s"
    FLOW_END = "f"
    METADATA = "M"


class Colour(StrEnum):
    """Names that chrome://tracing reserves; Perfetto chooses colours by an event's name instead."""

    BROWN = "thread_state_unknown"
    ORANGE = "rail_idle"
    BLUE = "rail_response"
    RED = "terrible"
    YELLOW = "yellow"
    BLACK = "black"
    GREEN = "good"
    OCHRE = "bad"
    GREY = "generic_work"


@dataclass(frozen=True, kw_only=True)
class Slice:
    """A slice that was placed, for arrows from and to it."""

    track: int
    start_ns: int
    end_ns: int


# What stands at one moment: an instant ends before a slice begins, and arrows need their slice to be there.
_ORDER = {
    Phase.METADATA: 0,
    Phase.INSTANT: 1,
    Phase.COUNTER: 1,
    Phase.SLICE: 2,
    Phase.FLOW_START: 3,
    Phase.FLOW_END: 4,
}


class ChromeEvents:
    """Collects the events of one trace."""

    def __init__(self, process_name: str) -> None:
        """Begin with no track.

        Args:
            process_name: shown above all tracks.
        """
        self._placed: list[tuple[int, Event]] = []
        self._ends_ns: dict[int, int] = {}
        self._num_flows = 0
        self._name("process_name", _FIRST_TRACK, name=process_name)

    def add_track(self, name: str) -> int:
        """A track below those that are there; returns its number."""
        track = _FIRST_TRACK + len(self._ends_ns)
        self._ends_ns[track] = 0
        self._name("thread_name", track, name=name)
        self._name("thread_sort_index", track, sort_index=track)
        return track

    def add_slice(
        self,
        track: int,
        name: str,
        start_ns: int,
        end_ns: int,
        *,
        category: str,
        colour: Colour,
        args: Mapping[str, object],
    ) -> Slice:
        """Something that lasted; the slices of a track are to be added in the order of their times."""
        placed_start_ns = max(start_ns, self._ends_ns[track])
        placed_end_ns = max(end_ns, placed_start_ns + 1)
        self._ends_ns[track] = placed_end_ns
        event = self._event(Phase.SLICE, name, track, placed_start_ns, category)
        event["dur"] = _microseconds(placed_end_ns - placed_start_ns)
        event |= {"cname": colour.value, "args": _known(args)}
        return Slice(track=track, start_ns=placed_start_ns, end_ns=placed_end_ns)

    def add_instant(self, track: int, name: str, at_ns: int, *, category: str, args: Mapping[str, object]) -> None:
        """Something without length; never inside of a slice that was added before."""
        placed_ns = self._ends_ns[track] = max(at_ns, self._ends_ns[track])
        event = self._event(Phase.INSTANT, name, track, placed_ns, category)
        event |= {"s": "t", "args": _known(args)}

    def add_flow(self, name: str, origin: Slice, end: Slice, *, category: str) -> None:
        """An arrow from the end of one slice to the beginning of another; none against the direction of time."""
        start_ns = min(origin.end_ns, end.end_ns) - 1
        if start_ns < origin.start_ns:
            return
        identifier = self._num_flows
        self._num_flows += 1
        # Viewers bind each end to the slice that its time lies in.
        start = self._event(Phase.FLOW_START, name, origin.track, start_ns, category)
        start["id"] = identifier
        finish = self._event(Phase.FLOW_END, name, end.track, max(end.start_ns, start_ns), category)
        finish |= {"id": identifier, "bp": "e"}

    def add_counter(self, name: str, unit: str, at_ns: int, value: float) -> None:
        """What a counter came to, from then on."""
        event = self._event(Phase.COUNTER, name, _FIRST_TRACK, at_ns, "counter")
        event["args"] = {unit: value}

    def events(self) -> list[Event]:
        """All of them, in the order of their times."""
        return [event for _, event in sorted(self._placed, key=_place)]

    def _name(self, what: str, track: int, **args: object) -> None:
        event: Event = {"name": what, "ph": Phase.METADATA.value, "pid": PROCESS, "tid": track, "args": args}
        self._placed.append((0, event))

    def _event(self, phase: Phase, name: str, track: int, at_ns: int, category: str) -> Event:
        event: Event = {
            "name": name,
            "cat": category,
            "ph": phase.value,
            "pid": PROCESS,
            "tid": track,
            "ts": _microseconds(at_ns),
        }
        self._placed.append((at_ns, event))
        return event


def encode_trace(events: Iterable[Event], metadata: Mapping[str, object], *, compressed: bool) -> bytes:
    """The whole file.

    Args:
        events: in order.
        metadata: about the trace as a whole, ready for JSON.
        compressed: by gzip, which viewers read as well.
    """
    trace = {"traceEvents": list(events), "displayTimeUnit": "ms", "otherData": dict(metadata)}
    content = json.dumps(trace, allow_nan=False, separators=(",", ":")).encode()
    # Without the time in its head, equal traces are equal files.
    return gzip.compress(content, mtime=0) if compressed else content


def nanoseconds(since_ms: float) -> int:
    """Whole nanoseconds of some milliseconds; nothing is before the recording's start."""
    return max(0, round(since_ms * 1e6))


def _microseconds(duration_ns: int) -> float:
    return duration_ns / 1000


def _known(args: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in args.items() if value is not None}


def _place(placed: tuple[int, Event]) -> tuple[int, int]:
    at_ns, event = placed
    return at_ns, _ORDER[Phase(str(event["ph"]))]
