"""Streams of every implementation, and loops of either kind to await their events on."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from scheduler import Stream, ThreadStream, VirtualDevice
from tests.support.stream_contract import NewStream, Run

IMPLEMENTATIONS: dict[str, Callable[[], NewStream]] = {
    "threads": lambda: ThreadStream,
    **{f"virtual-{seed}": lambda seed=seed: VirtualDevice(seed).stream for seed in range(2)},
}
"""By name: what gives the streams of one device."""


@pytest.fixture(params=IMPLEMENTATIONS)
def new_stream(request: pytest.FixtureRequest) -> Iterator[NewStream]:
    made: list[Stream] = []
    make = IMPLEMENTATIONS[request.param]()

    def new(name: str = "main") -> Stream:
        made.append(make(name))
        return made[-1]

    yield new
    for stream in made:
        stream.close()


@pytest.fixture
def stream(new_stream: NewStream) -> Stream:
    return new_stream()


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Runs a coroutine on a fresh loop of either kind, in debug mode, and lets no stray error pass."""
    factory = None
    if request.param == "uvloop":
        factory = pytest.importorskip("uvloop").new_event_loop

    def run(main: Coroutine[Any, Any, Any]) -> Any:
        stray: list[dict[str, Any]] = []

        async def watched() -> Any:
            asyncio.get_running_loop().set_exception_handler(lambda loop, context: stray.append(context))
            return await main

        with asyncio.Runner(loop_factory=factory, debug=True) as runner:
            result = runner.run(watched())
        gc.collect()
        assert not stray
        return result

    return run
