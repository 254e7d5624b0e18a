"""Every error that Slipstream raises on purpose, in one tree.

    SlipstreamError
    ├── CheckpointError            missing, truncated, malformed, pickled, wrong hash
    ├── UnsupportedModelError      a class or architecture that cannot be run exactly
    ├── PairError                  target and draft do not share token ids
    ├── InsufficientMemoryError    weights, caches and activations would not fit
    ├── MissingDependencyError     an optional package is needed (also an ImportError)
    ├── NonFiniteLogitsError       a model returned a row that nothing can be drawn from
    ├── StaleLaunchError           the result was asked for of work that was skipped
    ├── StreamClosedError          work was launched on a closed stream
    ├── ContextLengthError         the prompt leaves no room in the context (also a ValueError)
    └── RuntimeClosedError         the runtime was closed

Options of the wrong type or name are a `TypeError`, values outside their limits a `ValueError`.
"""

from __future__ import annotations

from models.errors import (
    CheckpointError,
    InsufficientMemoryError,
    MissingDependencyError,
    PairError,
    SlipstreamError,
    UnsupportedModelError,
)
from scheduler.errors import NonFiniteLogitsError, StaleLaunchError, StreamClosedError


class ContextLengthError(SlipstreamError, ValueError):
    """The prompt leaves no room for a token in the context."""


class RuntimeClosedError(SlipstreamError):
    """A request was made on a runtime that was closed."""


__all__ = [
    "CheckpointError",
    "ContextLengthError",
    "InsufficientMemoryError",
    "MissingDependencyError",
    "NonFiniteLogitsError",
    "PairError",
    "RuntimeClosedError",
    "SlipstreamError",
    "StaleLaunchError",
    "StreamClosedError",
    "UnsupportedModelError",
]
