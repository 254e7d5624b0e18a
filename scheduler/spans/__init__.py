"""When launches and rounds were: recorded, and marked for profilers."""

from scheduler.spans.markers import DOMAIN, EndRange, Markers, NoMarkers, NvtxMarkers, nvtx_markers
from scheduler.spans.recorder import SpanRecorder
from scheduler.spans.span import LaunchOutcome, LaunchSpan, Recording, RoundSpan
from scheduler.spans.track import Track

__all__ = [
    "DOMAIN",
    "EndRange",
    "LaunchOutcome",
    "LaunchSpan",
    "Markers",
    "NoMarkers",
    "NvtxMarkers",
    "Recording",
    "RoundSpan",
    "SpanRecorder",
    "Track",
    "nvtx_markers",
]
