"""A watch for operations that make the host wait for a device, at work on the CPU too."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

READING = ("_local_scalar_dense", "nonzero", "nonzero_static", "masked_select", "unique", "equal", "is_nonzero", "item")
COPYING = ("_to_copy", "copy_")


class HostReadError(Exception):
    """Something that a stream of device work must not do."""


class NoHostReads(TorchDispatchMode):
    """Raises on operations that read a value on the host, index by a boolean mask, or change the device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        if name.startswith(READING):
            raise HostReadError(f"{func} reads a device value on the host")
        if name in {"index", "index_put_", "index_put"}:
            indices = [index for index in args[1] if index is not None]
            if any(index.dtype in {torch.bool, torch.uint8} for index in indices):
                raise HostReadError(f"{func} by a boolean mask counts its hits on the host")
        result = func(*args, **kwargs)
        if name in COPYING:
            source = args[1] if name == "copy_" else args[0]
            if source.device != result.device:
                raise HostReadError(f"{func} copies from {source.device} to {result.device}")
        return result
