"""What has to be known before the figures of a trace are read: whether it was simulated, or whether a GPU waited.

Owns the words and the fields. Knows nothing of how a summary is made.
"""

from __future__ import annotations

from collections.abc import Sequence

from profiling.trace.arguments import NO_CONTENTION, StreamKind
from profiling.trace.enqueueing import enqueueing
from scheduler import LaneName, LaunchKind, Recording

_HOST_BOUND_SHARE = 0.8
"""Where enqueueing takes so much of a launch's time on the GPU, the GPU has been waiting for the host."""


def streams_as_dict(streams: StreamKind | None, contention: float, device: str) -> dict[str, object]:
    """What the lanes ran on, ready for JSON."""
    simulated = streams is StreamKind.VIRTUAL
    own_kind = "cuda" if device.startswith("cuda") else StreamKind.THREADS.value
    return {
        "streams": StreamKind.VIRTUAL.value if simulated else own_kind,
        "simulated": simulated,
        "contention": contention if simulated else None,
    }


def preface(streams: StreamKind | None, contention: float, device: str, recording: Recording) -> Sequence[str]:
    """Sentences to be read first; none for lanes on the CPU's threads."""
    if streams is StreamKind.VIRTUAL:
        beside = "" if contention == NO_CONTENTION else f", and {contention:g} times as long beside the other lane"
        return (
            "SIMULATED: each call takes what calls of its width were measured to take alone" + beside + ". The host's "
            "part of gaps and bubbles is the simulation's own; judging, settling and looking up take no time.",
        )
    if not device.startswith("cuda"):
        return ()
    verify = enqueueing(recording.launches, LaneName.TARGET, LaunchKind.VERIFY)
    if verify is None or verify.share is None:
        return ()
    said = (
        f"Enqueueing a verify took the host {verify.enqueue_ms:.2f} ms of the {verify.duration_ms:.2f} ms that it "
        "lasted on the GPU (medians)."
    )
    if verify.share < _HOST_BOUND_SHARE:
        return (said,)
    return (
        said,
        "The GPU waits for the host: where a lane is shown as busy, much of that is waiting for kernels. Captured "
        "graphs, or fewer and larger kernels, would help, and not a faster GPU.",
    )
