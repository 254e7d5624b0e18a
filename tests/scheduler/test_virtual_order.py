"""The virtual device's order: every legal one, the same one again, and what the host may see of it."""

from __future__ import annotations

import asyncio
import json
import threading

import pytest

from scheduler import Lineage, Stream, TraceMismatchError, VirtualDevice
from tests.support.stream_contract import Run, finished
from tests.support.virtual_programs import Outcome, relay, run_relay

NUM_SEEDS = 300


def interleaving(seed: int, num_launches: int = 12) -> str:
    """In which order two streams run that have nothing to do with each other."""
    device = VirtualDevice(seed)
    ran: list[str] = []
    streams: list[Stream] = [device.stream(name) for name in ("l", "r")]
    for _ in range(num_launches):
        for stream in streams:
            stream.launch(lambda name=stream.name: ran.append(name))
    for stream in streams:
        stream.close()
    return "".join(ran)


class TestOrders:
    def test_all_of_them_give_the_same_values(self) -> None:
        outcomes = [run_relay(VirtualDevice(seed)) for seed in range(NUM_SEEDS)]
        assert len({outcome.values for outcome in outcomes}) == 1
        assert len({outcome.order for outcome in outcomes}) > NUM_SEEDS // 4

    def test_keep_each_stream_in_its_own(self) -> None:
        for seed in range(20):
            order = run_relay(VirtualDevice(seed)).order
            for first, second in (("write", "spare"), ("sum", "idle")):
                own = [name for name in order if name.split()[0] in (first, second)]
                assert own == [f"{kind} {index}" for index in range(6) for kind in (first, second)]

    def test_reach_the_extremes(self) -> None:
        seen = {interleaving(seed) for seed in range(NUM_SEEDS)}
        # One stream lets the other run far ahead, either way round, and they take turns as well.
        assert any("l" * 10 in order.split("r")[0] for order in seen)
        assert any("r" * 10 in order.split("l")[0] for order in seen)
        assert "lr" * 12 in seen
        assert len(seen) > NUM_SEEDS // 3

    def test_a_seed_gives_the_same_one_again(self, run: Run) -> None:
        async def main() -> list[Outcome]:
            return [await relay(VirtualDevice(seed)) for seed in range(30)]

        # Whatever the loop, in debug mode or not.
        assert run(main()) == [run_relay(VirtualDevice(seed)) for seed in range(30)]


class TestHost:
    def test_sees_events_done_and_not_done(self) -> None:
        seen = set()
        for seed in range(100):
            stream = VirtualDevice(seed).stream("main")
            stream.launch(int)
            seen.add(stream.record().done())
        assert seen == {True, False}

    @pytest.mark.parametrize("how", ["await", "synchronize"])
    def test_finds_the_device_at_any_point_behind_what_it_waited_for(self, how: str, run: Run) -> None:
        async def num_run(seed: int) -> int:
            stream = VirtualDevice(seed).stream("main")
            ran: list[int] = []
            gate = stream.hold()
            for index in range(2):
                stream.launch(lambda index=index: ran.append(index))
            event = stream.record()
            for index in range(3):
                stream.launch(lambda index=index: ran.append(index))
            gate.release()
            # Nothing has run so far: what has when this is over, has meanwhile.
            if how == "await":
                await event
            else:
                event.synchronize()
            return len(ran)

        async def main() -> set[int]:
            return {await num_run(seed) for seed in range(100)}

        assert run(main()) == {2, 3, 4, 5}

    def test_finds_launches_begun_or_not_when_it_retires_them(self) -> None:
        seen = set()
        for seed in range(100):
            stream, lineage = VirtualDevice(seed).stream("main"), Lineage()
            generation = lineage.begin()
            launch = stream.launch(int, generation=generation)
            lineage.retire(generation)
            stream.record().synchronize()
            seen.add(launch.skipped)
        assert seen == {True, False}

    def test_finds_any_number_of_launches_over_after_a_glance(self) -> None:
        numbers = set()
        for seed in range(200):
            device = VirtualDevice(seed)
            stream, other = device.stream("main"), device.event("other")
            ran: list[int] = []
            gate = stream.hold()
            for index in range(12):
                stream.launch(lambda index=index, ran=ran: ran.append(index))
            gate.release()
            other.done()
            numbers.add(len(ran))
        assert {0, 1, 12} < numbers

    def test_polling_comes_to_an_end(self) -> None:
        for seed in range(50):
            stream = VirtualDevice(seed).stream("main")
            for _ in range(20):
                stream.launch(int)
            event = stream.record()
            assert any(event.done() for _ in range(10_000))

    def test_gives_other_tasks_a_turn_for_every_await(self, run: Run) -> None:
        async def main() -> None:
            stream = VirtualDevice(1).stream("main")
            event = stream.record()
            event.synchronize()
            num_turns = 0

            async def count() -> None:
                nonlocal num_turns
                while True:
                    num_turns += 1
                    await asyncio.sleep(0)

            counting = asyncio.create_task(count())
            for index in range(20):
                assert num_turns >= index
                await event
            counting.cancel()

        run(main())

    def test_needs_neither_tasks_nor_threads(self, run: Run) -> None:
        async def main() -> None:
            before = threading.active_count(), len(asyncio.all_tasks())
            device = VirtualDevice(2)
            stream = device.stream("main")
            during = stream.launch(lambda: (threading.active_count(), len(asyncio.all_tasks())))
            inside = stream.launch(threading.get_ident)
            await stream.record()
            assert during.result() == before == (threading.active_count(), len(asyncio.all_tasks()))
            assert inside.result() == threading.get_ident()

        run(main())

    def test_may_be_several_threads(self) -> None:
        device = VirtualDevice(3)
        left, right = device.stream("left"), device.stream("right")
        totals = [0, 0]

        def add(side: int, stream: Stream) -> None:
            for _ in range(100):
                stream.launch(lambda: totals.__setitem__(side, totals[side] + 1), writes=(stream.name,))
                stream.record().synchronize()

        threads = [threading.Thread(target=add, args=item) for item in enumerate((left, right))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert totals == [100, 100]
        assert device.failure is None

    @pytest.mark.parametrize("kind", ["plain", "eager"])
    def test_awaits_in_eager_tasks(self, kind: str) -> None:
        if kind == "eager" and not hasattr(asyncio, "eager_task_factory"):
            pytest.skip("eager tasks came with Python 3.12")

        async def main() -> None:
            if kind == "eager":
                asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)
            stream = VirtualDevice(4).stream("main")
            events = []
            for _ in range(20):
                stream.launch(int)
                events.append(stream.record())
            await asyncio.gather(*(finished(event) for event in reversed(events)))

        asyncio.run(main())


class TestWork:
    def test_may_launch(self) -> None:
        for seed in range(20):
            device = VirtualDevice(seed)
            left, right = device.stream("left"), device.stream("right")
            seen: list[str] = []

            def work(right: Stream = right, seen: list[str] = seen) -> None:
                right.launch(lambda: seen.append("inner"), writes=("shared",))
                right.record()

            # What work launches is ordered behind what was before the work.
            left.launch(lambda seen=seen: seen.append("outer"), writes=("shared",))
            left.launch(work)
            left.close()
            right.close()
            assert seen == ["outer", "inner"]

    def test_must_not_wait(self) -> None:
        device = VirtualDevice(5)
        left, right = device.stream("left"), device.stream("right")
        event = device.event("late")
        left.launch(event.synchronize, label="impatient")
        failed = left.record()
        with pytest.raises(RuntimeError, match=r"'impatient' \(launch 1 on 'left'\) waits for event 'late'"):
            failed.synchronize()
        right.record(event)
        left.launch(event.synchronize)
        event.synchronize()
        # What has passed needs no waiting.
        left.record().synchronize()


class TestReplay:
    def test_gives_the_same_order(self) -> None:
        for seed in range(20):
            device = VirtualDevice(seed)
            outcome = run_relay(device)
            again = VirtualDevice(seed + 1, choices=device.trace)
            assert run_relay(again) == outcome
            assert again.trace == device.trace
            assert again.num_steps == device.num_steps
            assert again.seed is None

    def test_takes_a_trace_that_went_through_a_file(self) -> None:
        device = VirtualDevice(6)
        outcome = run_relay(device)
        trace = json.loads(json.dumps(device.trace))
        assert run_relay(VirtualDevice(choices=trace)) == outcome

    def test_of_a_longer_program_is_refused(self) -> None:
        def launch(device: VirtualDevice, num_launches: int) -> None:
            stream = device.stream("main")
            for _ in range(num_launches):
                stream.launch(int)

        device = VirtualDevice(7)
        launch(device, 10)
        launch(VirtualDevice(choices=device.trace), 10)
        with pytest.raises(TraceMismatchError, match=r"goes on after all \d+ choices"):
            launch(VirtualDevice(choices=device.trace), 11)

    def test_of_a_shorter_program_is_refused_when_the_streams_close(self) -> None:
        device = VirtualDevice(8)
        left, right = device.stream("left"), device.stream("right")
        for stream in (left, right):
            for _ in range(10):
                stream.launch(int)
        left.close()
        right.close()
        again = VirtualDevice(choices=device.trace)
        left, right = again.stream("left"), again.stream("right")
        left.close()
        with pytest.raises(TraceMismatchError, match=r"ended after 0 of the \d+ choices"):
            right.close()
        right.close()
        assert isinstance(again.failure, TraceMismatchError)

    def test_of_another_program_is_refused(self) -> None:
        def run_streams(device: VirtualDevice, num_streams: int) -> None:
            streams = [device.stream(f"stream {index}") for index in range(num_streams)]
            gates = [stream.hold() for stream in streams]
            for stream in streams:
                for _ in range(5):
                    stream.launch(int)
            for gate in gates:
                gate.release()
            for stream in streams:
                stream.close()

        device = VirtualDevice(9)
        run_streams(device, 2)
        run_streams(VirtualDevice(choices=device.trace), 2)
        with pytest.raises(TraceMismatchError, match="and the program has 3 options there"):
            run_streams(VirtualDevice(choices=device.trace), 3)

    def test_refuses_a_trace_out_of_bounds(self) -> None:
        stream = VirtualDevice(choices=[(4, 4)]).stream("main")
        with pytest.raises(TraceMismatchError, match="choice 0 of the trace is 4 of 4"):
            stream.launch(int)


class TestBadInput:
    def test_streams_need_names_of_their_own(self) -> None:
        device = VirtualDevice()
        device.stream("draft")
        with pytest.raises(ValueError, match="has a stream 'draft' already"):
            device.stream("draft")

    def test_events_of_another_device_are_refused(self) -> None:
        device, other = VirtualDevice(), VirtualDevice()
        stream, foreign = device.stream("main"), other.event("theirs")
        for use in (stream.wait, stream.record):
            with pytest.raises(TypeError, match="'main' can wait for events of its own VirtualDevice only"):
                use(foreign)

    def test_an_event_is_recorded_once(self) -> None:
        device = VirtualDevice()
        stream, event = device.stream("main"), device.event("once")
        stream.record(event)
        with pytest.raises(ValueError, match="event 'once' \\(1 of 'main'\\) was recorded already"):
            stream.record(event)

    @pytest.mark.parametrize("field", ["reads", "writes"])
    def test_buffers_are_several_names(self, field: str) -> None:
        stream = VirtualDevice().stream("main")
        with pytest.raises(
            TypeError, match=f"{field} must hold names of buffers, got one string; write \\('cache',\\)"
        ):
            stream.launch(int, **{field: "cache"})
