"""The errors that streams and rounds can raise; part of the tree that `runtime.errors` draws."""

from __future__ import annotations

from models.errors import SlipstreamError


class StreamClosedError(SlipstreamError):
    """Work was launched on a stream that has been closed."""


class StaleLaunchError(SlipstreamError):
    """The result was asked for of work that was skipped, because what it assumed turned out wrong."""


class NonFiniteLogitsError(SlipstreamError):
    """A model returned a row from which no token can be drawn."""
