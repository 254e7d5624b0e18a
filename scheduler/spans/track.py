"""One lane's launches, as a recorder sees them.

Owns `Track`, through which a loop launches: while nothing is recorded its stream is the lane's own, so that a recorder
that is not running costs nothing. Knows nothing of rounds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

from scheduler.launch_kind import stage_of
from scheduler.round import Drafted
from scheduler.streams.base import Event, Launch, Stream, TimedStream
from scheduler.streams.lineage import Generation
from scheduler.target_side import Forwarded

if TYPE_CHECKING:
    from scheduler.spans.recorder import SpanRecorder

Result = TypeVar("Result")

_BEFORE_ROUNDS = -1
"""What ranges carry in place of a round's number before there is one."""


class Track:
    """Where a lane launches."""

    def __init__(self, recorder: SpanRecorder, lane: str, stream: Stream) -> None:
        self._recorder = recorder
        self._lane = lane
        self._own = stream
        self.stream: Stream = stream
        """What to launch on: the lane's own stream, or one over it that keeps account."""

    @property
    def own(self) -> Stream:
        """The lane's own stream."""
        return self._own

    def open(self, stream: TimedStream) -> None:
        """Launches are recorded from now on; `stream` is the lane's own."""
        self.stream = _RecordingStream(self._recorder, self._lane, stream)

    def close(self) -> None:
        """Launches are the lane's own affair again."""
        self.stream = self._own


class _RecordingStream:
    """A lane's stream, each launch of which is noted, and marked for profilers while it runs."""

    def __init__(self, recorder: SpanRecorder, lane: str, stream: TimedStream) -> None:
        self._recorder = recorder
        self._lane = lane
        self._stream = stream

    @property
    def name(self) -> str:
        """The name of the stream beneath."""
        return self._stream.name

    def launch(
        self,
        work: Callable[[], Result],
        *,
        reads: Iterable[str] = (),
        writes: Iterable[str] = (),
        label: str = "",
        generation: Generation | None = None,
    ) -> Launch[Result]:
        """See `scheduler.streams.base.Stream.launch`."""
        pending = self._recorder.queue(self._lane, self._stream.name, label, generation)
        markers, stage = self._recorder.markers, stage_of(label)
        payload = _BEFORE_ROUNDS if pending.round_number is None else pending.round_number

        def marked() -> Result:
            end_range = markers.start(label, stage=stage, payload=payload)
            began_s = time.perf_counter()
            try:
                value = work()
            except BaseException:
                pending.failed = True
                raise
            finally:
                pending.enqueue_ms = (time.perf_counter() - began_s) * 1e3
                end_range()
            if isinstance(value, Drafted):
                pending.num_tokens, pending.gamma, pending.lead = len(value.proposal), value.gamma, value.lead
            elif isinstance(value, Forwarded):
                pending.num_tokens = value.num_read
            return value

        launch = self._stream.launch(marked, reads=reads, writes=writes, label=label, generation=generation)
        pending.launch = launch
        return launch

    def record(self) -> Event:
        """See `scheduler.streams.base.Stream.record`."""
        return self._stream.record()

    def wait(self, event: Event) -> None:
        """See `scheduler.streams.base.Stream.wait`."""
        self._stream.wait(event)

    def close(self) -> None:
        """See `scheduler.streams.base.Stream.close`."""
        self._stream.close()
