"""Why nothing can go: the chain from what the host waits for to the end of all waiting.

Owns the search and its wording. It is asked only when no stream can go.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scheduler.streams.virtual.machine import Queue
from scheduler.streams.virtual.operations import VirtualEvent, Wait


@dataclass(frozen=True, kw_only=True)
class Chain:
    """Who waits for whom."""

    text: str
    is_held: bool
    """Whether it ends at a hold, which somebody can still release."""


def chain_behind(queues: Sequence[Queue], start: VirtualEvent | Queue) -> Chain:
    """Follow the waits from an event that the host waits for, or from a stream that it closes."""
    queue: Queue | None
    if isinstance(start, VirtualEvent):
        links, queue = [f"the host waits for {start}"], _recorder(queues, start)
    else:
        links, queue = [f"the host closes {start.name!r}"], start
    visited: set[int] = set()
    while queue is not None:
        if queue.index in visited:
            return Chain(text="; ".join([*links, "and so on in a circle"]), is_held=False)
        visited.add(queue.index)
        head = queue.operations[0]
        if not isinstance(head, Wait):
            # Nothing else than a wait or a hold keeps a head from going.
            return Chain(text="; ".join([*links, f"{queue.name!r} is held until released"]), is_held=True)
        links.append(f"{queue.name!r} waits for {head.event}")
        queue = _recorder(queues, head.event)
    return Chain(text="; ".join(links) + ", which was never recorded", is_held=False)


def _recorder(queues: Sequence[Queue], event: VirtualEvent) -> Queue | None:
    return None if event.stream_index is None else queues[event.stream_index]
