"""When the launches of a lane ran, on the streams that really ran them.

Owns a stream that keeps the start and end of each launch, and the shares of time in which both lanes were busy, or one
of them, or neither. Knows nothing of models or rounds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from scheduler import Event, Generation, Launch, Stream, TimelineEntry, summarize_timeline

Result = TypeVar("Result")


class RecordedStream:
    """Another stream under the name of a lane; two lanes may share one worker and still be told apart.

    Entries are appended by the stream's own thread: read them once an event behind the launches is done. What the
    stream waits for is in no entry, what a launch itself waits for (the interpreter's lock, a core) is.
    """

    def __init__(self, lane: str, stream: Stream) -> None:
        """Record what is launched on `stream` through this object."""
        self._lane = lane
        self._stream = stream
        self.entries: list[TimelineEntry] = []
        """One for each launch that ran, in order; a launch that was skipped leaves none."""

    @property
    def name(self) -> str:
        """The lane's name."""
        return self._lane

    def launch(
        self,
        work: Callable[[], Result],
        *,
        reads: Iterable[str] = (),
        writes: Iterable[str] = (),
        label: str = "",
        generation: Generation | None = None,
    ) -> Launch[Result]:
        """Enqueue `work`, timed."""

        def timed() -> Result:
            started_s = time.perf_counter()
            try:
                return work()
            finally:
                ended_s = time.perf_counter()
                self.entries.append(
                    TimelineEntry(stream=self._lane, label=label, start_ms=started_s * 1e3, end_ms=ended_s * 1e3)
                )

        return self._stream.launch(timed, reads=reads, writes=writes, label=label, generation=generation)

    def record(self) -> Event:
        """An event of the stream beneath."""
        return self._stream.record()

    def wait(self, event: Event) -> None:
        """Hold later launches back until `event`."""
        self._stream.wait(event)

    def close(self) -> None:
        """Close the stream beneath; idempotent."""
        self._stream.close()


@dataclass(frozen=True, kw_only=True)
class BusyShares:
    """How two lanes shared a stretch of time; the four add up to 1."""

    both: float
    target_only: float
    draft_only: float
    neither: float


def busy_shares(
    target: Sequence[TimelineEntry], draft: Sequence[TimelineEntry], *, start_ms: float, end_ms: float
) -> BusyShares:
    """The shares of the time from `start_ms` to `end_ms`.

    Raises:
        ValueError: if that is no time at all, or an entry stands under another lane's name.
    """
    if not start_ms < end_ms:
        raise ValueError(f"start_ms must be below end_ms {end_ms}, got {start_ms}")
    for lane, entries in (("target", target), ("draft", draft)):
        if strangers := {entry.stream for entry in entries} - {lane}:
            raise ValueError(f"entries of the {lane} must be named so, got {sorted(strangers)}")
    clipped = [
        replace(entry, start_ms=max(entry.start_ms, start_ms), end_ms=min(entry.end_ms, end_ms))
        for entry in (*target, *draft)
        if entry.end_ms > start_ms and entry.start_ms < end_ms
    ]
    summary = summarize_timeline(clipped)
    span_ms, both_ms = end_ms - start_ms, summary.overlap_ms
    target_ms, draft_ms = (summary.busy_ms.get(lane, 0.0) for lane in ("target", "draft"))
    return BusyShares(
        both=both_ms / span_ms,
        target_only=(target_ms - both_ms) / span_ms,
        draft_only=(draft_ms - both_ms) / span_ms,
        neither=(span_ms - target_ms - draft_ms + both_ms) / span_ms,
    )
