"""What the tests of the stream contract share: gates, planted failures, patience.

Streams defer work itself, or run it at once and defer what it enqueues; the tests ask for `stream` where that makes no
difference, and for `deferring_stream` or `eager_stream` where it does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from scheduler import CudaStream, Event, Stream, VirtualStream
from tests.support.cuda_gate import CudaGate
from tests.support.fake_cuda import FakeDriver

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


_gates: list[Gate] = []


def hold(stream: Stream) -> Gate:
    """Let the stream get past nothing that is launched on it from now on before the gate's release."""
    gate: Gate
    if isinstance(stream, VirtualStream):
        gate = stream.hold()
    elif isinstance(stream, CudaStream):
        handle = stream._handle
        gate = stream.driver.hold(handle) if isinstance(stream.driver, FakeDriver) else CudaGate(handle)
    else:
        gate = BlockingWork()
        stream.launch(gate)
    _gates.append(gate)
    return gate


def release_gates() -> None:
    """Release what a failed test left closed; releasing twice is once."""
    while _gates:
        _gates.pop().release()


def fail(message: str = "planted") -> Callable[[], None]:
    def work() -> None:
        raise LookupError(message)

    return work


async def finished(event: Event) -> None:
    await event
