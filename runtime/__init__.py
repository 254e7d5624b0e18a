"""Slipstream's public interface: text and messages in, text out.

async with await Runtime.load() as runtime:
    result = await runtime.generate("The capital of France is", max_tokens=16)
    print(result.text)

Names are imported when they are first used: `python -m runtime` has to tell the operating system's libraries a thing
or two before torch is loaded, and this file runs before any other.
"""

from __future__ import annotations

import models  # noqa: F401  # it settles how OpenMP waits before anything imports torch
import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runtime.conversation import Conversation
    from runtime.description import RuntimeDescription
    from runtime.errors import (
        CheckpointError,
        ContextLengthError,
        InsufficientMemoryError,
        MissingDependencyError,
        NonFiniteLogitsError,
        PairError,
        RuntimeClosedError,
        SlipstreamError,
        StreamClosedError,
        UnsupportedModelError,
    )
    from runtime.load_settings import DraftKind, DraftSpec, LoadSettings, Mode
    from runtime.metrics import Metrics
    from runtime.options import GenerationKeywords, GenerationOptions
    from runtime.result import Chunk, GenerationResult
    from runtime.runtime import Runtime
    from runtime.token_stream import TokenStream
    from scheduler import FinishReason, TokenLogprob, Verification

__all__ = [
    "CheckpointError",
    "Chunk",
    "ContextLengthError",
    "Conversation",
    "DraftKind",
    "DraftSpec",
    "FinishReason",
    "GenerationKeywords",
    "GenerationOptions",
    "GenerationResult",
    "InsufficientMemoryError",
    "LoadSettings",
    "Metrics",
    "MissingDependencyError",
    "Mode",
    "NonFiniteLogitsError",
    "PairError",
    "Runtime",
    "RuntimeClosedError",
    "RuntimeDescription",
    "SlipstreamError",
    "StreamClosedError",
    "TokenLogprob",
    "TokenStream",
    "UnsupportedModelError",
    "Verification",
]

_HOMES = {
    "runtime.conversation": ("Conversation",),
    "runtime.description": ("RuntimeDescription",),
    "runtime.load_settings": ("DraftKind", "DraftSpec", "LoadSettings", "Mode"),
    "runtime.metrics": ("Metrics",),
    "runtime.options": ("GenerationKeywords", "GenerationOptions"),
    "runtime.result": ("Chunk", "GenerationResult"),
    "runtime.runtime": ("Runtime",),
    "runtime.token_stream": ("TokenStream",),
    "scheduler": ("FinishReason", "TokenLogprob", "Verification"),
}
"""Module of each public name; the errors, all others, have one of their own."""


if not TYPE_CHECKING:  # where types are checked, the imports above say what there is

    def __getattr__(name: str) -> object:
        """Import a public name the first time it is asked for (PEP 562)."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        home = next((module for module, names in _HOMES.items() if name in names), "runtime.errors")
        value = getattr(importlib.import_module(home), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
