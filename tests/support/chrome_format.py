"""A strict reader of Chrome's Trace Event Format: what it lets pass, Perfetto and chrome://tracing show in full.

It goes through the events in the file's order and keeps the stack of open slices of each track, as Perfetto's importer
does, so that a slice that would be dropped, or an arrow that would hang in the air, is a fault here.
"""

from __future__ import annotations

import gzip
import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Event = dict[str, Any]

_COMMON = {"name": str, "cat": str, "ph": str, "pid": int, "tid": int, "ts": float}
_OWN = {
    "X": {"dur": float, "args": dict, "cname": str},
    "i": {"s": str, "args": dict},
    "C": {"args": dict},
    "s": {"id": int},
    "f": {"id": int, "bp": str},
}
_METADATA = {"process_name": ("name", str), "thread_name": ("name", str), "thread_sort_index": ("sort_index", int)}
_COLOURS = {
    *("thread_state_uninterruptible", "thread_state_iowait", "thread_state_running", "thread_state_runnable"),
    *("thread_state_sleeping", "thread_state_unknown", "generic_work", "good", "bad", "terrible", "black", "grey"),
    *("white", "yellow", "olive", "rail_response", "rail_animation", "rail_idle", "rail_load", "startup"),
}
"""Some of the names that Chrome's colour scheme reserves."""


@dataclass(frozen=True)
class Arrow:
    """A flow, and the slices that it joins."""

    name: str
    category: str
    origin: Event
    end: Event


@dataclass
class ChromeTrace:
    """A trace that was found to be in order."""

    events: list[Event]
    about: dict[str, Any]
    tracks: dict[int, str] = field(default_factory=dict)
    """Names by number."""
    process_name: str = ""
    arrows: list[Arrow] = field(default_factory=list)

    def on(self, track: str, phase: str = "X") -> list[Event]:
        """The events of one kind on one track."""
        return [event for event in self.events if event["ph"] == phase and self.tracks[event["tid"]] == track]

    def counter(self, name: str) -> list[tuple[float, float]]:
        """Times and values of a counter."""
        found = [event for event in self.events if event["ph"] == "C" and event["name"] == name]
        return [(event["ts"], next(iter(event["args"].values()))) for event in found]


def read_trace(path: Path) -> ChromeTrace:
    """Read and check a file."""
    content = path.read_bytes()
    if path.suffix == ".gz":
        content = gzip.decompress(content)
    return check_trace(json.loads(content, parse_constant=_refuse))


def check_trace(trace: dict[str, Any]) -> ChromeTrace:
    """Check a trace; an AssertionError names the event at fault."""
    assert set(trace) == {"traceEvents", "displayTimeUnit", "otherData"}
    assert trace["displayTimeUnit"] == "ms"
    checked = ChromeTrace(events=[], about=trace["otherData"])
    stacks: dict[int, list[Event]] = {}
    starts: dict[int, tuple[Event, Event]] = {}
    last_us = 0.0
    for event in trace["traceEvents"]:
        if event["ph"] == "M":
            _check_metadata(event, checked)
            continue
        _check_fields(event)
        checked.events.append(event)
        assert event["tid"] in checked.tracks, f"on a track without a name: {event}"
        assert event["ts"] >= last_us, f"out of order: {event}"
        last_us = event["ts"]
        stack = stacks.setdefault(event["tid"], [])
        match event["ph"]:
            case "X" | "i":
                _push(stack, event)
            case "C":
                _check_counter(event)
            case "s":
                assert event["id"] not in starts, f"a second start: {event}"
                starts[event["id"]] = (event, _enclosing(stack, event))
            case "f":
                assert event["bp"] == "e", f"bound to the next slice: {event}"
                start, origin = starts.pop(event["id"])
                assert (start["name"], start["cat"]) == (event["name"], event["cat"])
                checked.arrows.append(Arrow(event["name"], event["cat"], origin, _enclosing(stack, event)))
    assert starts == {}, "arrows without an end"
    assert checked.process_name
    return checked


def end_of(event: Event) -> float:
    """Where a slice ends, in microseconds."""
    return round(event["ts"] + event.get("dur", 0.0), 3)


def _check_fields(event: Event) -> None:
    assert event["ph"] in _OWN, f"unknown kind: {event}"
    kinds = _COMMON | _OWN[event["ph"]]
    assert set(event) == set(kinds), f"fields missing or too many: {event}"
    for name, kind in kinds.items():
        value = event[name]
        assert type(value) in ((int, float) if kind is float else (kind,)), f"{name} of another type: {event}"
    assert event["name"]
    assert math.isfinite(event["ts"])
    if event["ph"] == "X":
        assert event["dur"] > 0, f"no arrow can be bound to it: {event}"
        assert event["cname"] in _COLOURS, f"chrome://tracing does not open that: {event}"
    if event["ph"] == "i":
        assert event["s"] in ("t", "p", "g")
    if "args" in event:
        assert None not in event["args"].values(), f"what is unknown is left out: {event}"


def _check_metadata(event: Event, checked: ChromeTrace) -> None:
    assert set(event) == {"name", "ph", "pid", "tid", "args"}
    key, kind = _METADATA[event["name"]]
    assert set(event["args"]) == {key}
    assert type(event["args"][key]) is kind
    if event["name"] == "thread_name":
        assert event["tid"] not in checked.tracks, f"named twice: {event}"
        checked.tracks[event["tid"]] = event["args"]["name"]
    elif event["name"] == "process_name":
        checked.process_name = event["args"]["name"]


def _check_counter(event: Event) -> None:
    assert event["args"]
    for value in event["args"].values():
        assert type(value) in (int, float), f"no number: {event}"
        assert math.isfinite(value)


def _push(stack: list[Event], event: Event) -> None:
    while stack and end_of(stack[-1]) <= event["ts"]:
        stack.pop()
    assert not stack, f"{event} begins before {stack[-1] if stack else None} is over"
    stack.append(event)


def _enclosing(stack: list[Event], event: Event) -> Event:
    assert stack, f"no slice there: {event}"
    top = stack[-1]
    assert top["ph"] == "X", f"bound to an instant: {event}"
    assert top["ts"] <= event["ts"] < end_of(top), f"outside of {top}: {event}"
    return top


def _refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")
