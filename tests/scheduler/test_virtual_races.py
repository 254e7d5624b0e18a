"""Races on the virtual device: found in every order, whichever edge is missing, and never where none is."""

from __future__ import annotations

import contextlib
import gc
import weakref

import pytest

from scheduler import Lineage, StreamRace, VirtualDevice
from tests.support.races import READ, WRITE, Rig, must_not_race, must_race, rigs
from tests.support.stream_contract import Run, fail
from tests.support.virtual_programs import RandomProgram


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
