"""An in-memory CUDA: a driver whose work is done when it is enqueued, and is over when a seeded clock says so.

Kernels are ordinary operations on CPU tensors, so numbers are right; what lies behind them in a stream passes later, in
any order that events allow. Copies to the host arrive when they pass, and until then their destination holds rubbish,
so a result that is read too early is wrong. Misuse that CUDA or torch would let pass, or punish by hanging, is a
`FakeCudaError`, which is also kept in `faults` in case somebody swallows it.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from scheduler.streams.cuda import DeviceMemory, DeviceProperties

PATIENCE_S = 30.0
RUBBISH = 0xA5
"""What every byte of a host buffer holds while a copy into it is on its way."""
_BURSTS = ((0,), (0, 0, 0, 1), (0, 1, 2, 5), (1000,))
"""By the device's zeal: how many operations may pass at a call of the host."""
_CALLS_PER_ZEAL = 20
LEAST_URGENT, MOST_URGENT = 0, -5


class FakeCudaError(AssertionError):
    """The driver was used in a way that a GPU would not forgive."""


@dataclass(eq=False)
class FakeStream:
    """A queue of operations."""

    driver: FakeDriver
    priority: int
    operations: deque[Operation] = field(default_factory=deque)
    destroyed: bool = False


@dataclass(eq=False)
class Operation:
    """One thing in a queue: can go when `ready` says so, and then takes effect."""

    ready: Callable[[], bool] = lambda: True
    effect: Callable[[], None] = lambda: None


@dataclass(eq=False)
class Recording:
    """One recording of an event; recording the event again makes another."""

    passed: bool = False
    passed_ms: float = 0.0


class FakeEvent:
    """An event, recorded or not."""

    def __init__(self, driver: FakeDriver, *, timing: bool) -> None:
        self.driver = driver
        self.timing = timing
        self.recording: Recording | None = None

    def query(self) -> bool:
        return self.driver.query(self)


class FakeHold:
    """Keeps a stream from going on until its release."""

    def __init__(self, driver: FakeDriver) -> None:
        self._driver = driver
        self.released = False

    def release(self) -> None:
        with self._driver.changing():
            self.released = True


class FakeDriver:
    """A device with a queue for each stream. Any thread may call it."""

    def __init__(self, seed: int = 0, *, by_hand: bool = False) -> None:
        """Begin with no streams.

        Args:
            seed: of the chance by which operations pass while the host makes other calls.
            by_hand: whether nothing passes by chance, only by `advance` and by waiting.
        """
        self._draw = random.Random(seed)
        self._burst = self._draw.choice(_BURSTS)
        self._by_hand = by_hand
        self._changed = threading.Condition(threading.RLock())
        self._streams: list[FakeStream] = []
        self._current = threading.local()
        self._arriving: dict[tuple[int, int], Recording] = {}
        self._failure: str | None = None
        self.now_ms = 0.0
        self.faults: list[FakeCudaError] = []
        self.calls: list[str] = []

    # What the project calls.

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    def properties(self) -> DeviceProperties:
        return DeviceProperties(
            name="fake", uuid="GPU-fake", capability=(9, 0), num_multiprocessors=1, total_bytes=1 << 30
        )

    def memory(self) -> DeviceMemory:
        return DeviceMemory(free_bytes=1 << 29, total_bytes=1 << 30)

    def priority_range(self) -> tuple[int, int]:
        return LEAST_URGENT, MOST_URGENT

    def new_stream(self, priority: int) -> FakeStream:
        stream = FakeStream(self, priority)
        self._streams.append(stream)
        return stream

    def new_event(self, *, timing: bool, blocking: bool) -> FakeEvent:
        return FakeEvent(self, timing=timing)

    def record(self, event: FakeEvent, stream: FakeStream) -> None:
        with self._call("record"):
            self._own(event)
            self._usable(stream)
            event.recording = recording = Recording()
            stream.operations.append(Operation(effect=lambda: self._pass(recording)))

    def wait(self, stream: FakeStream, event: FakeEvent) -> None:
        with self._call("wait"):
            self._usable(stream)
            recording = self._recorded(event, "waited for")
            stream.operations.append(Operation(ready=lambda: recording.passed))

    def query(self, event: FakeEvent) -> bool:
        with self._call("query"):
            return self._recorded(event, "queried").passed

    def synchronize(self, event: FakeEvent) -> None:
        with self._call("synchronize"):
            recording = self._recorded(event, "synchronized with")
            self._run_until(lambda: recording.passed)

    def synchronize_stream(self, stream: FakeStream) -> None:
        with self._call("synchronize_stream"):
            self._usable(stream)
            self._run_until(lambda: not stream.operations)

    def elapsed_ms(self, start: FakeEvent, end: FakeEvent) -> float:
        with self._call("elapsed_ms"):
            times_ms = []
            for event in (start, end):
                recording = self._recorded(event, "timed")
                if not event.timing:
                    raise self._fault("the time of an event was asked for that was made without timing")
                if not recording.passed:
                    raise self._fault("the time of an event was asked for that has not passed")
                times_ms.append(recording.passed_ms)
            return times_ms[1] - times_ms[0]

    @contextmanager
    def under(self, stream: FakeStream) -> Iterator[None]:
        with self._call("under"):
            self._usable(stream)
        before = self.current
        self._current.stream = stream
        try:
            yield
        finally:
            self._current.stream = before
            with self._call("kernels"):
                stream.operations.append(Operation())

    def sleep(self, num_cycles: int) -> None:
        with self._call("sleep"):
            for _ in range(num_cycles // 1_000_000):
                self._current_stream("sleep").operations.append(Operation())

    def host_buffer(self, num_bytes: int) -> torch.Tensor:
        return torch.zeros(num_bytes, dtype=torch.uint8)

    def copy_to_host(self, host: torch.Tensor, source: torch.Tensor) -> FakeEvent:
        with self._call("copy_to_host"):
            stream = self._current_stream("copy_to_host")
            if host.shape != source.shape or host.dtype != source.dtype:
                raise self._fault(f"copy of {source.shape} {source.dtype} into {host.shape} {host.dtype}")
            place = (host.data_ptr(), host.data_ptr() + host.numel() * host.element_size())
            for (start, end), recording in self._arriving.items():
                if start < place[1] and place[0] < end and not recording.passed:
                    raise self._fault("a host buffer is written again before the copy into it has passed")
            event = self.new_event(timing=False, blocking=False)
            value = source.clone()
            host.reshape(-1).view(torch.uint8).fill_(RUBBISH)
            stream.operations.append(Operation(effect=lambda: self._arrive(host, value)))
            self.record(event, stream)
            assert event.recording is not None
            self._arriving[place] = event.recording
            return event

    # What tests call.

    def hold(self, stream: FakeStream) -> FakeHold:
        """Let nothing that is enqueued on `stream` from now on pass before the hold's release."""
        hold = FakeHold(self)
        with self._changed:
            stream.operations.append(Operation(ready=lambda: hold.released))
        return hold

    def advance(self, num_operations: int) -> int:
        """Let so many operations pass; returns how many could."""
        with self.changing():
            for number in range(num_operations):
                if not self._step():
                    return number
        return num_operations

    def fail(self, message: str) -> None:
        """Let every call from now on fail, as all do once a kernel did wrong."""
        with self.changing():
            self._failure = message

    @property
    def current(self) -> FakeStream | None:
        """The stream that this thread enqueues on; None is the default stream."""
        stream: FakeStream | None = getattr(self._current, "stream", None)
        return stream

    def destroy(self, stream: FakeStream) -> None:
        """Make further use of `stream` a fault."""
        stream.destroyed = True

    @contextmanager
    def changing(self) -> Iterator[None]:
        """A change that may let operations pass that others wait for."""
        with self._changed:
            yield
            self._changed.notify_all()

    # How it works.

    @contextmanager
    def _call(self, name: str) -> Iterator[None]:
        """A call of the host, in which time passes by chance."""
        with self.changing():
            self._check_alive()
            self.calls.append(name)
            if not self._by_hand:
                self._pass_by_chance()
            yield

    def _pass_by_chance(self) -> None:
        # Drawn anew at each call, the device would keep pace with the host and rarely fall behind or catch up.
        if self._draw.random() < 1 / _CALLS_PER_ZEAL:
            self._burst = self._draw.choice(_BURSTS)
        for _ in range(self._draw.choice(self._burst)):
            if not self._step():
                break

    def _step(self) -> bool:
        ready = [stream for stream in self._streams if stream.operations and stream.operations[0].ready()]
        if not ready:
            return False
        stream = self._draw.choice(ready)
        self.now_ms += self._draw.random()
        stream.operations.popleft().effect()
        return True

    def _run_until(self, over: Callable[[], bool]) -> None:
        """Block as a driver's call does: others may make calls meanwhile."""
        while not over():
            self._check_alive()
            if self._step():
                self._changed.notify_all()
            elif not self._changed.wait(PATIENCE_S):
                raise self._fault("the host waits for what never passes: a hold that nobody releases?")

    def _arrive(self, host: torch.Tensor, value: torch.Tensor) -> None:
        with torch.inference_mode():  # whatever call of the host this happens to be in
            host.copy_(value)

    def _pass(self, recording: Recording) -> None:
        recording.passed = True
        recording.passed_ms = self.now_ms

    def _check_alive(self) -> None:
        if self._failure is not None:
            raise RuntimeError(self._failure)

    def _recorded(self, event: FakeEvent, what: str) -> Recording:
        self._own(event)
        if event.recording is None:
            raise self._fault(f"an event is {what} before it was recorded")
        return event.recording

    def _own(self, event: FakeEvent) -> None:
        if event.driver is not self:
            raise self._fault("an event of another device is used")

    def _usable(self, stream: FakeStream) -> None:
        if stream.driver is not self:
            raise self._fault("a stream of another device is used")
        if stream.destroyed:
            raise self._fault("a destroyed stream is used")

    def _current_stream(self, what: str) -> FakeStream:
        if self.current is None:
            raise self._fault(f"{what} on the default stream, which nothing orders")
        return self.current

    def _fault(self, message: str) -> FakeCudaError:
        fault = FakeCudaError(message)
        self.faults.append(fault)
        return fault
