"""Slipstream's public interface: text and messages in, text out.

async with await Runtime.load() as runtime:
    result = await runtime.generate("The capital of France is", max_tokens=16)
    print(result.text)
"""

from __future__ import annotations

import models  # noqa: F401  # it tells OpenMP how to wait, before anything here imports torch
from runtime.assembly import EARLY_EXIT_SHARE, build_engine
from runtime.conversation import Conversation
from runtime.description import RuntimeDescription
from runtime.draft_spec import DraftKind, DraftSpec
from runtime.engine import Engine
from runtime.errors import (
    CheckpointError,
    ContextLengthError,
    DeviceUnavailableError,
    InsufficientMemoryError,
    MissingDependencyError,
    NonFiniteLogitsError,
    PairError,
    RuntimeClosedError,
    SlipstreamError,
    StreamClosedError,
    UnsupportedModelError,
)
from runtime.latency import Latency, LatencyHistogram
from runtime.load_settings import LoadSettings, Mode
from runtime.metrics import Metrics
from runtime.metrics_server import MetricsServer
from runtime.options import GenerationKeywords, GenerationOptions
from runtime.placement import Placement
from runtime.prometheus import MetricsCollector, prometheus_text
from runtime.result import Chunk, GenerationResult
from runtime.runtime import Runtime
from runtime.runtime_metrics import RequestOutcome, RuntimeMetrics
from runtime.token_stream import TokenStream
from scheduler import FinishReason, Occupancy, TokenLogprob, Verification

__all__ = [
    "CheckpointError",
    "Chunk",
    "ContextLengthError",
    "Conversation",
    "DeviceUnavailableError",
    "DraftKind",
    "DraftSpec",
    "EARLY_EXIT_SHARE",
    "Engine",
    "FinishReason",
    "GenerationKeywords",
    "GenerationOptions",
    "GenerationResult",
    "InsufficientMemoryError",
    "Latency",
    "LatencyHistogram",
    "LoadSettings",
    "Metrics",
    "MetricsCollector",
    "MetricsServer",
    "MissingDependencyError",
    "Mode",
    "NonFiniteLogitsError",
    "Occupancy",
    "PairError",
    "Placement",
    "RequestOutcome",
    "Runtime",
    "RuntimeClosedError",
    "RuntimeDescription",
    "RuntimeMetrics",
    "SlipstreamError",
    "StreamClosedError",
    "TokenLogprob",
    "TokenStream",
    "UnsupportedModelError",
    "Verification",
    "build_engine",
    "prometheus_text",
]
