"""Races on the virtual device: found in every order, named in the program's, and not to be swallowed."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import weakref
from collections.abc import Callable, Iterator, Sequence

import pytest

from scheduler import Lineage, StreamRace, VirtualDevice, VirtualEvent
from tests.support.stream_contract import Run, fail, finished
from tests.support.virtual_programs import RandomProgram

NUM_SEEDS = 50
SEEDS = range(NUM_SEEDS)
READ = {"reads": ("cache",)}
WRITE = {"writes": ("cache",)}


class Rig:
    """A device with three streams."""

    def __init__(self, seed: int, trace: Sequence[tuple[int, int]] | None = None) -> None:
        self.device = VirtualDevice(seed, choices=trace)
        self.draft, self.target, self.third = (self.device.stream(name) for name in ("draft", "target", "third"))

    def close(self) -> None:
        for stream in (self.draft, self.target, self.third):
            stream.close()


def rigs() -> Iterator[Rig]:
    for seed in SEEDS:
        yield Rig(seed)


def must_race(program: Callable[[Rig], object], match: str) -> None:
    """In every order."""

    def whole(rig: Rig) -> None:
        program(rig)
        rig.close()

    for rig in rigs():
        with pytest.raises(StreamRace, match=match):
            whole(rig)
        assert isinstance(rig.device.failure, StreamRace)


def must_not_race(program: Callable[[Rig], object]) -> None:
    """In any order."""
    for rig in rigs():
        program(rig)
        rig.close()
        assert rig.device.failure is None


class TestPairs:
    @pytest.mark.parametrize(
        ("first", "second", "verbs"),
        [
            (WRITE, WRITE, "writes it, .* writes it"),
            (WRITE, READ, "writes it, .* reads it"),
            (READ, WRITE, "reads it, .* writes it"),
            ({"reads": ("cache",), "writes": ("cache",)}, READ, "writes it, .* reads it"),
        ],
    )
    def test_with_a_write_race(self, first: dict[str, tuple[str]], second: dict[str, tuple[str]], verbs: str) -> None:
        def program(rig: Rig) -> None:
            rig.draft.launch(int, **first)
            rig.target.launch(int, **second)

        must_race(program, verbs)

    def test_of_reads_do_not(self) -> None:
        def program(rig: Rig) -> None:
            for stream in (rig.draft, rig.target, rig.third):
                stream.launch(int, **READ)

        must_not_race(program)

    def test_of_different_buffers_do_not(self) -> None:
        def program(rig: Rig) -> None:
            rig.draft.launch(int, writes=("draft.cache",))
            rig.target.launch(int, writes=("target.cache",))

        must_not_race(program)

    def test_on_one_stream_do_not(self) -> None:
        def program(rig: Rig) -> None:
            for access in (WRITE, READ, WRITE, WRITE, READ):
                rig.draft.launch(int, **access)

        must_not_race(program)

    @pytest.mark.parametrize("reader", ["draft", "third"])
    def test_are_checked_against_every_stream_that_has_read(self, reader: str) -> None:
        """The write is ordered behind one of two reads only."""

        def program(rig: Rig) -> None:
            rig.draft.launch(int, **READ)
            rig.third.launch(int, **READ)
            other = rig.third if reader == "draft" else rig.draft
            rig.target.wait(other.record())
            rig.target.launch(int, **WRITE)

        must_race(program, f"on '{reader}'")

    def test_are_checked_beyond_a_later_read_of_the_same_stream(self) -> None:
        def program(rig: Rig) -> None:
            rig.draft.launch(int, **READ)
            rig.target.wait(rig.draft.record())
            rig.draft.launch(int, label="again", **READ)
            rig.target.launch(int, **WRITE)

        must_race(program, "'again'")


class TestEdges:
    def test_a_wait_orders(self) -> None:
        def program(rig: Rig) -> None:
            rig.draft.launch(int, **WRITE)
            rig.target.wait(rig.draft.record())
            rig.target.launch(int, **WRITE)
            rig.draft.wait(rig.target.record())
            rig.draft.launch(int, **READ)

        must_not_race(program)

    def test_the_way_back_is_needed_too(self) -> None:
        def program(rig: Rig) -> None:
            rig.draft.launch(int, label="propose", **WRITE)
            rig.target.wait(rig.draft.record())
            rig.target.launch(int, label="verify", **READ)
            rig.draft.launch(int, label="propose again", **WRITE)

        must_race(program, "'verify' .* reads it, 'propose again' .* writes it")

    def test_an_event_recorded_too_early_does_not_order(self) -> None:
        def program(rig: Rig) -> None:
            event = rig.draft.record()
            rig.draft.launch(int, **WRITE)
            rig.target.wait(event)
            rig.target.launch(int, **WRITE)

        must_race(program, "'cache'")

    def test_a_wait_behind_the_launch_does_not_order(self) -> None:
        def program(rig: Rig) -> None:
            rig.draft.launch(int, **WRITE)
            rig.target.launch(int, **WRITE)
            rig.target.wait(rig.draft.record())

        must_race(program, "'cache'")

    def test_a_wait_on_another_stream_does_not_order(self) -> None:
        def program(rig: Rig) -> None:
            rig.draft.launch(int, **WRITE)
            rig.third.wait(rig.draft.record())
            rig.target.launch(int, **WRITE)

        must_race(program, "'cache'")

    def test_order_passes_on_over_three_streams(self) -> None:
        def program(rig: Rig) -> None:
            rig.draft.launch(int, **WRITE)
            rig.third.wait(rig.draft.record())
            rig.target.wait(rig.third.record())
            rig.target.launch(int, **WRITE)

        must_not_race(program)

    def test_order_does_not_pass_on_through_an_event_recorded_before(self) -> None:
        def program(rig: Rig) -> None:
            rig.draft.launch(int, **WRITE)
            early = rig.third.record()
            rig.third.wait(rig.draft.record())
            rig.target.wait(early)
            rig.target.launch(int, **WRITE)

        must_race(program, "'cache'")

    def test_what_the_host_has_waited_for_is_ordered(self) -> None:
        def program(rig: Rig) -> None:
            rig.draft.launch(int, **WRITE)
            rig.draft.record().synchronize()
            rig.target.launch(int, **WRITE)

        must_not_race(program)

    def test_what_the_host_has_awaited_is_ordered(self, run: Run) -> None:
        async def main() -> None:
            for rig in rigs():
                rig.draft.launch(int, **WRITE)
                await rig.draft.record()
                rig.target.launch(int, **WRITE)
                await rig.target.record()

        run(main())

    def test_what_the_host_has_seen_done_is_ordered(self) -> None:
        def program(rig: Rig) -> None:
            rig.draft.launch(int, **WRITE)
            event = rig.draft.record()
            while not event.done():
                pass
            rig.target.launch(int, **WRITE)

        must_not_race(program)

    def test_a_glance_that_finds_nothing_does_not_order(self) -> None:
        def program(rig: Rig) -> bool:
            rig.draft.launch(int, **WRITE)
            found = rig.draft.record().done()
            rig.target.launch(int, **WRITE)
            rig.close()
            return found

        outcomes = set()
        for rig in rigs():
            try:
                outcomes.add((program(rig), "fine"))
            except StreamRace:
                outcomes.add((False, "race"))
        assert outcomes == {(True, "fine"), (False, "race")}

    def test_what_the_host_awaits_later_orders_nothing(self) -> None:
        def program(rig: Rig) -> None:
            rig.draft.launch(int, **WRITE)
            rig.target.launch(int, **WRITE)
            rig.draft.record().synchronize()

        must_race(program, "'cache'")

    def test_the_host_passes_on_what_an_event_knows(self) -> None:
        """Of the third stream it knows nothing but what the draft had waited for."""

        def program(rig: Rig) -> None:
            rig.third.launch(int, **WRITE)
            rig.draft.wait(rig.third.record())
            rig.draft.record().synchronize()
            rig.target.launch(int, **WRITE)

        must_not_race(program)

    def test_closing_a_stream_orders_what_comes_behind(self) -> None:
        def program(rig: Rig) -> None:
            rig.draft.launch(int, **WRITE)
            rig.draft.close()
            rig.target.launch(int, **WRITE)

        must_not_race(program)

    def test_an_event_with_an_error_orders_too(self) -> None:
        def program(rig: Rig) -> None:
            rig.draft.launch(fail(), **WRITE)
            with pytest.raises(LookupError):
                rig.draft.record().synchronize()
            rig.target.launch(int, **WRITE)

        must_not_race(program)

    def test_random_programs_are_judged_as_by_walking_them(self) -> None:
        num_races = 0
        for number in range(400):
            program = RandomProgram(number)
            num_races += program.has_race
            for seed in range(3):
                device = VirtualDevice(seed)
                with contextlib.suppress(StreamRace):
                    program.run(device)
                assert (device.failure is not None) is program.has_race, (number, seed)
        assert 100 < num_races < 300


class TestLaunchesThatDoNotRun:
    def test_skipped_ones_touch_nothing(self) -> None:
        def program(rig: Rig) -> None:
            lineage = Lineage()
            generation = lineage.begin()
            lineage.retire(generation)
            rig.draft.launch(int, generation=generation, **WRITE)
            rig.target.launch(int, **WRITE)

        must_not_race(program)

    def test_those_behind_an_error_touch_nothing(self) -> None:
        def program(rig: Rig) -> None:
            rig.draft.launch(fail())
            rig.draft.launch(int, **WRITE)
            rig.target.launch(int, **WRITE)

        must_not_race(program)

    def test_one_that_fails_has_touched_its_buffers(self) -> None:
        def program(rig: Rig) -> None:
            rig.draft.launch(fail(), **WRITE)
            rig.target.launch(int, **WRITE)

        must_race(program, "'cache'")


class TestResults:
    def test_read_by_work_without_an_edge_are_a_race(self) -> None:
        def program(rig: Rig) -> None:
            first = rig.draft.launch(lambda: 1, label="propose")
            rig.target.launch(first.result, label="verify")

        must_race(
            program,
            r"race on the result of 'propose': 'propose' \(launch 1 on 'draft'\) makes it, "
            r"'verify' \(launch 1 on 'target'\) reads it, .* 'target' must wait for an event recorded on 'draft'",
        )

    def test_read_by_work_behind_an_event_are_fine(self) -> None:
        for rig in rigs():
            first = rig.draft.launch(lambda: 1)
            rig.target.wait(rig.draft.record())
            second = rig.target.launch(lambda first=first: first.result() + 1)
            rig.target.record().synchronize()
            assert second.result() == 2

    def test_read_by_work_behind_an_event_recorded_too_early_are_a_race(self) -> None:
        def program(rig: Rig) -> None:
            event = rig.draft.record()
            first = rig.draft.launch(lambda: 1, label="propose")
            rig.target.wait(event)
            rig.target.launch(first.result, label="verify")

        must_race(program, "race on the result of 'propose'")

    def test_read_by_the_work_itself_are_not_there_yet(self) -> None:
        for rig in rigs():
            launches = []
            gate = rig.draft.hold()
            launches.append(rig.draft.launch(lambda launches=launches: launches[0].result()))
            gate.release()
            with pytest.raises(RuntimeError, match="has not run yet"):
                rig.draft.record().synchronize()
            assert rig.device.failure is None

    def test_read_by_a_host_that_cannot_know_are_an_error_even_if_they_are_there(self) -> None:
        has_run = set()
        for rig in rigs():
            ran: list[int] = []
            launch = rig.draft.launch(lambda ran=ran: ran.append(1))
            rig.draft.record()
            has_run.add(bool(ran))
            with pytest.raises(RuntimeError, match=r"'<lambda>' \(launch 1 on 'draft'\) has not run yet"):
                launch.result()
            assert not launch.skipped
        assert has_run == {True, False}

    def test_read_by_a_host_that_has_seen_the_event_are_fine(self) -> None:
        for rig in rigs():
            launch = rig.draft.launch(lambda: 1)
            event = rig.draft.record()
            while not event.done():
                pass
            assert launch.result() == 1

    def test_whether_work_was_skipped_is_known_no_earlier(self) -> None:
        for rig in rigs():
            lineage = Lineage()
            generation = lineage.begin()
            lineage.retire(generation)
            launch = rig.draft.launch(int, generation=generation)
            event = rig.draft.record()
            assert not launch.skipped
            event.synchronize()
            assert launch.skipped


def plant_race(rig: Rig) -> tuple[VirtualEvent, VirtualEvent]:
    """Two launches that race and have not begun; returns the events behind them."""
    gates = [stream.hold() for stream in (rig.draft, rig.target)]
    rig.target.launch(int, label="verify 3", reads=("ring[0]",))
    rig.draft.launch(int)
    rig.draft.launch(int, label="propose 4", writes=("ring[0]",))
    events = rig.draft.record(), rig.target.record()
    for gate in gates:
        gate.release()
    return events


class TestFailure:
    def test_says_all_there_is_to_say(self) -> None:
        for rig in rigs():
            plant_race(rig)
            with pytest.raises(StreamRace) as caught:
                rig.close()
            assert str(caught.value) == (
                "race on 'ring[0]': 'verify 3' (launch 1 on 'target') reads it, 'propose 4' (launch 2 on 'draft') "
                "writes it, and nothing orders the two: 'draft' must wait for an event recorded on 'target' behind "
                "'verify 3', or the host await one before it launches 'propose 4' "
                f"(found with seed {rig.device.seed}, after {rig.device.num_steps} steps)"
            )
            assert caught.value.seed == rig.device.seed
            assert caught.value.num_steps == rig.device.num_steps

    def test_comes_again_in_a_replay(self) -> None:
        for rig in rigs():
            plant_race(rig)
            with pytest.raises(StreamRace) as caught:
                rig.close()
            again = Rig(0, rig.device.trace)
            plant_race(again)
            with pytest.raises(StreamRace) as once_more:
                again.close()
            assert str(once_more.value) == str(caught.value).replace(f"with seed {rig.device.seed}", "in a replay")
            assert once_more.value.seed is None

    @pytest.mark.parametrize(
        "use",
        [
            lambda rig, event: rig.third.launch(int),
            lambda rig, event: rig.third.record(),
            lambda rig, event: rig.third.wait(event),
            lambda rig, event: rig.third.hold(),
            lambda rig, event: event.synchronize(),
            lambda rig, event: asyncio.run(finished(event)),
        ],
        ids=["launch", "record", "wait", "hold", "synchronize", "await"],
    )
    def test_is_raised_for_ever(self, use: Callable[[Rig, VirtualEvent], object]) -> None:
        for rig in rigs():
            passed = rig.third.record()
            passed.synchronize()
            plant_race(rig)
            with pytest.raises(StreamRace) as first:
                rig.close()
            for _ in range(2):
                with pytest.raises(StreamRace) as again:
                    use(rig, passed)
                assert again.value is first.value is rig.device.failure

    def test_ends_polling_and_is_raised_by_the_next_call(self) -> None:
        for rig in rigs():
            events = plant_race(rig)
            # Looking raises nothing, and does not go on for ever.
            while not all(event.done() for event in events):
                pass
            with pytest.raises(StreamRace):
                rig.third.launch(int)

    def test_that_nobody_has_heard_of_is_raised_at_the_end(self) -> None:
        for rig in rigs():
            events = plant_race(rig)
            while not all(event.done() for event in events):
                pass
            with pytest.raises(StreamRace):
                rig.third.close()
            # Said once, it does not come in the way of whatever else goes wrong.
            rig.close()

    def test_is_not_an_error_of_the_launch_that_can_be_left_lying(self, run: Run) -> None:
        async def main() -> None:
            for rig in rigs():
                gates = [stream.hold() for stream in (rig.draft, rig.target)]
                first = rig.draft.launch(lambda: 1)
                rig.target.launch(first.result)
                events = rig.draft.record(), rig.target.record()
                for gate in gates:
                    gate.release()
                await asyncio.gather(*events, return_exceptions=True)
                with pytest.raises(StreamRace):
                    rig.third.launch(int)

        run(main())

    def test_reaches_every_task_that_still_waits(self, run: Run) -> None:
        async def main() -> None:
            for rig in rigs():
                events = plant_race(rig)
                late = [rig.device.event("never"), *events]
                outcomes = await asyncio.gather(*late, return_exceptions=True)
                # One of the two streams may have got past its own launch.
                assert sum(isinstance(outcome, StreamRace) for outcome in outcomes) >= 2
                assert isinstance(outcomes[0], StreamRace)

        run(main())


def test_a_long_run_keeps_no_launch() -> None:
    device = VirtualDevice(12)
    draft, target = device.stream("draft"), device.stream("target")
    gone = []
    for index in range(500):
        launch = draft.launch(lambda index=index: [index], writes=("ring",))
        target.wait(draft.record())
        gone.append(weakref.ref(target.launch(launch.result, reads=("ring",))))
        draft.wait(target.record())
    target.record().synchronize()
    del launch
    gc.collect()
    assert sum(ref() is not None for ref in gone) == 0
