"""What the tests of the stream contract share: gates, planted failures, patience."""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from scheduler import Event, Stream, VirtualStream

PATIENCE_S = 30.0
"""How long a gate holds before a test that forgot to release it fails."""

NewStream = Callable[..., Stream]
Run = Callable[[Coroutine[Any, Any, Any]], Any]


class Gate(Protocol):
    """What holds a stream back at one place until a test releases it."""

    def release(self) -> None: ...


class BlockingWork:
    """The gate of streams that have a thread of their own to block."""

    def __init__(self) -> None:
        self._released = threading.Event()

    def release(self) -> None:
        self._released.set()

    def __call__(self) -> None:
        assert self._released.wait(PATIENCE_S), "nobody released the gate"


def hold(stream: Stream) -> Gate:
    """Let nothing that is launched on `stream` from now on run before the gate's release."""
    if isinstance(stream, VirtualStream):
        return stream.hold()
    gate = BlockingWork()
    stream.launch(gate)
    return gate


def fail(message: str = "planted") -> Callable[[], None]:
    def work() -> None:
        raise LookupError(message)

    return work


async def finished(event: Event) -> None:
    await event
