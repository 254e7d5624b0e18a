"""The errors that streams and rounds can raise; part of the tree that `runtime.errors` draws."""

from __future__ import annotations

from models.errors import SlipstreamError


class StreamClosedError(SlipstreamError):
    """Work was launched on a stream that has been closed."""


class NonFiniteLogitsError(SlipstreamError):
    """A model returned a row from which no token can be drawn."""
