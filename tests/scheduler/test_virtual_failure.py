"""Results and failures of the virtual device: what may be read when, and a race that nobody can swallow."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from scheduler import Lineage, StreamRace, VirtualEvent
from tests.support.races import Rig, must_race, rigs
from tests.support.stream_contract import Run, finished


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

    def test_is_what_a_result_that_will_never_come_gives(self) -> None:
        for rig in rigs():
            rig.third.hold()
            launch = rig.third.launch(int)
            for event in plant_race(rig):
                while not event.done():
                    pass
            with pytest.raises(StreamRace):
                launch.result()

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
