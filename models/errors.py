"""The errors that loading and pairing models can raise.

Owns the root of the project's error tree; `runtime.errors` draws the whole tree and adds
the errors of requests. Knows nothing of rounds or requests.
"""

from __future__ import annotations


class SlipstreamError(Exception):
    """Root of every error that Slipstream raises on purpose."""


class CheckpointError(SlipstreamError):
    """A checkpoint is missing, truncated, malformed, pickled or not what its hash says."""


class UnsupportedModelError(SlipstreamError):
    """A model's class or architecture cannot be run exactly; the message names it."""


class PairError(SlipstreamError):
    """Target and draft do not share token ids; the message names the first mismatch."""


class InsufficientMemoryError(SlipstreamError):
    """Weights, caches and activations would not fit; the message says what would."""


class MissingDependencyError(SlipstreamError, ImportError):
    """An optional package is needed; the message is the pip command that brings it."""


class DistillationError(SlipstreamError):
    """Training a draft cannot go on; what was learnt until the last checkpoint is kept."""
