"""A ring of result slots in host memory: how a device's results reach the host without making either wait.

Owns which slot is free. Knows nothing of what results mean, or of streams: a copy goes to the stream in whose launch it
is made.
"""

from __future__ import annotations

import weakref

import torch

from scheduler.settings import check_integer
from scheduler.streams.cuda.copies import CopyDriver, DriverEvent

_ALIGNMENT_BYTES = 64
"""Slots begin at multiples of this, so that they can be read as any dtype, and two never share a cache line."""


class PinnedSlot:
    """One result on its way to the host, or there."""

    def __init__(self, index: int, host: torch.Tensor, event: DriverEvent) -> None:
        self._index = index
        self._host = host
        self._event = event
        self._released = False

    @property
    def index(self) -> int:
        """Which slot of the ring it is."""
        return self._index

    def arrived(self) -> bool:
        """Whether the copy is over; never blocks."""
        return self._event.query()

    def read(self) -> torch.Tensor:
        """The result: host memory, of the copied tensor's shape and dtype, good until the slot is released.

        Legal once an event behind the copy has passed.

        Raises:
            RuntimeError: if the copy is not over, or the slot was released.
        """
        if self._released:
            raise RuntimeError(f"slot {self._index} was released: it may hold a later result; read before releasing")
        if not self.arrived():
            raise RuntimeError(f"slot {self._index} has not arrived yet; wait for an event recorded behind its copy")
        return self._host

    def release(self) -> None:
        """Give the slot back to the ring; idempotent."""
        self._released = True

    @property
    def released(self) -> bool:
        """Whether its reader is done with it."""
        return self._released


class PinnedRing:
    """Slots handed out in turn, each again only when its last copy is over and its last reader done.

    A slot that nobody refers to any more counts as released: what was abandoned, say by a cancelled request, cannot
    be read. One stream at a time may copy.
    """

    def __init__(self, driver: CopyDriver, *, num_slots: int, num_bytes: int) -> None:
        """Allocate the slots, once and for all.

        Args:
            driver: whose copies: a `CudaDriver`, or a `HostCopyDriver` for tensors in host memory.
            num_slots: how many results may be on their way or unread at once.
            num_bytes: of the largest result.

        Raises:
            TypeError, ValueError: if a number is no integer or too small.
        """
        check_integer("num_slots", num_slots, low=1, advice="a slot for each result that may be unread at once")
        check_integer("num_bytes", num_bytes, low=1, advice="the size of the largest result")
        self._driver = driver
        self._num_bytes = num_bytes
        self._stride_bytes = -(-num_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        self._buffer = driver.host_buffer(num_slots * self._stride_bytes)
        self._events: list[DriverEvent | None] = [None] * num_slots
        self._slots: list[weakref.ref[PinnedSlot] | None] = [None] * num_slots
        self._num_copies = 0

    @property
    def num_slots(self) -> int:
        """How many results may be on their way or unread at once."""
        return len(self._slots)

    @property
    def num_copies(self) -> int:
        """How many copies were made so far."""
        return self._num_copies

    def copy(self, source: torch.Tensor) -> PinnedSlot:
        """Copy a tensor of the device into the next slot, behind the work enqueued so far; does not block.

        Called inside a launch, whose stream the copy goes to. The stream's next recorded event is behind it.

        Raises:
            ValueError: if the tensor is larger than a slot.
            RuntimeError: if the next slot is still being written or read: the ring has too few slots for the loop, or
                a reader forgot to release one.
        """
        num_bytes = source.numel() * source.element_size()
        if num_bytes > self._num_bytes:
            raise ValueError(
                f"a result of {num_bytes} bytes does not fit into a slot of {self._num_bytes} bytes; "
                "make num_bytes larger"
            )
        index = self._num_copies % self.num_slots
        self._check_free(index)
        start = index * self._stride_bytes
        host = self._buffer[start : start + num_bytes].view(source.dtype).view(source.shape)
        event = self._driver.copy_to_host(host, source)
        self._num_copies += 1
        slot = PinnedSlot(index, host, event)
        self._events[index] = event
        self._slots[index] = weakref.ref(slot)
        return slot

    def _check_free(self, index: int) -> None:
        reference, event = self._slots[index], self._events[index]
        slot = None if reference is None else reference()
        if slot is not None and not slot.released:
            raise RuntimeError(
                f"slot {index} of {self.num_slots} holds a result that its reader has not released; release it once it "
                "is read, or make num_slots larger"
            )
        if event is not None and not event.query():
            raise RuntimeError(
                f"slot {index} of {self.num_slots} is still being written: {self.num_slots} results are on their way; "
                "make num_slots larger, or await an earlier one first"
            )
