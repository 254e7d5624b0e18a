"""A guard against host reads: inside it, asking a tensor for its value is an error, on CPU tensors as well.

On a GPU such a read makes the host wait for everything enqueued so far. Two nets catch it. What Python asks of a tensor
(`.item()`, `if tensor:`, `.to("cpu")`, a boolean mask as an index) is seen as a call of torch's; what torch's own
functions ask while they run (a tensor as the bound of a slice, a count of non-zeros behind `torch.argwhere`) as an
operator. The guard holds for the thread that enters it.
"""

from __future__ import annotations

import linecache
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

_READING_CALLS = frozenset(
    (
        "item",
        "tolist",
        "cpu",
        "numpy",
        "__array__",
        "__int__",
        "__float__",
        "__complex__",
        "__bool__",
        "__index__",
        "__contains__",
        "__repr__",
        "__format__",
        "nonzero",
        "argwhere",
        "masked_select",
        "is_nonzero",
        "equal",
        "allclose",
        "unique",
        "unique_consecutive",
        "bincount",
    )
)
"""Names of functions and methods of torch."""
_READING_OPERATORS = frozenset(
    (
        "_local_scalar_dense",
        "item",
        "is_nonzero",
        "nonzero",
        "nonzero_numpy",
        "masked_select",
        "equal",
        "_unique2",
        "unique_dim",
        "unique_consecutive",
        "unique_dim_consecutive",
        "bincount",
    )
)
"""Names in torch.ops.aten: operators whose result, or its shape, depends on values that the host has to know."""
_OWN_FOLDERS = (str(Path(torch.__file__).parent), __file__)


class HostReadError(AssertionError):
    """A tensor's value was read by the host where that is forbidden."""


class _Guard:
    """Whether reading is forbidden at the moment, and how to say that it happened."""

    def __init__(self) -> None:
        self.allowed = 0

    def refuse(self, what: str) -> None:
        if not self.allowed:
            raise HostReadError(f"{what} reads a tensor's value on the host, at {_place()}")


class _Calls(TorchFunctionMode):
    """The net for what Python asks."""

    def __init__(self, guard: _Guard) -> None:
        super().__init__()
        self._guard = guard

    def __torch_function__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", str(func))
        if name in _READING_CALLS or (name == "where" and len(args) + len(kwargs) == 1):
            self._guard.refuse(name)
        elif name == "to" and _names_cpu(args[1:], kwargs):
            self._guard.refuse("to('cpu')")
        elif name in {"__getitem__", "__setitem__"} and _has_mask(args[1]):
            self._guard.refuse(f"{name} with a boolean mask")
        elif name in {"tensor", "as_tensor"} and _holds_tensor(args[0]):
            self._guard.refuse(f"{name} of a list with a tensor in it")
        elif name == "repeat_interleave" and _counts_unknown(args, kwargs):
            self._guard.refuse("repeat_interleave without output_size")
        return func(*args, **kwargs)


class _Operators(TorchDispatchMode):
    """The net for what torch's functions ask."""

    def __init__(self, guard: _Guard) -> None:
        super().__init__()
        self._guard = guard

    def __torch_dispatch__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = _name_of(func)
        if name in _READING_OPERATORS:
            self._guard.refuse(f"aten.{name}")
        elif name in {"index", "index_put", "index_put_", "_index_put_impl_"} and _has_mask(args[1]):
            self._guard.refuse(f"aten.{name} with a boolean mask")
        elif name in {"_to_copy", "copy_"} and _waits_for_device(name, args, kwargs):
            self._guard.refuse(f"aten.{name} from the device")
        if func in _INDIVISIBLE:
            return func(*args, **kwargs)
        # In inference mode, compound operators come undivided, and what is inside would pass the net.
        with self:
            result = func.decompose(*args, **kwargs)
        if result is NotImplemented:
            _INDIVISIBLE.add(func)
            return func(*args, **kwargs)
        return result


_INDIVISIBLE: set[Any] = set()
"""Operators that are known to have no others inside."""


@cache
def _name_of(operator: Any) -> str:
    name: str = operator.overloadpacket.__name__
    return name


class _Active(threading.local):
    """The guards in force in this thread."""

    def __init__(self) -> None:
        self.guards: list[_Guard] = []


_active = _Active()


@contextmanager
def forbid_host_reads() -> Iterator[None]:
    """Raise on every host read in this thread.

    Raises:
        HostReadError: names the operation and the source line.
    """
    guard = _Guard()
    _active.guards.append(guard)
    try:
        with _Calls(guard), _Operators(guard):
            yield
    finally:
        _active.guards.remove(guard)


@contextmanager
def allowed() -> Iterator[None]:
    """Let host reads pass inside the guards that are in force, for the one copy that a round makes."""
    guards = tuple(_active.guards)
    for guard in guards:
        guard.allowed += 1
    try:
        yield
    finally:
        for guard in guards:
            guard.allowed -= 1


def _names_cpu(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    device = kwargs.get("device", args[0] if args else None)
    if isinstance(device, torch.Tensor):
        return False
    return isinstance(device, (str, torch.device)) and torch.device(device).type == "cpu"


def _has_mask(index: object) -> bool:
    parts = index if isinstance(index, (tuple, list)) else (index,)
    return any(isinstance(part, torch.Tensor) and part.dtype in {torch.bool, torch.uint8} for part in parts)


def _holds_tensor(data: object) -> bool:
    return isinstance(data, (list, tuple)) and any(
        isinstance(part, torch.Tensor) or _holds_tensor(part) for part in data
    )


def _counts_unknown(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    repeats = kwargs.get("repeats", args[1] if len(args) > 1 else args[0])
    return isinstance(repeats, torch.Tensor) and kwargs.get("output_size") is None


def _waits_for_device(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    if name == "_to_copy":
        device = kwargs.get("device")
        return device is not None and torch.device(device).type == "cpu" and args[0].device.type != "cpu"
    non_blocking = args[2] if len(args) > 2 else kwargs.get("non_blocking", False)
    return args[0].device.type == "cpu" and args[1].device.type != "cpu" and not non_blocking


def _place() -> str:
    """Where the innermost line stands that is neither torch's nor this module's."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OWN_FOLDERS):
        frame = frame.f_back
    file, line = frame.f_code.co_filename, frame.f_lineno
    return f"{file}:{line}: {linecache.getline(file, line).strip()}"
