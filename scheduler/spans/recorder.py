"""The recorder: every launch and every round of the loops that it was given to, while it runs.

Owns starting and stopping, the numbers of launches and rounds, and how much is kept. A loop holds a recorder from the
beginning and asks `on` once a round; launches go through `Track`s, which lead past a recorder that is not running.
Times are those of the streams' own clock: the host's, a GPU's, or a virtual one. Knows nothing of files or charts.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from scheduler.block import BlockPlan
from scheduler.launch_kind import Stage
from scheduler.round import RoundReport
from scheduler.settings import check_integer
from scheduler.spans.markers import GuardedMarkers, Markers, NoMarkers
from scheduler.spans.pending import PendingLaunch, PendingRound
from scheduler.spans.span import LaunchSpan, Recording, RoundSpan
from scheduler.spans.track import Track
from scheduler.streams.base import HostTime, Stream, TimedStream, TimeSource
from scheduler.streams.lineage import Generation

_MOST_SPANS = 200_000
_MOST_PIECES = 1024
"""More than any loop has slots for."""


class SpanRecorder:
    """Records launches and rounds between `start` and `stop`.

    All methods are for the host's thread, the one that launches.
    """

    def __init__(self, *, max_spans: int = _MOST_SPANS) -> None:
        """Begin without a recording.

        Args:
            max_spans: launches that are kept, and as many rounds; beyond it the oldest are forgotten.
        """
        check_integer("max_spans", max_spans, low=1, advice=f"{_MOST_SPANS} is the default")
        self.on = False
        """Whether it is recording."""
        self.markers: Markers = NoMarkers()
        """Told of each launch and round at once."""
        self._tracks: list[Track] = []
        self._time_source: TimeSource = HostTime()
        self._launches: deque[LaunchSpan] = deque(maxlen=max_spans)
        self._rounds: deque[RoundSpan] = deque(maxlen=max_spans)
        self._num_launches = self._num_rounds = self._num_ended = self._num_ended_rounds = 0
        self._start_ms = 0.0
        self._pending: list[PendingLaunch] = []
        self._keys = itertools.count()
        self._open: dict[int, PendingRound] = {}
        self._pieces: dict[int, PendingLaunch] = {}

    def track(self, lane: str, stream: Stream) -> Track:
        """Where a lane's launches go; for loops to launch through."""
        track = Track(self, lane, stream)
        self._tracks.append(track)
        return track

    def start(self, markers: Markers | None = None) -> None:
        """Record from now on, between requests: what an earlier recording held is forgotten.

        Args:
            markers: who else wants to know of launches and rounds; `nvtx_markers()` tells NVIDIA's profilers.

        Raises:
            TypeError: if `markers` cannot start ranges.
            RuntimeError: if it is recording already, or there is nothing to record yet.
            ValueError: if a lane's stream cannot tell when its launches run.
        """
        if markers is not None and not callable(getattr(markers, "start", None)):
            raise TypeError(f"markers must have a method `start`, as nvtx_markers() has, got {type(markers).__name__}")
        if self.on:
            raise RuntimeError("it is recording already; stop that first")
        streams = [_timed(track.own) for track in self._tracks]
        if not streams:
            raise RuntimeError("no loop launches through this recorder; give it to a loop first")
        self._time_source = streams[0].new_time_source()
        try:
            for track, stream in zip(self._tracks, streams, strict=True):
                stream.time_launches(self._time_source)
                track.open(stream)
        except BaseException:
            self._close_tracks()
            raise
        self._forget()
        self.markers = NoMarkers() if markers is None else GuardedMarkers(markers)
        self._start_ms = self.now_ms()
        self.on = True

    def stop(self) -> Recording:
        """Record no more.

        A launch that is not over by now has no times: await an event behind the last ones first.

        Raises:
            RuntimeError: if it is not recording.
        """
        if not self.on:
            raise RuntimeError("nothing is recording; start a recording first")
        self.on = False
        self._close_tracks()
        self.abandon_rounds()
        self._collect(everything=True)
        recording = Recording(
            launches=tuple(sorted(self._launches, key=lambda span: span.number)),
            rounds=tuple(self._rounds),
            start_ms=self._start_ms,
            end_ms=self.now_ms(),
            num_dropped=self._num_ended + self._num_ended_rounds - len(self._launches) - len(self._rounds),
        )
        self._forget()
        return recording

    def _close_tracks(self) -> None:
        for track in self._tracks:
            track.close()
            _timed(track.own).time_launches(None)

    def now_ms(self) -> float:
        """The time on the clock that spans go by."""
        return self._time_source.now_ms()

    def queue(self, lane: str, stream: str, label: str, generation: Generation | None) -> PendingLaunch:
        """A launch is being queued."""
        pending = PendingLaunch(
            number=self._num_launches,
            lane=lane,
            stream=stream,
            label=label,
            queued_ms=self.now_ms(),
            round_number=self._num_rounds - 1 if self._num_rounds else None,
            generation=None if generation is None else generation.number,
        )
        self._num_launches += 1
        self._pending.append(pending)
        return pending

    def note_piece(self, number: int) -> None:
        """The launch that was queued last is the piece of that number."""
        self._pieces[number] = self._pending[-1]
        if len(self._pieces) > _MOST_PIECES:
            del self._pieces[next(iter(self._pieces))]

    def note_width(self, num_tokens: int) -> None:
        """The launch that was queued last reads so many tokens."""
        self._pending[-1].num_tokens = num_tokens

    def open_round(self, plan: BlockPlan) -> int:
        """A block is about to be handed to the target; returns what the round is called from now on."""
        number = self._num_rounds
        self._num_rounds += 1
        pieces = (*plan.pieces, *plan.guesses)
        # A request that began under an earlier recording must not close a round of this one.
        key = next(self._keys)
        self._open[key] = PendingRound(
            number=number,
            start_ms=self.now_ms(),
            drafts=tuple(self._pieces[piece.number] for piece in pieces if piece.number in self._pieces),
            end_range=self.markers.start("round", stage=Stage.VERIFY, payload=number),
        )
        return key

    def hear(self, key: int) -> None:
        """The host has a round's verdict."""
        if pending := self._open.get(key):
            pending.verdict_ms = self.now_ms()
            pending.end_range()
            pending.end_commit = self.markers.start("commit", stage=Stage.COMMIT, payload=pending.number)

    def close_round(self, key: int, report: RoundReport) -> None:
        """A round is committed, and the next one on its way where there is to be one."""
        pending = self._open.pop(key, None)
        if pending is None:
            return
        self._rounds.append(pending.span(report, end_ms=self.now_ms()))
        self._num_ended_rounds += 1
        if pending.end_commit:
            pending.end_commit()
        self._collect()

    @contextmanager
    def marked(self, label: str, stage: Stage) -> Iterator[None]:
        """Mark a part of a launch, of the newest round; for the thread that runs it."""
        end_range = self.markers.start(label, stage=stage, payload=self._num_rounds - 1)
        try:
            yield
        finally:
            end_range()

    def abandon_rounds(self) -> None:
        """A request has ended, or was given up: the rounds that are open come to nothing."""
        for pending in self._open.values():
            (pending.end_commit or pending.end_range)()
        self._open.clear()

    def _collect(self, *, everything: bool = False) -> None:
        """Make spans of the launches that are over, and let go of what these returned."""
        over = [pending.is_over for pending in self._pending]
        newest_over: dict[str, int] = {}
        for pending, is_over in zip(self._pending, over, strict=True):
            if is_over:
                newest_over[pending.stream] = pending.number
        still_pending = []
        for pending, is_over in zip(self._pending, over, strict=True):
            # What stood behind an error has no times; its stream is past it where a later launch is over.
            is_passed = pending.number < newest_over.get(pending.stream, 0)
            if not everything and not is_over and not is_passed:
                still_pending.append(pending)
                continue
            self._launches.append(pending.span())
            self._num_ended += 1
            pending.launch = None
        self._pending = still_pending

    def _forget(self) -> None:
        self._launches.clear()
        self._rounds.clear()
        self._pending.clear()
        self._open.clear()
        self._pieces.clear()
        self._num_launches = self._num_rounds = self._num_ended = self._num_ended_rounds = 0


def _timed(stream: Stream) -> TimedStream:
    if not isinstance(stream, TimedStream):
        raise ValueError(
            f"stream {stream.name!r} is a {type(stream).__name__}, which cannot tell when its launches run; record "
            "lanes on a ThreadStream, a CudaStream, or a VirtualStream of a device with costs"
        )
    return stream
