"""Streams, lanes, rounds and the sampling law: how a draft and a target take turns without changing a token.

Knows nothing of text.
"""

from __future__ import annotations

import models  # noqa: F401  # it settles how OpenMP waits before anything imports torch
from scheduler.controller import Controller, SourceCosts
from scheduler.core_share import CoreShare
from scheduler.costs import BlockCosts, MachinePace
from scheduler.distribution import Distribution, SamplingLaw
from scheduler.errors import (
    DeviceUnavailableError,
    NonFiniteLogitsError,
    ScheduleError,
    StaleLaunchError,
    StreamClosedError,
    StreamDeadlock,
    StreamRace,
    TraceMismatchError,
)
from scheduler.feature_lane import FeatureLane
from scheduler.gamma import FixedGamma, GammaPolicy, Leads, expected_tokens
from scheduler.health import AcceptanceMonitor
from scheduler.history import TokenHistory
from scheduler.lane import Lane
from scheduler.occupancy import (
    Occupancy,
    OccupancyField,
    OccupancyProbe,
    OverlapAdvice,
    check_admission,
    overlap_advice,
)
from scheduler.on_device import DeviceResidency
from scheduler.overlap_costs import measure_enqueued_together, measure_together
from scheduler.pipeline import PipelinedLoop
from scheduler.proposers import FeatureProposer, ModelProposer, NgramProposer, Proposer
from scheduler.residency import HostResidency, Residency
from scheduler.round import (
    DecodeRequest,
    FinishReason,
    PrefillReport,
    Proposal,
    RoundReport,
    TokenLogprob,
    Verdict,
)
from scheduler.sequential import SequentialLoop
from scheduler.settings import SamplingSettings, Verification, check_integer, check_number
from scheduler.speed_model import LaneCosts, RatedPlan, RoundMode, RoundPlan, SpeedModel
from scheduler.streams import (
    AwaitMethod,
    CopyDriver,
    CostModel,
    CudaDriver,
    CudaEvent,
    CudaStream,
    DeviceMemory,
    DeviceProperties,
    Event,
    Generation,
    HostCopyDriver,
    Launch,
    Lineage,
    PinnedRing,
    PinnedSlot,
    Stream,
    ThreadStream,
    TimelineEntry,
    TimelineSummary,
    TorchCudaDriver,
    VirtualDevice,
    VirtualEvent,
    VirtualStream,
    summarize_timeline,
    why_no_cuda,
)
from scheduler.verify import judge

__all__ = [
    "AcceptanceMonitor",
    "AwaitMethod",
    "BlockCosts",
    "Controller",
    "CopyDriver",
    "CoreShare",
    "CostModel",
    "CudaDriver",
    "CudaEvent",
    "CudaStream",
    "DecodeRequest",
    "DeviceMemory",
    "DeviceProperties",
    "DeviceResidency",
    "DeviceUnavailableError",
    "Distribution",
    "Event",
    "FeatureLane",
    "FeatureProposer",
    "FinishReason",
    "FixedGamma",
    "GammaPolicy",
    "Generation",
    "HostCopyDriver",
    "HostResidency",
    "Lane",
    "LaneCosts",
    "Launch",
    "Leads",
    "Lineage",
    "MachinePace",
    "ModelProposer",
    "NgramProposer",
    "NonFiniteLogitsError",
    "Occupancy",
    "OccupancyField",
    "OccupancyProbe",
    "OverlapAdvice",
    "PinnedRing",
    "PinnedSlot",
    "PipelinedLoop",
    "PrefillReport",
    "Proposal",
    "Proposer",
    "RatedPlan",
    "Residency",
    "RoundMode",
    "RoundPlan",
    "RoundReport",
    "SamplingLaw",
    "SamplingSettings",
    "ScheduleError",
    "SequentialLoop",
    "SourceCosts",
    "SpeedModel",
    "StaleLaunchError",
    "Stream",
    "StreamClosedError",
    "StreamDeadlock",
    "StreamRace",
    "ThreadStream",
    "TimelineEntry",
    "TimelineSummary",
    "TokenHistory",
    "TokenLogprob",
    "TorchCudaDriver",
    "TraceMismatchError",
    "Verdict",
    "Verification",
    "VirtualDevice",
    "VirtualEvent",
    "VirtualStream",
    "check_admission",
    "check_integer",
    "check_number",
    "expected_tokens",
    "judge",
    "measure_enqueued_together",
    "measure_together",
    "overlap_advice",
    "summarize_timeline",
    "why_no_cuda",
]
