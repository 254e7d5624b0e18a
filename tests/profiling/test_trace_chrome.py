"""Recordings as Chrome traces: every launch and round on its track, arrows between slices that exist, in order."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from profiling.trace.chrome_events import ChromeEvents, Colour, encode_trace
from profiling.trace.chrome_trace import ROLLING_ROUNDS, chrome_events
from profiling.trace.counters import Counter, CounterReading, CounterReadings
from scheduler import LaunchKind, LaunchOutcome, LaunchSpan, Recording, RoundSpan, Stage, VirtualDevice
from tests.support.chrome_format import ChromeTrace, check_trace, end_of, read_trace
from tests.support.hand_recording import HandRecording, launch_span, round_span
from tests.support.sequential_cases import target_model
from tests.support.spans import COSTS, REQUEST, half_right, recorded


def traced(recording: Recording, **options: Any) -> ChromeTrace:
    events = chrome_events(recording, process_name="pair", **options)
    return check_trace(json.loads(encode_trace(events, {}, compressed=False)))


async def recording_of(kind: str, *, seed: int = 0) -> Recording:
    """A request in a pipeline on a virtual clock or on threads, or on one thread."""
    options: dict[str, Any] = {"pipelined": kind != "sequential"}
    if kind == "virtual":
        options["new_stream"] = VirtualDevice(seed, costs=COSTS).stream
    _, recording = await recorded(target_model(), REQUEST, [half_right()], **options)
    return recording


@pytest.mark.parametrize("kind", ["virtual", "pipelined", "sequential"])
async def test_every_launch_and_every_round_is_there(kind: str) -> None:
    recording = await recording_of(kind)
    trace = traced(recording, source_names=("half right",))
    streams = {"stream target", "stream draft"} if kind != "sequential" else {"stream target (target and draft)"}
    assert set(trace.tracks.values()) == {"rounds", "host"} | streams
    shown = {
        event["args"]["launch"]: event for stream in streams for phase in "Xi" for event in trace.on(stream, phase)
    }
    assert sorted(shown) == [launch.number for launch in recording.launches]
    for launch in recording.launches:
        event = shown[launch.number]
        assert (event["ph"] == "X") == (launch.outcome is LaunchOutcome.RAN)
        assert event["args"]["outcome"] == launch.outcome
        assert event["args"].get("width") == launch.num_tokens
        assert event["args"].get("generation") == launch.generation
        assert event["args"].get("round") == launch.round_number
        assert event["cat"] in (
            (launch.stage,) if launch.label != LaunchKind.SETTLE else (Stage.SETTLE, Stage.ROLLBACK)
        )
        if launch.start_ms is not None and launch.end_ms is not None:
            # Pushed aside by no more than a nanosecond for each launch before it that took no time.
            assert event["ts"] == pytest.approx((launch.start_ms - recording.start_ms) * 1e3, abs=0.5)
            assert end_of(event) == pytest.approx((launch.end_ms - recording.start_ms) * 1e3, abs=0.5)
    rounds = trace.on("rounds")
    assert [event["args"]["round"] for event in rounds] == [span.number for span in recording.rounds]
    for event, span in zip(rounds, recording.rounds, strict=True):
        args = event["args"]
        assert (args["proposed"], args["accepted"]) == (span.num_proposed, span.num_accepted)
        assert (args.get("hit"), args["discarded"]) == (span.hit, span.num_discarded)
        assert (args.get("gamma"), args.get("lead")) == (span.gamma, span.lead)
        assert args.get("source") == ("half right" if span.num_proposed else None)
    commits = trace.on("host")
    assert [event["args"]["round"] for event in commits] == [span.number for span in recording.rounds]
    for commit, span in zip(commits, recording.rounds, strict=True):
        assert commit["ts"] == pytest.approx((span.verdict_ms - recording.start_ms) * 1e3, abs=0.5)


@pytest.mark.parametrize("kind", ["virtual", "pipelined", "sequential"])
async def test_arrows_lead_from_drafts_to_what_judged_them_and_from_verdicts_to_rollbacks(kind: str) -> None:
    recording = await recording_of(kind, seed=1)
    trace = traced(recording)
    launches = {launch.number: launch for launch in recording.launches}
    proposals: dict[int, set[int]] = {}
    for arrow in trace.arrows:
        origin, end = (launches[event["args"]["launch"]] for event in (arrow.origin, arrow.end))
        assert end.round_number is not None
        if arrow.name == "proposal":
            assert end.label in (LaunchKind.VERIFY, LaunchKind.JUDGE)
            # What was not over when the block was read is judged behind it.
            assert origin.end_ms is not None
            assert end.start_ms is not None
            assert origin.end_ms <= end.start_ms
            proposals.setdefault(end.round_number, set()).add(origin.number)
        else:
            assert (origin.label, end.label) == (LaunchKind.JUDGE, LaunchKind.SETTLE)
            assert origin.round_number == end.round_number
            span = recording.rounds[end.round_number]
            # A guess is right only behind a block that was accepted as a whole.
            refuted = not span.hit if span.hit is not None else span.num_accepted < span.num_proposed
            is_known = span.hit is not None or span.number < recording.rounds[-1].number
            assert arrow.name == ("rollback" if refuted and is_known else "verdict")
            assert arrow.category == arrow.end["cat"] == (Stage.ROLLBACK if arrow.name == "rollback" else Stage.SETTLE)
    assert proposals == {span.number: set(span.drafts) for span in recording.rounds if span.drafts}
    rolled_back = [arrow for arrow in trace.arrows if arrow.name == "rollback"]
    assert 0 < len(rolled_back) < len(recording.rounds)


async def test_counters_follow_the_rounds() -> None:
    recording = await recording_of("virtual")
    trace = traced(recording)
    proposing = [span for span in recording.rounds if span.num_proposed]
    times = [(span.verdict_ms - recording.start_ms) * 1e3 for span in recording.rounds]
    shares = trace.counter(f"acceptance over {ROLLING_ROUNDS} rounds")
    assert shares[0] == (
        pytest.approx(times[proposing[0].number]),
        pytest.approx(100 * proposing[0].num_accepted / proposing[0].num_proposed, abs=0.01),
    )
    last = recording.rounds[-ROLLING_ROUNDS:]
    num_proposed, num_accepted = sum(span.num_proposed for span in last), sum(span.num_accepted for span in last)
    assert shares[-1][1] == pytest.approx(100 * num_accepted / num_proposed, abs=0.01)


def recording_with(*launches: LaunchSpan, rounds: tuple[RoundSpan, ...] = ()) -> Recording:
    return Recording(launches=launches, rounds=rounds, start_ms=1000.0, end_ms=1010.0)


class TestByHand:
    def test_times_count_from_the_start_in_microseconds(self) -> None:
        trace = traced(recording_with(launch_span(0, "verify", start_ms=1001.5, end_ms=1003.25)))
        (event,) = trace.on("stream target")
        assert (event["ts"], event["dur"]) == (1500.0, 1750.0)

    def test_nothing_recorded_is_a_trace(self) -> None:
        trace = traced(recording_with())
        assert trace.events == []
        assert set(trace.tracks.values()) == {"rounds", "host"}

    def test_launches_without_length_lie_side_by_side(self) -> None:
        flat = [launch_span(number, "settle", start_ms=1001.0, end_ms=1001.0) for number in range(3)]
        trace = traced(recording_with(*flat, launch_span(3, "verify", start_ms=1001.0, end_ms=1001.5)))
        assert [event["ts"] for event in trace.on("stream target")] == [1000.0, 1000.001, 1000.002, 1000.003]
        assert end_of(trace.on("stream target")[-1]) == 1500.0

    def test_what_was_skipped_or_never_ended_is_an_instant_behind_what_stood_before_it(self) -> None:
        nothing = {"start_ms": None, "end_ms": None, "queued_ms": 1001.25}
        trace = traced(
            recording_with(
                launch_span(0, "draft"),
                launch_span(1, "draft", outcome=LaunchOutcome.SKIPPED, **nothing),
                launch_span(2, "verify", outcome=LaunchOutcome.UNKNOWN, **nothing),
                launch_span(3, "draft", start_ms=1002.0, end_ms=1004.0),
            )
        )
        instants = trace.on("stream target", "i")
        assert [event["name"] for event in instants] == ["draft, skipped", "verify, not seen to end"]
        assert [event["ts"] for event in instants] == [2000.0, 2000.0]
        assert instants[0]["args"]["queued_us"] == 1250.0

    def test_a_guess_that_was_drawn_beside_the_block_is_judged_behind_it(self) -> None:
        drafts = {"lane": "draft", "stream": "draft"}
        trace = traced(
            recording_with(
                launch_span(0, "draft", start_ms=1000.0, end_ms=1001.0, **drafts),
                launch_span(1, "verify", start_ms=1001.0, end_ms=1005.0),
                launch_span(2, "draft", start_ms=1001.0, end_ms=1003.0, **drafts),
                launch_span(3, "judge", start_ms=1005.0, end_ms=1005.5),
                rounds=(round_span(drafts=(0, 2, 17), num_proposed=1, hit=True, num_accepted=1),),
            )
        )
        assert [(arrow.origin["args"]["launch"], arrow.end["name"]) for arrow in trace.arrows] == [
            (0, "verify"),
            (2, "judge"),
        ]

    def test_an_arrow_against_time_is_left_out(self) -> None:
        trace = traced(
            recording_with(
                launch_span(0, "judge", start_ms=1004.0, end_ms=1005.0),
                launch_span(1, "settle", start_ms=1001.0, end_ms=1002.0, stream="draft", lane="draft"),
                rounds=(round_span(),),
            )
        )
        assert trace.arrows == []

    def test_rounds_and_launches_that_nobody_named_are_shown(self) -> None:
        trace = traced(
            recording_with(launch_span(0, ""), rounds=(round_span(source=5, num_proposed=1, gamma=1, lead=0),))
        )
        assert trace.on("stream target")[0]["name"] == "launch"
        assert trace.on("stream target")[0]["cat"] == Stage.OTHER
        assert "source" not in trace.on("rounds")[0]["args"]
        assert trace.counter("lead") == [(0.0, 0)]

    def test_gamma_and_lead_are_0_while_nothing_is_proposed(self) -> None:
        chosen = {"num_proposed": 4, "gamma": 4, "lead": 3}
        rounds = (
            round_span(0),
            round_span(1, start_ms=1001.0, **chosen),
            # What was chosen came too late, or nobody was asked.
            round_span(2, start_ms=1002.0, gamma=4, lead=3),
            round_span(3, start_ms=1003.0, **chosen),
            round_span(4, start_ms=1004.0),
            # Proposed by whoever was asked before the recording.
            round_span(5, start_ms=1005.0, num_proposed=2),
        )
        trace = traced(recording_with(rounds=rounds))
        assert [value for _, value in trace.counter("gamma")] == [0, 4, 0, 4, 0]
        assert [value for _, value in trace.counter("lead")] == [0, 3, 0, 3, 0]
        assert [at_us for at_us, _ in trace.counter("gamma")] == [0.0, 1000.0, 2000.0, 3000.0, 4000.0]

    def test_lookahead_that_was_thrown_away_says_so(self) -> None:
        hand = HandRecording()
        used = hand.draft(0, 4)
        hand.round(5, 15, verify=(5, 14), drafts=(used,), proposed=1)
        ahead = hand.draft(16, 20)
        # It read, and wrote nothing that could be thrown away.
        hand.draft(20, 21, tokens=0)
        hand.launch("draft", LaunchKind.DRAFT, None, outcome=LaunchOutcome.SKIPPED)
        trace = traced(hand.build())
        events = [event for phase in "Xi" for event in trace.on("stream draft", phase)]
        assert {
            event["args"]["launch"]: event["args"]["discarded"] for event in events if "discarded" in event["args"]
        } == {ahead: True}

    def test_a_settle_is_a_rollback_only_where_something_was_refuted(self) -> None:
        hand = HandRecording()
        for proposed, accepted, hit in (
            (2, 2, True),
            (2, 2, False),
            (2, 1, None),
            (2, 2, None),
            (0, 0, None),
            (3, 1, None),
        ):
            start_ms = 10.0 * len(hand.rounds)
            hand.round(
                start_ms, start_ms + 9, verify=(start_ms, start_ms + 7), settle=(start_ms + 8, start_ms + 9),
                proposed=proposed, accepted=accepted, hit=hit,
            )  # fmt: skip
        trace = traced(hand.build())
        settles = trace.on("stream draft")
        # The last block was cut where the answer ended, as far as anybody knows.
        stages = ["settle", "rollback", "rollback", "settle", "settle", "settle"]
        assert [event["cat"] for event in settles] == stages
        assert [event["cname"] == Colour.RED for event in settles] == [stage == "rollback" for stage in stages]
        assert [arrow.name for arrow in trace.arrows] == [stage.replace("settle", "verdict") for stage in stages]

    def test_what_failed_says_so(self) -> None:
        nothing = {"start_ms": None, "end_ms": None}
        trace = traced(
            recording_with(
                launch_span(0, "verify", outcome=LaunchOutcome.FAILED, end_ms=1003.0),
                launch_span(1, "judge", outcome=LaunchOutcome.FAILED, **nothing),
            )
        )
        (shown,) = trace.on("stream target")
        assert (shown["name"], shown["dur"], shown["cname"]) == ("verify, failed", 2000.0, "black")
        assert [event["name"] for event in trace.on("stream target", "i")] == ["judge, failed"]

    def test_readings_are_counters_with_units(self) -> None:
        reading = CounterReading(at_ms=1002.0, values={Counter.PROCESS_MEMORY: 12.5, Counter.GPU_BUSY: 37.0})
        trace = traced(recording_with(), readings=CounterReadings(readings=[reading]))
        assert trace.counter("process memory") == [(2000.0, 12.5)]
        assert {key for event in trace.events for key in event["args"]} == {"MiB", "%"}


def test_a_file_is_compressed_or_not_and_the_same_each_time(tmp_path: Path) -> None:
    events = chrome_events(recording_with(launch_span(0, "verify")), process_name="größer ✓")
    about = {"prompt": "naïve 日本語 🙂"}
    plain, packed = (encode_trace(events, about, compressed=compressed) for compressed in (False, True))
    assert gzip.decompress(packed) == plain
    assert encode_trace(events, about, compressed=True) == packed
    (tmp_path / "trace.json.gz").write_bytes(packed)
    trace = read_trace(tmp_path / "trace.json.gz")
    assert (trace.process_name, trace.about["prompt"]) == ("größer ✓", "naïve 日本語 🙂")


class TestTheReader:
    """What the strict reader is for: each of these is what a viewer would drop."""

    def events(self) -> ChromeEvents:
        return ChromeEvents("pair")

    def check(self, events: list[dict[str, Any]]) -> None:
        check_trace(json.loads(encode_trace(events, {}, compressed=False)))

    def two_slices(self) -> list[dict[str, Any]]:
        events = self.events()
        track = events.add_track("one")
        first, second = (
            events.add_slice(track, "work", start, start + 9, category="c", colour=Colour.RED, args={})
            for start in (0, 10)
        )
        events.add_flow("arrow", first, second, category="c")
        return events.events()

    def test_what_is_in_order_passes(self) -> None:
        self.check(self.two_slices())

    @pytest.mark.parametrize(
        ("phase", "change", "fault"),
        [
            ("X", {"dur": 0.02}, "begins before"),
            ("X", {"dur": 0}, "no arrow can be bound"),
            ("X", {"cname": "mauve"}, "does not open"),
            ("X", {"tid": 99}, "without a name"),
            ("X", {"ts": "0"}, "another type"),
            ("X", {"args": {"a": None}}, "left out"),
            ("s", {"ts": 0.009}, "outside of"),
            ("f", {"bp": "s"}, "next slice"),
            ("f", {"id": 7}, "7"),
            ("f", {"extra": 1}, "too many"),
        ],
    )
    def test_what_is_not_does_not(self, phase: str, change: dict[str, Any], fault: str) -> None:
        events = self.two_slices()
        next(event for event in events if event["ph"] == phase).update(change)
        with pytest.raises((AssertionError, KeyError), match=fault):
            self.check(events)
