"""Rounds whose tokens and verdicts stay on the device.

Owns the choice of the two halves that go together. Knows nothing of streams.
"""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.chain import Chain
from scheduler.gamma import Leads
from scheduler.lane import Lane
from scheduler.on_device.chain import DeviceChain
from scheduler.on_device.target import DeviceTarget
from scheduler.proposers import Proposer
from scheduler.streams.cuda.copies import CopyDriver, HostCopyDriver


class DeviceResidency:
    """No launch looks at a value; the host hears of each verdict by one small copy.

    For streams whose launches only enqueue, as a GPU's do. On other streams it gives the same tokens.
    """

    def __init__(self, copies: CopyDriver | None = None) -> None:
        """Bind the way to the host.

        Args:
            copies: the driver of the GPU; None for tensors in host memory.
        """
        self._copies = copies or HostCopyDriver()

    def target_side(self, lane: Lane, *, max_gamma: int, num_slots: int) -> DeviceTarget:
        """Reads and judges on the device."""
        return DeviceTarget(lane, max_gamma=max_gamma, num_slots=num_slots, copies=self._copies)

    def draft_side(
        self, proposers: Sequence[Proposer], *, max_gamma: int, leads: Leads, num_slots: int
    ) -> DeviceChain | Chain:
        """Drafts and settles on the device; without a source there is nothing to settle.

        Raises:
            ValueError, UnsupportedModelError: if the sources are more than one model which takes positions as a tensor.
        """
        if not proposers:
            return Chain(())
        return DeviceChain(proposers, max_gamma=max_gamma, leads=leads, num_slots=num_slots)
