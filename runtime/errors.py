"""Every error that Slipstream raises on purpose, in one tree.

    SlipstreamError
    ├── CheckpointError            missing, truncated, malformed, pickled, wrong hash
    ├── UnsupportedModelError      a class or architecture that cannot be run exactly
    ├── PairError                  target and draft do not share token ids
    ├── InsufficientMemoryError    weights, caches and activations would not fit
    ├── MissingDependencyError     an optional package is needed (also an ImportError)
    ├── DeviceUnavailableError     a device was asked for that cannot be used
    ├── NonFiniteLogitsError       a model returned a row that nothing can be drawn from
    ├── StaleLaunchError           the result was asked for of work that was skipped
    ├── StreamClosedError          work was launched on a closed stream
    ├── ScheduleError              a virtual device found that a program does not order its work
    │   ├── StreamRace             two launches touch one buffer, and no event orders them
    │   └── StreamDeadlock         an event is waited for that never comes
    ├── TraceMismatchError         a virtual device's trace was replayed on another program
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


class ContextLengthError(SlipstreamError, ValueError):
    """The prompt leaves no room for a token in the context."""


class RuntimeClosedError(SlipstreamError):
    """A request was made on a runtime that was closed."""


__all__ = [
    "CheckpointError",
    "ContextLengthError",
    "DeviceUnavailableError",
    "InsufficientMemoryError",
    "MissingDependencyError",
    "NonFiniteLogitsError",
    "PairError",
    "RuntimeClosedError",
    "ScheduleError",
    "SlipstreamError",
    "StaleLaunchError",
    "StreamClosedError",
    "StreamDeadlock",
    "StreamRace",
    "TraceMismatchError",
    "UnsupportedModelError",
]
