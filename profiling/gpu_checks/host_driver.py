"""A stand-in for a GPU's driver: work is done by the host at once, and counts as over when a modelled clock says so.

Owns that clock. A stream's clock runs on by the time that the host took for the work of each launch, and by the sleeps
in it; events pass and copies arrive no sooner. So a program for a GPU runs as it is on a machine that has none,
lateness included. Two streams share the host, so nothing is ever gained by overlap. Knows nothing of what runs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from scheduler import DeviceMemory, DeviceProperties

CYCLES_PER_S = 1e9
_RUBBISH = 0xA5
"""What every byte of a host buffer holds while a copy into it is on its way."""


class HostStream:
    """When a stream has done what it was given."""

    def __init__(self) -> None:
        self.free_at_s = 0.0
        self.running_since_s: float | None = None

    def end_s(self) -> float:
        """When all that was enqueued so far is over."""
        now_s = time.perf_counter()
        if self.running_since_s is not None:
            return self.free_at_s + now_s - self.running_since_s
        return max(self.free_at_s, now_s)


class HostEvent:
    """A point of a stream, recorded or not."""

    def __init__(self) -> None:
        self.passes_at_s = 0.0

    def query(self) -> bool:
        """Whether the point is passed; one that was never recorded is, as with CUDA."""
        return time.perf_counter() >= self.passes_at_s


class Arrivals:
    """Copies on their way. Each changes its destination when its time has come, in order, whoever asks first."""

    def __init__(self) -> None:
        """None yet."""
        self._lock = threading.Lock()
        self._on_their_way: list[tuple[float, torch.Tensor, torch.Tensor]] = []

    def add(self, passes_at_s: float, host: torch.Tensor, value: torch.Tensor) -> None:
        """Until then `host` holds rubbish."""
        self.deliver()
        with self._lock:
            host.reshape(-1).view(torch.uint8).fill_(_RUBBISH)
            self._on_their_way.append((passes_at_s, host, value))

    def deliver(self) -> None:
        """Let arrive what is due."""
        now_s = time.perf_counter()
        with self._lock, torch.inference_mode():
            due = sorted((one for one in self._on_their_way if one[0] <= now_s), key=lambda one: one[0])
            self._on_their_way = [one for one in self._on_their_way if one[0] > now_s]
            for _, host, value in due:
                host.copy_(value)


class _Arrival(HostEvent):
    """The point behind a copy."""

    def __init__(self, arrivals: Arrivals) -> None:
        super().__init__()
        self._arrivals = arrivals

    def query(self) -> bool:
        is_passed = super().query()
        self._arrivals.deliver()
        return is_passed


class HostDriver:
    """A `scheduler.CudaDriver` whose device is the CPU."""

    def __init__(self) -> None:
        """Begin without streams."""
        self._current = threading.local()
        self._arrivals = Arrivals()

    @property
    def device(self) -> torch.device:
        """The CPU."""
        return torch.device("cpu")

    def properties(self) -> DeviceProperties:
        """Those of no GPU."""
        return DeviceProperties(
            name="CPU in place of a GPU", uuid="", capability=(0, 0), num_multiprocessors=0, total_bytes=0
        )

    def memory(self) -> DeviceMemory:
        """More than toy models need."""
        return DeviceMemory(free_bytes=1 << 32, total_bytes=1 << 32)

    def priority_range(self) -> tuple[int, int]:
        """As on current GPUs; it changes nothing."""
        return 0, -5

    def new_stream(self, priority: int) -> HostStream:
        """A stream that has nothing to do."""
        return HostStream()

    def new_event(self, *, timing: bool, blocking: bool) -> HostEvent:
        """An event that is not recorded yet."""
        return HostEvent()

    def record(self, event: HostEvent, stream: HostStream) -> None:
        """Let it pass when the stream's clock gets there."""
        event.passes_at_s = stream.end_s()

    def wait(self, stream: HostStream, event: HostEvent) -> None:
        """Set the stream's clock no earlier than the event."""
        stream.free_at_s = max(stream.free_at_s, event.passes_at_s)

    def query(self, event: HostEvent) -> bool:
        """Whether its time has come."""
        return event.query()

    def synchronize(self, event: HostEvent) -> None:
        """Sleep until its time has come."""
        while not event.query():
            time.sleep(max(0.0, event.passes_at_s - time.perf_counter()))

    def synchronize_stream(self, stream: HostStream) -> None:
        """Sleep until the stream's time has come."""
        time.sleep(max(0.0, stream.free_at_s - time.perf_counter()))

    def elapsed_ms(self, start: HostEvent, end: HostEvent) -> float:
        """Time between two recorded points."""
        return (end.passes_at_s - start.passes_at_s) * 1e3

    @contextmanager
    def under(self, stream: HostStream) -> Iterator[None]:
        """Let the stream's clock run on by what the host does meanwhile."""
        before: HostStream | None = getattr(self._current, "stream", None)
        started_s = time.perf_counter()
        stream.free_at_s = max(stream.free_at_s, started_s)
        stream.running_since_s = started_s
        self._current.stream = stream
        try:
            yield
        finally:
            stream.free_at_s = stream.end_s()
            stream.running_since_s = None
            self._current.stream = before

    def sleep(self, num_cycles: int) -> None:
        """Set the current stream's clock forward; the host goes on at once."""
        self._current_stream("sleep").free_at_s += num_cycles / CYCLES_PER_S

    def host_buffer(self, num_bytes: int) -> torch.Tensor:
        """Ordinary memory; uint8, shape (num_bytes,)."""
        return torch.zeros(num_bytes, dtype=torch.uint8)

    def copy_to_host(self, host: torch.Tensor, source: torch.Tensor) -> HostEvent:
        """Copy when the current stream's clock gets there; until then the destination holds rubbish."""
        stream = self._current_stream("copy_to_host")
        event = _Arrival(self._arrivals)
        self.record(event, stream)
        self._arrivals.add(event.passes_at_s, host, source.clone())
        return event

    def _current_stream(self, what: str) -> HostStream:
        stream: HostStream | None = getattr(self._current, "stream", None)
        if stream is None:
            raise RuntimeError(f"{what} outside a launch would not be ordered behind any work; call it inside one")
        return stream
