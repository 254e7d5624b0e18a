"""The virtual device with a clock: durations, contention, the host's own time, and the timeline."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping

import pytest

from scheduler import (
    CostModel,
    Lineage,
    StaleLaunchError,
    StreamDeadlock,
    StreamRace,
    TimelineEntry,
    VirtualDevice,
    summarize_timeline,
)
from tests.support.stream_contract import Run, fail
from tests.support.virtual_programs import run_relay


def by_label(stream: str, label: str, value: object) -> float:
    """A launch called "verify 2.5" takes 2.5 ms."""
    return float(label.split()[-1])


def costs(
    contention: Mapping[str, float] | None = None, *, host_latency_ms: float = 0.0, call_ms: float = 0.0
) -> CostModel:
    return CostModel(
        duration_ms=by_label, contention=contention or {}, host_latency_ms=host_latency_ms, call_ms=call_ms
    )


def spans(device: VirtualDevice) -> dict[str, tuple[float, float]]:
    """Start and end of every launch, by label."""
    return {entry.label: (entry.start_ms, entry.end_ms) for entry in device.timeline}


class TestDurations:
    def test_add_up_on_a_stream_and_overlap_on_two(self) -> None:
        device = VirtualDevice(costs=costs())
        left, right = device.stream("left"), device.stream("right")
        for label in ("a 3", "b 4"):
            left.launch(int, label=label)
        right.launch(int, label="c 5")
        left.close()
        right.close()
        assert spans(device) == {"a 3": (0, 3), "b 4": (3, 7), "c 5": (0, 5)}
        assert [entry.label for entry in device.timeline] == ["a 3", "c 5", "b 4"]
        assert device.now_ms == 7

    def test_hold_back_what_waits(self) -> None:
        device = VirtualDevice(costs=costs())
        draft, target = device.stream("draft"), device.stream("target")
        draft.launch(int, label="propose 3")
        target.wait(draft.record())
        target.launch(int, label="verify 10")
        draft.launch(int, label="ahead 4")
        draft.wait(target.record())
        draft.launch(int, label="roll back 1")
        draft.close()
        assert spans(device) == {"propose 3": (0, 3), "ahead 4": (3, 7), "verify 10": (3, 13), "roll back 1": (13, 14)}

    def test_are_told_the_stream_the_label_and_the_value(self) -> None:
        asked: list[tuple[str, str, object]] = []

        def duration_ms(stream: str, label: str, value: object) -> float:
            asked.append((stream, label, value))
            return 2.0

        device = VirtualDevice(costs=CostModel(duration_ms=duration_ms))
        stream = device.stream("main")
        stream.launch(lambda: 7, label="fine")
        stream.launch(fail(), label="broken")
        stream.launch(lambda: 8, label="behind it")
        with pytest.raises(LookupError):
            stream.record().synchronize()
        assert asked == [("main", "fine", 7), ("main", "broken", None)]
        assert [(entry.start_ms, entry.end_ms, entry.skipped) for entry in device.timeline] == [
            (0, 2, False),
            (2, 4, False),
            (4, 4, True),
        ]

    def test_of_stale_work_are_nothing(self) -> None:
        device = VirtualDevice(costs=costs())
        stream, lineage = device.stream("main"), Lineage()
        lineage.retire(lineage.begin())
        old, new = lineage.begin(), lineage.begin()
        lineage.retire(old)
        stale = stream.launch(int, label="stale 5", generation=old)
        stream.launch(int, label="fresh 3", generation=new)
        stream.launch(int, label="any 1")
        stream.close()
        assert [
            (entry.label, entry.generation, entry.skipped, entry.start_ms, entry.end_ms) for entry in device.timeline
        ] == [("stale 5", 1, True, 0, 0), ("fresh 3", 2, False, 0, 3), ("any 1", None, False, 3, 4)]
        with pytest.raises(StaleLaunchError):
            stale.result()

    @pytest.mark.parametrize("duration_ms", [-1.0, math.nan, math.inf])
    def test_must_be_durations(self, duration_ms: float) -> None:
        device = VirtualDevice(costs=CostModel(duration_ms=lambda stream, label, value: duration_ms))
        stream = device.stream("main")
        for _ in range(2):
            with pytest.raises(ValueError, match=r"duration_ms of 'int' \(launch 1 on 'main'\) must be finite"):
                stream.launch(int)

    def test_change_no_values(self) -> None:
        timed = CostModel(duration_ms=lambda stream, label, value: 3.0 if stream == "left" else 2.0)
        expected = run_relay(VirtualDevice()).values
        assert run_relay(VirtualDevice(costs=timed)).values == expected

    def test_are_none_without_a_cost_model(self) -> None:
        device = VirtualDevice()
        run_relay(device)
        assert device.now_ms == 0.0
        assert device.timeline == ()


class TestContention:
    def test_a_worked_example(self) -> None:
        """Two lanes: the left is twice as slow beside the other, the right half as slow again.

        0 to 9: both run; "b 6" takes 6 * 1.5 = 9, of "a 10" 9 / 2 = 4.5 are done.
        9 to 9.5: the host is told, "a 10" runs alone: 5 are done.
        9.5 to 15.5: "c 4" takes 4 * 1.5 = 6, of "a 10" another 3 are done, which makes 8.
        15.5 to 17.5: the last 2 run alone.
        """
        device = VirtualDevice(costs=costs({"left": 2.0, "right": 1.5}, host_latency_ms=0.5))
        left, right = device.stream("left"), device.stream("right")
        left.launch(int, label="a 10")
        right.launch(int, label="b 6")
        right.record().synchronize()
        assert device.now_ms == 9.5
        right.launch(int, label="c 4")
        left.record().synchronize()
        assert device.now_ms == 18.0
        assert spans(device) == {"a 10": (0, 17.5), "b 6": (0, 9), "c 4": (9.5, 15.5)}
        summary = summarize_timeline(device.timeline)
        assert summary.busy_ms == {"left": 17.5, "right": 15.0}
        assert (summary.span_ms, summary.overlap_ms, summary.idle_ms) == (17.5, 15.0, 0.0)

    def test_of_three_streams(self) -> None:
        """A stream is slowed down by any number of others alike; one without a factor by none."""
        device = VirtualDevice(costs=costs({"first": 2.0, "second": 4.0}))
        first, second, third = (device.stream(name) for name in ("first", "second", "third"))
        first.launch(int, label="a 4")
        second.launch(int, label="b 4")
        third.launch(int, label="c 6")
        for stream in (first, second, third):
            stream.close()
        # At 8 the second has done 2 of 4 and is left alone.
        assert spans(device) == {"a 4": (0, 8), "b 4": (0, 10), "c 6": (0, 6)}

    def test_work_without_duration_slows_nobody_down(self) -> None:
        device = VirtualDevice(costs=costs({"left": 2.0, "right": 2.0}))
        left, right = device.stream("left"), device.stream("right")
        left.launch(int, label="a 4")
        for index in range(5):
            right.launch(int, label=f"b{index} 0")
        left.close()
        right.close()
        assert spans(device)["a 4"] == (0, 4)

    def test_what_ends_at_once_leaves_no_crumbs(self) -> None:
        """Three times a tenth is more than three tenths, in binary fractions."""
        device = VirtualDevice(costs=costs())
        left, right = device.stream("left"), device.stream("right")
        for label in ("a 0.1", "b 0.1", "c 0.1"):
            left.launch(int, label=label)
        right.launch(int, label="d 0.3")
        left.close()
        right.close()
        assert spans(device)["c 0.1"][1] == spans(device)["d 0.3"][1]

    def test_many_uneven_pieces_add_up(self) -> None:
        device = VirtualDevice(costs=costs({"left": 1.1, "right": 1.3}))
        left, right = device.stream("left"), device.stream("right")
        for _ in range(100):
            left.launch(int, label="a 1.3")
            right.launch(int, label="b 1.1")
        left.close()
        right.close()
        assert device.now_ms == pytest.approx(143.0)
        assert summarize_timeline(device.timeline).overlap_ms == pytest.approx(143.0)


class TestHost:
    def test_pays_for_its_calls(self) -> None:
        device = VirtualDevice(costs=costs(call_ms=0.25))
        stream = device.stream("main")
        stream.launch(int, label="a 1")
        stream.launch(int, label="b 1")
        event = stream.record()
        assert device.now_ms == 0.75
        assert not event.done()
        assert device.now_ms == 1.0
        event.synchronize()
        assert spans(device) == {"a 1": (0.25, 1.25), "b 1": (1.25, 2.25)}
        assert device.now_ms == 2.25

    def test_sees_an_event_when_its_time_has_come(self) -> None:
        device = VirtualDevice(costs=costs(call_ms=0.5))
        stream = device.stream("main")
        stream.launch(int, label="a 2")
        event = stream.record()
        seen = []
        while not event.done():
            seen.append(device.now_ms)
        assert seen == [1.5, 2.0]
        assert device.now_ms == 2.5

    def test_is_late_by_its_latency_while_streams_go_on(self) -> None:
        device = VirtualDevice(costs=costs(host_latency_ms=1.5))
        stream = device.stream("main")
        stream.launch(int, label="a 2")
        event = stream.record()
        stream.launch(int, label="b 1")
        stream.launch(int, label="c 1")
        event.synchronize()
        assert device.now_ms == 3.5
        assert list(spans(device)) == ["a 2", "b 1"]
        # Two ends of it are waited for no longer: it has passed, and the host has been told.
        event.synchronize()
        assert device.now_ms == 3.5

    def test_a_round_of_decoding(self, run: Run) -> None:
        """Propose, verify, roll back, twice, worked out by hand.

        Calls at 0.1, 0.2, ... The first round enqueues 7 things by 0.7: propose from 0.1 to 3.1, verify 3.1 to 13.1.
        The host goes on at 13.6, and enqueues the second round from 13.7 on.
        """
        device = VirtualDevice(costs=costs(host_latency_ms=0.5, call_ms=0.1))
        draft, target = device.stream("draft"), device.stream("target")

        async def main() -> None:
            for index in range(2):
                draft.launch(int, label=f"propose{index} 3", writes=("proposal",))
                target.wait(draft.record())
                target.launch(int, label=f"verify{index} 10", reads=("proposal",), writes=("verdict",))
                verified = target.record()
                draft.wait(verified)
                draft.launch(int, label=f"roll back{index} 1", reads=("verdict",))
                await verified

        run(main())
        expected = {
            "propose0 3": (0.1, 3.1),
            "verify0 10": (3.1, 13.1),
            "roll back0 1": (13.1, 14.1),
            "propose1 3": (14.1, 17.1),
            "verify1 10": (17.1, 27.1),
        }
        assert {label: pytest.approx(span) for label, span in spans(device).items()} == expected
        assert device.now_ms == pytest.approx(27.6)

    def test_each_of_its_tasks_goes_on_in_time(self, run: Run) -> None:
        device = VirtualDevice(costs=costs())
        left, right = device.stream("left"), device.stream("right")
        seen: dict[str, float] = {}

        async def main() -> None:
            left.launch(int, label="a 5")
            right.launch(int, label="b 7")
            events = {"left": left.record(), "right": right.record()}

            async def wait(name: str) -> None:
                await events[name]
                seen[name] = device.now_ms
                if name == "left":
                    left.launch(int, label="at once 4")

            await asyncio.gather(wait("left"), wait("right"))
            await left.record()

        run(main())
        assert seen == {"left": 5, "right": 7}
        assert spans(device)["at once 4"] == (5, 9)

    def test_time_stands_still_while_tasks_hand_on_what_they_know(self, run: Run) -> None:
        device = VirtualDevice(costs=costs())
        left, right = device.stream("left"), device.stream("right")

        async def main() -> None:
            left.launch(int, label="a 5")
            right.launch(int, label="b 7")
            waiting = [asyncio.ensure_future(stream.record()) for stream in (left, right)]
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            assert len(done) == 1
            assert device.now_ms == 5
            await waiting[1]

        run(main())

    def test_closing_takes_the_time_that_is_left(self) -> None:
        device = VirtualDevice(costs=costs())
        stream = device.stream("main")
        stream.launch(int, label="a 5")
        stream.close()
        assert device.now_ms == 5


class TestOrder:
    def test_of_what_comes_at_once_is_the_seeds(self) -> None:
        def order(device: VirtualDevice) -> str:
            ran: list[str] = []
            streams = [device.stream(name) for name in "lr"]
            gates = [stream.hold() for stream in streams]
            for stream in streams:
                for _ in range(4):
                    stream.launch(lambda name=stream.name: ran.append(name), label="step 1")
            for gate in gates:
                gate.release()
            for stream in streams:
                stream.close()
            return "".join(ran)

        orders = {order(VirtualDevice(seed, costs=costs())) for seed in range(40)}
        assert len(orders) > 4
        for each in orders:
            # Four times both at once: no step of one before the other's last.
            assert all(set(each[index : index + 2]) == {"l", "r"} for index in range(0, 8, 2))

    def test_can_be_replayed(self) -> None:
        timed = CostModel(duration_ms=lambda stream, label, value: 1.0)
        device = VirtualDevice(3, costs=timed)
        outcome = run_relay(device)
        again = VirtualDevice(choices=device.trace, costs=timed)
        assert run_relay(again) == outcome
        assert again.timeline == device.timeline

    def test_races_are_found_however_far_apart(self) -> None:
        device = VirtualDevice(costs=costs())
        left, right = device.stream("left"), device.stream("right")
        left.launch(int, label="a 1", writes=("cache",))
        right.launch(int, label="b 1000")
        right.launch(int, label="c 1", writes=("cache",))
        with pytest.raises(StreamRace, match="'cache'"):
            right.close()

    def test_deadlocks_are_found_when_nothing_runs_any_more(self, run: Run) -> None:
        async def main() -> None:
            device = VirtualDevice(costs=costs())
            left, right = device.stream("left"), device.stream("right")
            left.launch(int, label="a 1000")
            right.wait(device.event("lost"))
            with pytest.raises(StreamDeadlock, match="'right' waits for event 'lost'"):
                await right.record()
            assert device.now_ms == 1000

        run(main())


class TestCostModel:
    @pytest.mark.parametrize(
        ("options", "match"),
        [
            ({"contention": {"draft": 0.5}}, r"contention\['draft'\] must lie in \[1, 1000\], got 0.5"),
            ({"host_latency_ms": -1.0}, "host_latency_ms must lie in"),
            ({"call_ms": math.nan}, "call_ms must lie in"),
        ],
    )
    def test_refuses_impossible_numbers(self, options: dict[str, object], match: str) -> None:
        with pytest.raises(ValueError, match=match):
            CostModel(duration_ms=by_label, **options)


def entry(stream: str, start_ms: float, end_ms: float) -> TimelineEntry:
    return TimelineEntry(stream=stream, label="work", start_ms=start_ms, end_ms=end_ms)


class TestSummary:
    def test_adds_up(self) -> None:
        entries = [entry("a", 1, 4), entry("b", 3, 6), entry("a", 8, 9), entry("b", 8.5, 10), entry("c", 8.75, 9)]
        summary = summarize_timeline(entries)
        assert summary.span_ms == 9
        assert summary.busy_ms == {"a": 4, "b": 4.5, "c": 0.25}
        assert summary.overlap_ms == 1.5
        assert summary.idle_ms == 2

    def test_launches_back_to_back_do_not_overlap(self) -> None:
        summary = summarize_timeline([entry("a", 0, 1), entry("b", 1, 2), entry("b", 1, 1)])
        assert (summary.overlap_ms, summary.idle_ms) == (0, 0)

    def test_of_nothing_is_nothing(self) -> None:
        summary = summarize_timeline([])
        assert (summary.span_ms, summary.busy_ms, summary.overlap_ms, summary.idle_ms) == (0, {}, 0, 0)

    def test_refuses_an_end_before_its_start(self) -> None:
        with pytest.raises(ValueError, match="'work' on 'a' ends at 1 ms, before it starts"):
            summarize_timeline([entry("a", 2, 1)])
