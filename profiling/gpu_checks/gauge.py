"""What checks ask of a device beside its streams: memory in use, and a guard against host reads.

Owns both for a GPU and for the CPU in its place. Knows nothing of checks.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

_cuda: Any = torch.cuda
"""Most of its functions carry no annotations."""
_READS = frozenset({"_local_scalar_dense", "_unique2", "equal", "is_nonzero", "masked_select", "nonzero", "unique_dim"})
"""Operations that need a device value on the host, or whose shape follows from one."""
_READING_METHODS = frozenset(
    {"__bool__", "__float__", "__index__", "__int__", "cpu", "item", "numpy", "tolist", *_READS}
)
"""Of a tensor in host memory some never get to be operations."""


class HostReadRefused(RuntimeError):
    """A launch looked at a value of the device."""


@dataclass(frozen=True, kw_only=True)
class MemoryInUse:
    """Device memory of this process."""

    allocated_bytes: int
    """In tensors that live."""
    reserved_bytes: int
    """Taken from the device, free for tensors to come."""


class DeviceGauge(Protocol):
    """The device, looked at from the host."""

    def memory_in_use(self) -> MemoryInUse:
        """Now, with garbage collected; everything enqueued must be over."""
        ...

    def synchronize(self) -> None:
        """Block until all streams of the device are idle."""
        ...

    def forbid_host_reads(self) -> AbstractContextManager[object]:
        """A context in which this thread may enqueue work, but not wait for a value of the device."""
        ...


class _OperationGuard(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's, without annotations
    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        name = func.__name__.partition(".")[0]
        # A mask says by its values how long the result is.
        if name == "index" and any(index is not None and index.dtype is torch.bool for index in args[1]):
            name = "nonzero"
        _refuse(name, _READS)
        return func(*args, **(kwargs or {}))


class _MethodGuard(TorchFunctionMode):
    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        _refuse(getattr(func, "__name__", ""), _READING_METHODS)
        return func(*args, **(kwargs or {}))


def _refuse(name: str, refused: frozenset[str]) -> None:
    if name in refused:
        raise HostReadRefused(f"a launch called {name}, which waits for the device")


@contextmanager
def _guarded() -> Iterator[None]:
    with _MethodGuard(), _OperationGuard():  # type: ignore[no-untyped-call]  # torch's, as above
        yield


class CudaGauge:
    """Of a GPU."""

    def __init__(self, device: torch.device) -> None:
        """Look at this device."""
        self._device = device

    def memory_in_use(self) -> MemoryInUse:
        """As torch's allocator counts it."""
        gc.collect()
        return MemoryInUse(
            allocated_bytes=_cuda.memory_allocated(self._device), reserved_bytes=_cuda.memory_reserved(self._device)
        )

    def synchronize(self) -> None:
        """Block until all streams of the device are idle."""
        _cuda.synchronize(self._device)

    @contextmanager
    def forbid_host_reads(self) -> Iterator[None]:
        """Both what torch notices when it synchronises, and what the operations' names give away."""
        before = _cuda.get_sync_debug_mode()
        _cuda.set_sync_debug_mode("error")
        try:
            with _guarded():
                yield
        finally:
            _cuda.set_sync_debug_mode(before)


class HostGauge:
    """Of the CPU in place of a GPU."""

    def memory_in_use(self) -> MemoryInUse:
        """Bytes of all tensors that Python knows of."""
        gc.collect()
        sizes_bytes: dict[int, int] = {}
        for candidate in gc.get_objects():
            if type(candidate) is torch.Tensor and candidate.device.type == "cpu":
                storage = candidate.untyped_storage()
                sizes_bytes[storage.data_ptr()] = storage.nbytes()
        num_bytes = sum(sizes_bytes.values())
        return MemoryInUse(allocated_bytes=num_bytes, reserved_bytes=num_bytes)

    def synchronize(self) -> None:
        """The host's own work is over when it returns."""

    def forbid_host_reads(self) -> AbstractContextManager[object]:
        """What the operations' names give away."""
        return _guarded()
