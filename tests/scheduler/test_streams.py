"""The stream contract, for every implementation: order, events, and waits across streams."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref

import pytest

from scheduler import Event, Stream
from tests.support.stream_contract import NewStream, Run, finished, hold


class TestOrder:
    def test_launches_run_one_after_the_other(self, stream: Stream) -> None:
        seen: list[int] = []
        for index in range(500):
            stream.launch(lambda index=index: seen.append(index))
        stream.record().synchronize()
        assert seen == list(range(500))

    def test_launching_and_recording_wait_for_nothing(self, stream: Stream) -> None:
        gate = hold(stream)
        launch = stream.launch(lambda: 3)
        event = stream.record()
        assert not event.done()
        with pytest.raises(RuntimeError, match="has not run yet"):
            launch.result()
        gate.release()
        event.synchronize()
        assert launch.result() == 3

    def test_a_result_can_be_read_again(self, stream: Stream) -> None:
        launch = stream.launch(lambda: [1], reads=("a",), writes=("b", "c"))
        stream.record().synchronize()
        assert launch.result() is launch.result()

    def test_work_behind_another_may_read_its_result(self, stream: Stream, new_stream: NewStream) -> None:
        other = new_stream("other")
        first = stream.launch(lambda: 20)
        second = stream.launch(lambda: first.result() + 1)
        other.wait(stream.record())
        third = other.launch(lambda: second.result() * 2)
        other.record().synchronize()
        assert third.result() == 42


class TestEvents:
    def test_are_done_when_the_work_before_them_is(self, stream: Stream) -> None:
        first = hold(stream)
        between = stream.record()
        second = hold(stream)
        behind = stream.record()
        first.release()
        between.synchronize()
        assert between.done()
        assert not behind.done()
        second.release()
        behind.synchronize()
        assert behind.done()

    def test_on_an_idle_stream_pass_at_once(self, stream: Stream) -> None:
        event = stream.record()
        event.synchronize()
        event.synchronize()
        assert event.done()

    def test_can_be_awaited_before_and_after(self, stream: Stream, run: Run) -> None:
        gate = hold(stream)
        launch = stream.launch(lambda: 3)

        async def main() -> None:
            event = stream.record()
            waiting = asyncio.create_task(finished(event))
            await asyncio.sleep(0)
            assert not waiting.done()
            gate.release()
            await waiting
            assert event.done()
            await event
            assert launch.result() == 3

        run(main())

    def test_awaiting_never_blocks_the_loop(self, stream: Stream, run: Run) -> None:
        gate = hold(stream)

        async def main() -> None:
            waiting = asyncio.create_task(finished(stream.record()))
            for _ in range(50):
                await asyncio.sleep(0)
            # The loop went on turning, and what it turns to now is what ends the wait.
            assert not waiting.done()
            gate.release()
            await waiting

        run(main())

    def test_have_any_number_of_waiters(self, stream: Stream, run: Run) -> None:
        gate = hold(stream)

        async def main() -> None:
            event = stream.record()
            waiting = [asyncio.create_task(finished(event)) for _ in range(100)]
            await asyncio.sleep(0)
            gate.release()
            await asyncio.gather(*waiting)

        run(main())

    def test_can_be_awaited_from_two_loops_at_once(self, stream: Stream, run: Run) -> None:
        gate = hold(stream)
        event = stream.record()
        others: list[BaseException | None] = []

        async def other() -> None:
            await event

        def other_loop() -> None:
            try:
                asyncio.run(other())
                others.append(None)
            except BaseException as error:
                others.append(error)

        thread = threading.Thread(target=other_loop)

        async def main() -> None:
            thread.start()
            waiting = asyncio.create_task(finished(event))
            await asyncio.sleep(0.01)
            gate.release()
            await waiting

        run(main())
        thread.join()
        assert others == [None]

    def test_come_back_in_order_under_load(self, stream: Stream, run: Run) -> None:
        async def main() -> list[int]:
            seen: list[int] = []
            for index in range(300):
                launch = stream.launch(lambda index=index: index)
                await stream.record()
                seen.append(launch.result())
            return seen

        assert run(main()) == list(range(300))

    def test_leave_nothing_behind(self, stream: Stream, run: Run) -> None:
        async def main() -> list[weakref.ref[Event]]:
            gone = []
            for index in range(10_000):
                event = stream.record()
                if index % 100 == 0:
                    await event
                gone.append(weakref.ref(event))
            del event
            await stream.record()
            return gone

        gone = run(main())
        stream.record().synchronize()
        gc.collect()
        # A stream may hold on to the newest.
        assert sum(ref() is not None for ref in gone) <= 1

    def test_values_and_work_leave_nothing_behind(self, stream: Stream) -> None:
        class Value:
            pass

        def work() -> Value:
            return Value()

        launch = stream.launch(work)
        stream.record().synchronize()
        value, closure = weakref.ref(launch.result()), weakref.ref(work)
        del launch, work
        stream.launch(int)
        stream.record().synchronize()
        gc.collect()
        assert value() is None
        assert closure() is None

    def test_a_launch_that_has_run_keeps_its_value_alone(self, stream: Stream) -> None:
        class Work:
            def __call__(self) -> int:
                return 7

        work = Work()
        gone = weakref.ref(work)
        launch = stream.launch(work)
        del work
        stream.launch(int)
        stream.record().synchronize()
        gc.collect()
        assert gone() is None
        assert launch.result() == 7


class TestWaiting:
    def test_later_launches_wait_and_the_host_does_not(self, new_stream: NewStream) -> None:
        ahead, behind = new_stream("ahead"), new_stream("behind")
        gate = hold(ahead)
        ahead.launch(int)
        first = behind.launch(lambda: 1)
        before = behind.record()
        behind.wait(ahead.record())
        second = behind.launch(lambda: first.result() + 1)
        event = behind.record()
        before.synchronize()
        assert first.result() == 1
        for _ in range(20):
            assert not event.done()
        with pytest.raises(RuntimeError, match="has not run yet"):
            second.result()
        gate.release()
        event.synchronize()
        assert second.result() == 2

    def test_deferred_work_runs_in_the_order_of_events(self, new_deferring_stream: NewStream) -> None:
        ahead, behind = new_deferring_stream("ahead"), new_deferring_stream("behind")
        seen: list[str] = []
        gate = hold(ahead)
        ahead.launch(lambda: seen.append("ahead"))
        behind.launch(lambda: seen.append("before the wait"))
        before = behind.record()
        behind.wait(ahead.record())
        behind.launch(lambda: seen.append("behind"))
        before.synchronize()
        event = behind.record()
        assert seen == ["before the wait"]
        assert not event.done()
        gate.release()
        event.synchronize()
        assert seen == ["before the wait", "ahead", "behind"]

    def test_waiting_for_what_has_passed_is_free(self, new_stream: NewStream) -> None:
        ahead, behind = new_stream("ahead"), new_stream("behind")
        event = ahead.record()
        event.synchronize()
        behind.wait(event)
        behind.wait(event)
        behind.record().synchronize()

    def test_a_stream_may_wait_for_itself(self, stream: Stream) -> None:
        stream.wait(stream.record())
        launch = stream.launch(lambda: 1)
        stream.record().synchronize()
        assert launch.result() == 1

    def test_two_streams_take_turns(self, new_stream: NewStream) -> None:
        left, right = new_stream("left"), new_stream("right")
        counter = [0]
        seen: list[tuple[str, int]] = []

        def turn(name: str) -> None:
            # Unordered, two of these would read the same number.
            value = counter[0]
            seen.append((name, value))
            counter[0] = value + 1

        event = right.record()
        for _ in range(200):
            left.wait(event)
            left.launch(lambda: turn("left"))
            right.wait(left.record())
            right.launch(lambda: turn("right"))
            event = right.record()
        event.synchronize()
        assert seen == [(("left", "right")[index % 2], index) for index in range(400)]

    def test_events_of_another_kind_are_refused(self, stream: Stream) -> None:
        with pytest.raises(TypeError, match=r"can wait for a \w+ only, not Event"):
            stream.wait(asyncio.Event())  # type: ignore[arg-type]  # the point of the test
