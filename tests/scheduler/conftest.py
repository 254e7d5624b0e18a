"""Streams of every implementation, and loops of either kind to await their events on."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import pytest
import torch

from scheduler import AwaitMethod, CudaStream, Stream, ThreadStream, TorchCudaDriver, VirtualDevice, why_no_cuda
from tests.support.fake_cuda import FakeDriver
from tests.support.stream_contract import NewStream, Run, release_gates


@contextmanager
def threads() -> Iterator[NewStream]:
    yield ThreadStream


@contextmanager
def virtual(seed: int) -> Iterator[NewStream]:
    yield VirtualDevice(seed).stream


@contextmanager
def fake_cuda(awaiting: AwaitMethod) -> Iterator[NewStream]:
    driver = FakeDriver()
    yield partial(CudaStream, driver=driver, awaiting=awaiting)
    assert driver.faults == []


@contextmanager
def cuda(awaiting: AwaitMethod) -> Iterator[NewStream]:
    yield partial(CudaStream, driver=TorchCudaDriver(), awaiting=awaiting)


DEFERRING: dict[str, Callable[[], AbstractContextManager[NewStream]]] = {
    "threads": threads,
    **{f"virtual-{seed}": partial(virtual, seed) for seed in range(2)},
}
"""By name: what gives the streams of one device, where work itself waits in a queue."""

EAGER: dict[str, Callable[[], AbstractContextManager[NewStream]]] = {
    f"fake-cuda-{method.value}": partial(fake_cuda, method) for method in AwaitMethod
}
"""Likewise, where work is run at its launch, and what it enqueues waits."""
if why_no_cuda(torch.device("cuda")) is None:
    EAGER |= {f"cuda-{method.value}": partial(cuda, method) for method in AwaitMethod}

IMPLEMENTATIONS = DEFERRING | EAGER


def parameters(names: dict[str, Any]) -> list[Any]:
    """The names, those that need a GPU marked so."""
    return [pytest.param(name, marks=[pytest.mark.gpu] if name.startswith("cuda") else []) for name in names]


def streams_of(implementation: str) -> Iterator[NewStream]:
    made: list[Stream] = []
    with IMPLEMENTATIONS[implementation]() as make:

        def new(name: str = "main") -> Stream:
            made.append(make(name))
            return made[-1]

        yield new
        release_gates()
        for stream in made:
            stream.close()


@pytest.fixture(params=parameters(IMPLEMENTATIONS))
def new_stream(request: pytest.FixtureRequest) -> Iterator[NewStream]:
    """Makes streams of one device, of any kind."""
    yield from streams_of(request.param)


@pytest.fixture(params=parameters(DEFERRING))
def new_deferring_stream(request: pytest.FixtureRequest) -> Iterator[NewStream]:
    """Makes streams that run work when its turn comes."""
    yield from streams_of(request.param)


@pytest.fixture(params=parameters(EAGER))
def new_eager_stream(request: pytest.FixtureRequest) -> Iterator[NewStream]:
    """Makes streams that run work when it is launched."""
    yield from streams_of(request.param)


@pytest.fixture
def stream(new_stream: NewStream) -> Stream:
    return new_stream()


@pytest.fixture
def deferring_stream(new_deferring_stream: NewStream) -> Stream:
    return new_deferring_stream()


@pytest.fixture
def eager_stream(new_eager_stream: NewStream) -> Stream:
    return new_eager_stream()


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
