"""Where a runtime computes: which device, on which streams, with how many threads.

Owns the choice and the construction of the streams. Knows nothing of checkpoints or requests.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from runtime.draft_spec import DraftSpec
from runtime.load_settings import AUTO_DEVICE, LoadSettings, Mode
from scheduler import (
    CoreShare,
    CudaStream,
    DeviceResidency,
    OccupancyProbe,
    Residency,
    Stream,
    ThreadStream,
    TorchCudaDriver,
    why_no_cuda,
)

DRAFT_THREADS = 1
"""Intra-op threads of a draft model beside its target: it is small, and what it has the target lacks."""
_FIRST_GPU = "cuda:0"
"""Of those that CUDA_VISIBLE_DEVICES leaves. Not torch's current one, which every thread has for itself."""

_logger = logging.getLogger("slipstream")


@dataclass(frozen=True, kw_only=True)
class Placement:
    """What lanes are built on."""

    device: torch.device
    """Of the models."""
    target_stream: Stream
    draft_stream: Stream
    """The target's own, or one beside it."""
    overlaps: bool
    """Whether a draft model may work beside the target."""
    target_cores: CoreShare | None = None
    draft_cores: CoreShare | None = None
    """Intra-op threads of each lane's work; None where that is not done by the CPU."""
    residency: Residency | None = None
    """Where a round's values live; None has them on the host."""
    probe: OccupancyProbe | None = None
    """Watches a GPU; None on the CPU."""

    @property
    def enqueues(self) -> bool:
        """Whether launches run on the thread that makes them, and only enqueue what the device is to do."""
        return self.residency is not None

    @property
    def num_draft_threads(self) -> int:
        """Those of a draft model while it works beside its target."""
        return self.draft_cores.together if self.overlaps and self.draft_cores is not None else 0

    @property
    def num_threads(self) -> int:
        """Most intra-op threads that work at once: one is the least for each lane."""
        if self.target_cores is None:
            return torch.get_num_threads()
        together = self.target_cores.together + self.num_draft_threads
        return max(self.target_cores.alone, together) if self.overlaps else self.target_cores.alone


async def place(settings: LoadSettings, specs: Sequence[DraftSpec]) -> Placement:
    """Make the streams; a GPU and its driver start off the event loop, as that may take seconds.

    Raises:
        DeviceUnavailableError: if the settings name a GPU that cannot be used.
    """
    if settings.device == "cpu":
        return _on_cpu(settings, specs)
    if settings.device == AUTO_DEVICE and await asyncio.to_thread(why_no_cuda, torch.device(_FIRST_GPU)) is not None:
        return _on_cpu(settings, specs)
    return await asyncio.to_thread(_on_gpu, settings, specs)


def _on_cpu(settings: LoadSettings, specs: Sequence[DraftSpec]) -> Placement:
    """A worker for each lane that may work beside the other.

    Where they take turns, one worker serves both, and no second pool of threads stands in its way. One thread for two
    lanes is no choice to make: they take turns, unless overlap was asked for in so many words. A draft that only looks
    things up has a worker of its own in that case alone.
    """
    num_threads = settings.threads or torch.get_num_threads()
    wanted = settings.mode is Mode.PIPELINED or (settings.mode is Mode.AUTO and num_threads > DRAFT_THREADS)
    overlaps = wanted and any(spec.is_model for spec in specs)
    target_stream = ThreadStream("target", num_threads=num_threads)
    draft_stream: Stream = target_stream
    if overlaps:
        draft_stream = ThreadStream("draft", num_threads=num_threads)
    elif settings.mode is Mode.PIPELINED:
        draft_stream = ThreadStream("draft", num_threads=DRAFT_THREADS)
    left = max(1, num_threads - DRAFT_THREADS) if overlaps else num_threads
    return Placement(
        device=torch.device("cpu"),
        target_stream=target_stream,
        draft_stream=draft_stream,
        overlaps=overlaps,
        target_cores=CoreShare(alone=num_threads, together=left),
        draft_cores=CoreShare(alone=num_threads, together=DRAFT_THREADS if overlaps else num_threads),
    )


def _on_gpu(settings: LoadSettings, specs: Sequence[DraftSpec]) -> Placement:
    """Two streams of one GPU, the draft's the more urgent: its kernels are few and small, and the target waits for
    them. One stream where nothing can overlap, unless overlap was asked for in so many words."""
    driver = TorchCudaDriver(_FIRST_GPU if settings.device in (AUTO_DEVICE, "cuda") else settings.device)
    if settings.threads is not None:
        _logger.warning(
            "threads=%d has no effect: the models run on %s, not on threads of the CPU; leave it out, or load with "
            "device='cpu'",
            settings.threads,
            driver.device,
        )
    _, most_urgent = driver.priority_range()
    overlaps = settings.mode.overlaps and any(spec.is_model for spec in specs)
    # Events that note their time tell what blocks cost, whenever the host comes to hear of them.
    target_stream = CudaStream("target", driver, timing=True)
    draft_stream = target_stream
    if overlaps or settings.mode is Mode.PIPELINED:
        draft_stream = CudaStream("draft", driver, priority=most_urgent, timing=True)
    return Placement(
        device=driver.device,
        target_stream=target_stream,
        draft_stream=draft_stream,
        overlaps=overlaps,
        residency=DeviceResidency(driver),
        probe=OccupancyProbe.for_device(driver.properties().uuid),
    )
