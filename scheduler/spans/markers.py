"""Ranges for NVIDIA's profilers: what the `nvtx` package needs to know of launches and rounds.

Owns the domain, its categories and the registered strings. Ranges are started and ended by handle and never pushed and
popped, since a range that crosses an `await` would end in another's place. What varies goes into payloads: a string
that is formatted anew for each range would be registered for ever. Where the package is absent, nothing is marked and
nothing else changes. (NVTX: https://nvidia.github.io/NVTX/)
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable
from typing import Any, Protocol

from scheduler.launch_kind import Stage

_logger = logging.getLogger("slipstream")

DOMAIN = "slipstream"
_COLOURS = {
    Stage.PREFILL: "purple",
    Stage.DRAFT: "orange",
    Stage.VERIFY: "blue",
    Stage.SETTLE: "yellow",
    Stage.ROLLBACK: "red",
    Stage.COMMIT: "green",
    Stage.OTHER: "white",
}

EndRange = Callable[[], None]
"""Ends the range that it was given for."""


class Markers(Protocol):
    """Whoever wants to know when something begins and ends, at that very moment."""

    def start(self, label: str, *, stage: Stage, payload: int) -> EndRange:
        """Start a range; what is returned ends it, from whatever thread or task."""
        ...


def _nothing() -> None:
    pass


class NoMarkers:
    """Marks nothing."""

    def start(self, label: str, *, stage: Stage, payload: int) -> EndRange:
        """See `Markers.start`."""
        return _nothing


class NvtxMarkers:
    """Ranges in a domain of their own, a category a stage; the payload is the round's number, -1 before the first."""

    def __init__(self, nvtx: Any) -> None:
        """Register the domain.

        Args:
            nvtx: the module.
        """
        self._domain = nvtx.get_domain(DOMAIN)
        self._categories = {stage: self._domain.get_category_id(stage.value) for stage in Stage}

    def start(self, label: str, *, stage: Stage, payload: int) -> EndRange:
        """See `Markers.start`."""
        domain = self._domain
        # Labels are few: the domain registers each on first use, and keeps it.
        attributes = domain.get_event_attributes(
            message=label, color=_COLOURS[stage], category=self._categories[stage], payload=payload
        )
        range_id = domain.start_range(attributes)
        return lambda: domain.end_range(range_id)


class GuardedMarkers:
    """Other markers, up to their first error: whoever watches must not make a request fail."""

    def __init__(self, markers: Markers) -> None:
        self._markers: Markers = markers

    def start(self, label: str, *, stage: Stage, payload: int) -> EndRange:
        """See `Markers.start`."""
        try:
            end_range = self._markers.start(label, stage=stage, payload=payload)
        except Exception as error:
            return self._give_up(error)

        def end() -> None:
            try:
                end_range()
            except Exception as error:
                self._give_up(error)

        return end

    def _give_up(self, error: Exception) -> EndRange:
        if not isinstance(self._markers, NoMarkers):
            _logger.warning("nothing is marked any more, as the markers failed: %r", error)
            self._markers = NoMarkers()
        return _nothing


def nvtx_markers() -> Markers:
    """Markers through the `nvtx` package; ones that do nothing where it is absent or cannot be loaded."""
    try:
        nvtx = importlib.import_module("nvtx")
    except (ImportError, OSError):
        return NoMarkers()
    return NvtxMarkers(nvtx)
