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
from scheduler.launch_kind import LaneName, LaunchKind, Stage, stage_of
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
from scheduler.spans import (
    LaunchOutcome,
    LaunchSpan,
    Markers,
    NoMarkers,
    NvtxMarkers,
    Recording,
    RoundSpan,
    SpanRecorder,
    nvtx_markers,
)
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
    TimedLaunch,
    TimedStream,
    TimelineEntry,
    TimelineSummary,
    TimeSource,
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
    "LaneName",
    "Launch",
    "LaunchKind",
    "LaunchOutcome",
    "LaunchSpan",
    "Leads",
    "Lineage",
    "MachinePace",
    "Markers",
    "ModelProposer",
    "NgramProposer",
    "NoMarkers",
    "NonFiniteLogitsError",
    "NvtxMarkers",
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
    "Recording",
    "Residency",
    "RoundMode",
    "RoundPlan",
    "RoundReport",
    "RoundSpan",
    "SamplingLaw",
    "SamplingSettings",
    "ScheduleError",
    "SequentialLoop",
    "SourceCosts",
    "SpanRecorder",
    "SpeedModel",
    "Stage",
    "StaleLaunchError",
    "Stream",
    "StreamClosedError",
    "StreamDeadlock",
    "StreamRace",
    "ThreadStream",
    "TimeSource",
    "TimedLaunch",
    "TimedStream",
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
    "nvtx_markers",
    "overlap_advice",
    "stage_of",
    "summarize_timeline",
    "why_no_cuda",
]
