"""Copies to host memory: what a ring of result slots needs from a device.

Owns the protocol and its plain form for tensors that live in host memory already. Knows nothing of rings or streams.
"""

from __future__ import annotations

from typing import Protocol

import torch


class DriverEvent(Protocol):
    """A point behind a copy."""

    def query(self) -> bool:
        """Whether the point has been passed."""
        ...


class CopyDriver(Protocol):
    """Host memory that a device can write, and the copies into it."""

    def host_buffer(self, num_bytes: int) -> torch.Tensor:
        """Zeroed host memory that lasts; uint8, shape (num_bytes,)."""
        ...

    def copy_to_host(self, host: torch.Tensor, source: torch.Tensor) -> DriverEvent:
        """Copy `source` into `host`, of the same shape and dtype, behind the work enqueued so far; does not block.

        Called inside a launch, whose stream it goes to.

        Raises:
            RuntimeError: if called outside a launch, on devices where that makes a difference.
        """
        ...


class _Passed:
    """The point behind a copy that is over when the call returns."""

    def query(self) -> bool:
        """Always."""
        return True


_PASSED = _Passed()


class HostCopyDriver:
    """Copies between tensors in host memory, for streams whose launches run when their turn comes."""

    def host_buffer(self, num_bytes: int) -> torch.Tensor:
        """Ordinary host memory; uint8, shape (num_bytes,)."""
        return torch.zeros(num_bytes, dtype=torch.uint8)

    def copy_to_host(self, host: torch.Tensor, source: torch.Tensor) -> DriverEvent:
        """Copy at once."""
        host.copy_(source)
        return _PASSED
