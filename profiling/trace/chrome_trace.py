"""A recording as a Chrome trace: which launch and which round goes where, and what points at what.

Owns the tracks (rounds, the host, one a stream), the arrows and the counters of rounds. Knows nothing of how an event
is written, nor of files.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from profiling.trace.chrome_events import ChromeEvents, Colour, Event, Slice, nanoseconds
from profiling.trace.counters import CounterReadings
from profiling.trace.traced_round import TARGET, RoundKind, discarded, kind_of, rollbacks, shown_stage
from scheduler import LaunchKind, LaunchOutcome, LaunchSpan, Recording, RoundSpan, Stage

ROLLING_ROUNDS = 8
"""The acceptance rate that is drawn is one over so many rounds: of a single one it would jump between 0 and 100 %."""

_COLOURS = {
    Stage.PREFILL: Colour.BROWN,
    Stage.DRAFT: Colour.ORANGE,
    Stage.VERIFY: Colour.BLUE,
    Stage.SETTLE: Colour.YELLOW,
    Stage.ROLLBACK: Colour.RED,
    Stage.COMMIT: Colour.GREEN,
    Stage.OTHER: Colour.GREY,
}
_ENDINGS = {
    LaunchOutcome.RAN: "",
    LaunchOutcome.FAILED: ", failed",
    LaunchOutcome.SKIPPED: ", skipped",
    LaunchOutcome.UNKNOWN: ", not seen to end",
}
_ROUND_COLOURS = {RoundKind.HIT: Colour.GREEN, RoundKind.MISS: Colour.OCHRE}


def chrome_events(
    recording: Recording,
    *,
    process_name: str,
    source_names: Sequence[str] = (),
    readings: CounterReadings | None = None,
) -> list[Event]:
    """All events of a trace, in order.

    Args:
        recording: what is shown.
        process_name: what stands above all tracks.
        source_names: of the draft sources, by their numbers.
        readings: counters that were read meanwhile; on the recording's clock.
    """
    return _RecordingEvents(recording, ChromeEvents(process_name), source_names).build(readings)


class _RecordingEvents:
    def __init__(self, recording: Recording, events: ChromeEvents, source_names: Sequence[str]) -> None:
        self._recording = recording
        self._events = events
        self._source_names = source_names
        self._launches: dict[int, Slice] = {}
        """By number, those that ran or failed."""
        self._rolled_back = rollbacks(recording)
        self._discarded = discarded(recording)

    def build(self, readings: CounterReadings | None) -> list[Event]:
        rounds_track = self._events.add_track("rounds")
        host_track = self._events.add_track("host")
        self._add_streams()
        self._add_rounds(rounds_track, host_track)
        self._add_arrows()
        self._add_round_counters()
        if readings is not None:
            for reading in readings.readings:
                for counter, value in reading.values.items():
                    self._events.add_counter(counter.value, counter.unit, self._ns(reading.at_ms), value)
        return self._events.events()

    def _ns(self, at_ms: float) -> int:
        return nanoseconds(at_ms - self._recording.start_ms)

    def _add_streams(self) -> None:
        streams: dict[str, list[LaunchSpan]] = {}
        for launch in self._recording.launches:
            streams.setdefault(launch.stream, []).append(launch)
        for name, launches in sorted(streams.items(), key=lambda stream: stream[1][0].lane != TARGET):
            lanes = " and ".join(dict.fromkeys(launch.lane for launch in launches))
            track = self._events.add_track(f"stream {name}" + ("" if lanes == name else f" ({lanes})"))
            # A stream runs its launches in the order of their numbers.
            for launch in launches:
                self._add_launch(track, launch)

    def _add_launch(self, track: int, launch: LaunchSpan) -> None:
        args: dict[str, object] = {
            "launch": launch.number,
            "lane": launch.lane,
            "round": launch.round_number,
            "generation": launch.generation,
            "width": launch.num_tokens,
            "outcome": launch.outcome.value,
            "discarded": True if launch.number in self._discarded else None,
            "enqueue_ms": launch.enqueue_ms,
            "queued_us": self._ns(launch.queued_ms) / 1000,
        }
        stage = shown_stage(launch, self._rolled_back)
        name = (launch.label or "launch") + _ENDINGS[launch.outcome]
        if launch.start_ms is None or launch.end_ms is None:
            # Nobody noted when: the stream came to it after what stood before it, and not before it was queued.
            self._events.add_instant(track, name, self._ns(launch.queued_ms), category=stage.value, args=args)
            return
        self._launches[launch.number] = self._events.add_slice(
            track,
            name,
            self._ns(launch.start_ms),
            self._ns(launch.end_ms),
            category=stage.value,
            colour=Colour.BLACK if launch.outcome is LaunchOutcome.FAILED else _COLOURS[stage],
            args=args,
        )

    def _add_rounds(self, rounds_track: int, host_track: int) -> None:
        for span in self._recording.rounds:
            start_ns, verdict_ns, end_ns = (self._ns(at) for at in (span.start_ms, span.verdict_ms, span.end_ms))
            self._events.add_slice(
                rounds_track,
                _name(span),
                start_ns,
                verdict_ns,
                category="round",
                colour=_ROUND_COLOURS.get(kind_of(span), Colour.GREY),
                args=self._round_args(span),
            )
            self._events.add_slice(
                host_track,
                "commit",
                verdict_ns,
                end_ns,
                category=Stage.COMMIT.value,
                colour=_COLOURS[Stage.COMMIT],
                args={"round": span.number, "tokens": span.num_tokens},
            )

    def _round_args(self, span: RoundSpan) -> Mapping[str, object]:
        named = span.num_proposed and span.source < len(self._source_names)
        return {
            "round": span.number,
            "proposed": span.num_proposed,
            "accepted": span.num_accepted,
            "tokens": span.num_tokens,
            "hit": span.hit,
            "discarded": span.num_discarded,
            "together": span.together,
            "gamma": span.gamma,
            "lead": span.lead,
            "source": self._source_names[span.source] if named else None,
            "draft_ms": span.draft_ms,
            "verify_ms": span.verify_ms,
        }

    def _add_arrows(self) -> None:
        own = {
            (launch.round_number, launch.label): launch.number
            for launch in self._recording.launches
            if launch.label in (LaunchKind.VERIFY, LaunchKind.JUDGE, LaunchKind.SETTLE)
            and launch.number in self._launches
        }
        for span in self._recording.rounds:
            numbers = [
                own.get((span.number, label)) for label in (LaunchKind.VERIFY, LaunchKind.JUDGE, LaunchKind.SETTLE)
            ]
            verify, judge, settle = (None if number is None else self._launches[number] for number in numbers)
            for number in span.drafts:
                draft = self._launches.get(number)
                # The guess is drawn while the block is read; what takes it in is the judgement.
                judged = verify if draft and verify and draft.end_ns <= verify.start_ns else judge
                if draft and judged:
                    self._events.add_flow("proposal", draft, judged, category="proposal")
            if judge and settle:
                rolled_back = numbers[-1] in self._rolled_back
                name, stage = ("rollback", Stage.ROLLBACK) if rolled_back else ("verdict", Stage.SETTLE)
                self._events.add_flow(name, judge, settle, category=stage.value)

    def _add_round_counters(self) -> None:
        recent: deque[RoundSpan] = deque(maxlen=ROLLING_ROUNDS)
        for span in self._recording.rounds:
            for name, chosen in (("gamma", span.gamma), ("lead", span.lead)):
                # A viewer draws a value until the next one: what was chosen before is not true of a plain round.
                value = chosen if span.num_proposed else 0
                if value is not None:
                    self._events.add_counter(name, "tokens", self._ns(span.start_ms), value)
            recent.append(span)
            if num_proposed := sum(past.num_proposed for past in recent):
                share = sum(past.num_accepted for past in recent) / num_proposed
                name = f"acceptance over {ROLLING_ROUNDS} rounds"
                self._events.add_counter(name, "%", self._ns(span.verdict_ms), round(100 * share, 2))


def _name(span: RoundSpan) -> str:
    kind = kind_of(span)
    if kind is RoundKind.PLAIN:
        return "plain step"
    guessed = f", {kind.value}" if kind in _ROUND_COLOURS else ""
    return f"accepted {span.num_accepted} of {span.num_proposed}{guessed}"
