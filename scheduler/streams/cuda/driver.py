"""The seam between the streams and CUDA: every call that they make to `torch.cuda`, and nothing else.

Owns `CudaDriver`, the calls as a protocol, and `TorchCudaDriver`, which makes them. Importing it needs no GPU and
initialises none. Knows nothing of launches, errors that travel, or asyncio.

What torch does behind these calls, and the streams rely on (torch/csrc/cuda/Event.cpp, torch/cuda/streams.py):

- `Event.synchronize` and `Stream.synchronize` let go of the interpreter's lock while they block, `Event.query` does not
  and takes about a microsecond.
- An event that was never recorded counts as passed for `query`, `synchronize` and `wait`; so `CudaStream` makes events
  in `record` alone.
- torch hands out streams from a fixed pool of 32 a priority, in turn: the 33rd shares the first one's queue. Work on
  both stays right, and no longer overlaps.
"""

from __future__ import annotations

import re
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import torch

from scheduler.errors import DeviceUnavailableError
from scheduler.streams.cuda.copies import CopyDriver, DriverEvent

StreamHandle: TypeAlias = Any
"""A stream of a driver; only that driver looks inside."""
EventHandle: TypeAlias = Any
"""An event of a driver; only that driver looks inside."""

_cuda: Any = torch.cuda
"""Most of its functions carry no annotations."""
_NAME = re.compile(r"cuda(:(0|[1-9][0-9]?))?")
"""torch wraps larger numbers round: to it, `cuda:256` is `cuda:0`."""
_RUN_ON_CPU = "or run with device='cpu'"


@dataclass(frozen=True, kw_only=True)
class DeviceProperties:
    """What a GPU is."""

    name: str
    uuid: str
    """As NVML writes it, beginning with "GPU-" (or "MIG-" for a slice of one)."""
    capability: tuple[int, int]
    """Compute capability, major and minor."""
    num_multiprocessors: int
    total_bytes: int


@dataclass(frozen=True, kw_only=True)
class DeviceMemory:
    """Memory of a GPU at this moment, over all processes."""

    free_bytes: int
    total_bytes: int


class CudaDriver(CopyDriver, Protocol):
    """Streams, events and copies of one GPU.

    Calls that enqueue return at once. What goes wrong on the device shows as a `RuntimeError` of some later call.
    """

    @property
    def device(self) -> torch.device:
        """The GPU, with its index."""
        ...

    def properties(self) -> DeviceProperties:
        """Name, identity and size."""
        ...

    def memory(self) -> DeviceMemory:
        """What is free now."""
        ...

    def priority_range(self) -> tuple[int, int]:
        """The least and the most urgent priority of a stream; a smaller number is more urgent."""
        ...

    def new_stream(self, priority: int) -> StreamHandle:
        """A stream that does not wait for the default stream."""
        ...

    def new_event(self, *, timing: bool, blocking: bool) -> EventHandle:
        """An event that is not recorded yet.

        Args:
            timing: whether it notes the time at which it passes.
            blocking: whether `synchronize` sleeps until an interrupt instead of spinning on a processor core.
        """
        ...

    def record(self, event: EventHandle, stream: StreamHandle) -> None:
        """Put `event` behind everything enqueued on `stream`."""
        ...

    def wait(self, stream: StreamHandle, event: EventHandle) -> None:
        """Hold back what is enqueued on `stream` from now on until `event`."""
        ...

    def query(self, event: EventHandle) -> bool:
        """Whether `event` has passed."""
        ...

    def synchronize(self, event: EventHandle) -> None:
        """Block this thread, not the interpreter, until `event` has passed."""
        ...

    def synchronize_stream(self, stream: StreamHandle) -> None:
        """Block this thread, not the interpreter, until all that is enqueued on `stream` is over."""
        ...

    def elapsed_ms(self, start: EventHandle, end: EventHandle) -> float:
        """Time on the device between two events with timing, both passed."""
        ...

    def under(self, stream: StreamHandle) -> AbstractContextManager[object]:
        """A context in which this thread's operations are enqueued on `stream`."""
        ...

    def sleep(self, num_cycles: int) -> None:
        """Enqueue a kernel that spins for so many clock cycles on the current stream."""
        ...


def why_no_cuda(device: torch.device) -> str | None:
    """Why `device` cannot be used, with a way out; None if it can."""
    if device.type != "cuda":
        return _not_cuda(device)
    if torch.version.cuda is None:
        return (
            f"torch {torch.__version__} was built without CUDA; install a build that has it "
            f"(`pip install torch`, with the index that https://pytorch.org names for your driver), {_RUN_ON_CPU}"
        )
    if not _cuda.is_available():
        return (
            f"torch {torch.__version__} finds no usable GPU: is there one, does `nvidia-smi` list it, does "
            f"CUDA_VISIBLE_DEVICES hide it, is its driver recent enough for CUDA {torch.version.cuda}? "
            f"Mend that, {_RUN_ON_CPU}"
        )
    num_devices = _cuda.device_count()
    if device.index is not None and device.index >= num_devices:
        return f"there is no {device}: {num_devices} visible, counted from 0; name one of them, {_RUN_ON_CPU}"
    return None


def _not_cuda(device: torch.device | str) -> str:
    return f"{device} is no CUDA device; name one such as 'cuda' or 'cuda:0', {_RUN_ON_CPU}"


class TorchCudaDriver:
    """The calls as torch makes them."""

    def __init__(self, device: torch.device | str = "cuda") -> None:
        """Take a GPU.

        Args:
            device: which one; without an index, torch's current one.

        Raises:
            DeviceUnavailableError: if there is none; the message says why, and what to do.
        """
        if isinstance(device, str) and not _NAME.fullmatch(device):
            raise DeviceUnavailableError(_not_cuda(device))
        wanted = torch.device(device)
        reason = why_no_cuda(wanted)
        if reason is not None:
            raise DeviceUnavailableError(reason)
        index = _cuda.current_device() if wanted.index is None else wanted.index
        self._device = torch.device("cuda", index)

    @property
    def device(self) -> torch.device:
        """The GPU, with its index."""
        return self._device

    def properties(self) -> DeviceProperties:
        """Name, identity and size."""
        found = _cuda.get_device_properties(self._device)
        uuid = str(found.uuid)
        return DeviceProperties(
            name=found.name,
            uuid=uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}",
            capability=(found.major, found.minor),
            num_multiprocessors=found.multi_processor_count,
            total_bytes=found.total_memory,
        )

    def memory(self) -> DeviceMemory:
        """What is free now."""
        free_bytes, total_bytes = _cuda.mem_get_info(self._device)
        return DeviceMemory(free_bytes=free_bytes, total_bytes=total_bytes)

    def priority_range(self) -> tuple[int, int]:
        """The least and the most urgent priority of a stream; a smaller number is more urgent."""
        least, most = _cuda.Stream.priority_range()
        return int(least), int(most)

    def new_stream(self, priority: int) -> StreamHandle:
        """A stream of torch's pool, which does not wait for the default stream."""
        return _cuda.Stream(self._device, priority=priority)

    def new_event(self, *, timing: bool, blocking: bool) -> EventHandle:
        """An event that is not recorded yet."""
        return _cuda.Event(enable_timing=timing, blocking=blocking)

    def record(self, event: EventHandle, stream: StreamHandle) -> None:
        """Put `event` behind everything enqueued on `stream`."""
        event.record(stream)

    def wait(self, stream: StreamHandle, event: EventHandle) -> None:
        """Hold back what is enqueued on `stream` from now on until `event`."""
        stream.wait_event(event)

    def query(self, event: EventHandle) -> bool:
        """Whether `event` has passed."""
        return bool(event.query())

    def synchronize(self, event: EventHandle) -> None:
        """Block this thread, not the interpreter, until `event` has passed."""
        event.synchronize()

    def synchronize_stream(self, stream: StreamHandle) -> None:
        """Block this thread, not the interpreter, until all that is enqueued on `stream` is over."""
        stream.synchronize()

    def elapsed_ms(self, start: EventHandle, end: EventHandle) -> float:
        """Time on the device between two events with timing, both passed."""
        return float(start.elapsed_time(end))

    def under(self, stream: StreamHandle) -> AbstractContextManager[object]:
        """A context in which this thread's operations are enqueued on `stream`."""
        context: AbstractContextManager[object] = _cuda.stream(stream)
        return context

    def sleep(self, num_cycles: int) -> None:
        """Enqueue a kernel that spins for so many clock cycles on the current stream."""
        _cuda._sleep(num_cycles)

    def host_buffer(self, num_bytes: int) -> torch.Tensor:
        """Page-locked host memory, which the device writes without the host's help; uint8, shape (num_bytes,)."""
        return torch.zeros(num_bytes, dtype=torch.uint8, pin_memory=True)

    def copy_to_host(self, host: torch.Tensor, source: torch.Tensor) -> DriverEvent:
        """Enqueue a copy on the current stream; see `CopyDriver`."""
        current = _cuda.current_stream(self._device)
        if current == _cuda.default_stream(self._device):
            raise RuntimeError("a copy outside a launch would not be ordered behind any work; copy inside a launch")
        host.copy_(source, non_blocking=True)
        event: DriverEvent = self.new_event(timing=False, blocking=False)
        self.record(event, current)
        return event
