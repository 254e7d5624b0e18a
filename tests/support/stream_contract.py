"""What the tests of the stream contract share: gates, planted failures, patience."""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine
from typing import Any

from scheduler import Event, Stream

PATIENCE_S = 30.0
"""How long a gate stays shut before a test that forgot to open it fails."""

NewStream = Callable[..., Stream]
Run = Callable[[Coroutine[Any, Any, Any]], Any]


class Gate:
    """Work that a test lets through when it likes."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self.reached = threading.Event()

    def open(self) -> None:
        self._open.set()

    def __call__(self) -> None:
        self.reached.set()
        assert self._open.wait(PATIENCE_S), "nobody opened the gate"


def fail(message: str = "planted") -> Callable[[], None]:
    def work() -> None:
        raise LookupError(message)

    return work


async def finished(event: Event) -> None:
    await event
