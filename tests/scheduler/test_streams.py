"""The stream contract, for every implementation: order, events, errors that travel, and an orderly end."""

from __future__ import annotations

import asyncio
import gc
import random
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
import torch

from scheduler import Event, Stream, StreamClosedError, ThreadStream

IMPLEMENTATIONS: dict[str, Callable[[str], Stream]] = {"threads": ThreadStream}
PATIENCE_S = 30.0
"""How long a gate stays shut before a test that forgot to open it fails."""

NewStream = Callable[..., Stream]
Run = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.fixture(params=IMPLEMENTATIONS)
def new_stream(request: pytest.FixtureRequest) -> Iterator[NewStream]:
    made: list[Stream] = []

    def new(name: str = "main") -> Stream:
        made.append(IMPLEMENTATIONS[request.param](name))
        return made[-1]

    yield new
    for stream in made:
        stream.close()


@pytest.fixture
def stream(new_stream: NewStream) -> Stream:
    return new_stream()


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Runs a coroutine on a fresh loop of either kind, in debug mode, and lets no stray error pass."""
    factory = None
    if request.param == "uvloop":
        factory = pytest.importorskip("uvloop").new_event_loop

    def run(main: Coroutine[Any, Any, Any]) -> Any:
        stray: list[dict[str, Any]] = []

        async def watched() -> Any:
            asyncio.get_running_loop().set_exception_handler(lambda loop, context: stray.append(context))
            return await main

        with asyncio.Runner(loop_factory=factory, debug=True) as runner:
            result = runner.run(watched())
        gc.collect()
        assert not stray
        return result

    return run


class Gate:
    """Work that a test lets through when it likes."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self.reached = threading.Event()

    def open(self) -> None:
        self._open.set()

    def __call__(self) -> None:
        self.reached.set()
        assert self._open.wait(PATIENCE_S), "nobody opened the gate"


def fail(message: str = "planted") -> Callable[[], None]:
    def work() -> None:
        raise LookupError(message)

    return work


async def finished(event: Event) -> None:
    await event


class TestOrder:
    def test_launches_run_one_after_the_other(self, stream: Stream) -> None:
        seen: list[int] = []
        for index in range(500):
            stream.launch(lambda index=index: seen.append(index))
        stream.record().synchronize()
        assert seen == list(range(500))

    def test_work_is_never_run_on_the_callers_time(self, stream: Stream) -> None:
        gate = Gate()
        stream.launch(gate)
        launch = stream.launch(lambda: 3)
        event = stream.record()
        assert not event.done()
        with pytest.raises(RuntimeError, match="has not run yet"):
            launch.result()
        gate.open()
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
        first, second = Gate(), Gate()
        stream.launch(first)
        between = stream.record()
        stream.launch(second)
        behind = stream.record()
        first.open()
        between.synchronize()
        assert between.done()
        assert not behind.done()
        second.open()
        behind.synchronize()
        assert behind.done()

    def test_on_an_idle_stream_pass_at_once(self, stream: Stream) -> None:
        event = stream.record()
        event.synchronize()
        event.synchronize()
        assert event.done()

    def test_can_be_awaited_before_and_after(self, stream: Stream, run: Run) -> None:
        gate = Gate()
        launch = stream.launch(gate)

        async def main() -> None:
            event = stream.record()
            waiting = asyncio.create_task(finished(event))
            await asyncio.sleep(0)
            assert not waiting.done()
            gate.open()
            await waiting
            assert event.done()
            await event
            launch.result()

        run(main())

    def test_awaiting_never_blocks_the_loop(self, stream: Stream, run: Run) -> None:
        gate = Gate()
        stream.launch(gate)

        async def main() -> None:
            waiting = asyncio.create_task(finished(stream.record()))
            for _ in range(50):
                await asyncio.sleep(0)
            # The loop went on turning, and what it turns to now is what ends the wait.
            assert not waiting.done()
            gate.open()
            await waiting

        run(main())

    def test_have_any_number_of_waiters(self, stream: Stream, run: Run) -> None:
        gate = Gate()
        stream.launch(gate)

        async def main() -> None:
            event = stream.record()
            waiting = [asyncio.create_task(finished(event)) for _ in range(100)]
            await asyncio.sleep(0)
            gate.open()
            await asyncio.gather(*waiting)

        run(main())

    def test_can_be_awaited_from_two_loops_at_once(self, stream: Stream, run: Run) -> None:
        gate = Gate()
        stream.launch(gate)
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
            gate.open()
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


class TestWaiting:
    def test_later_launches_wait_and_the_host_does_not(self, new_stream: NewStream) -> None:
        ahead, behind = new_stream("ahead"), new_stream("behind")
        gate = Gate()
        seen: list[str] = []
        ahead.launch(gate)
        ahead.launch(lambda: seen.append("ahead"))
        behind.launch(lambda: seen.append("before the wait"))
        before = behind.record()
        behind.wait(ahead.record())
        behind.launch(lambda: seen.append("behind"))
        before.synchronize()
        event = behind.record()
        assert seen == ["before the wait"]
        assert not event.done()
        gate.open()
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


class TestErrors:
    def test_reach_the_host(self, stream: Stream) -> None:
        launch = stream.launch(fail())
        event = stream.record()
        with pytest.raises(LookupError, match="planted") as first:
            event.synchronize()
        with pytest.raises(LookupError) as again:
            event.synchronize()
        with pytest.raises(LookupError) as result:
            launch.result()
        assert first.value is again.value is result.value
        assert event.done()

    def test_reach_whoever_awaits(self, stream: Stream, run: Run) -> None:
        async def main() -> None:
            gate = Gate()
            stream.launch(gate)
            stream.launch(fail())
            event = stream.record()
            waiting = [asyncio.create_task(finished(event)) for _ in range(3)]
            await asyncio.sleep(0)
            gate.open()
            for task in waiting:
                with pytest.raises(LookupError, match="planted"):
                    await task
            with pytest.raises(LookupError, match="planted"):
                await event

        run(main())

    def test_skip_what_comes_behind_up_to_the_next_event(self, stream: Stream) -> None:
        seen: list[str] = []
        stream.launch(lambda: seen.append("before"))
        stream.launch(fail())
        skipped = stream.launch(lambda: seen.append("skipped"))
        event = stream.record()
        stream.launch(lambda: seen.append("after"))
        stream.record().synchronize()
        assert seen == ["before", "after"]
        with pytest.raises(LookupError, match="planted"):
            event.synchronize()
        with pytest.raises(LookupError, match="planted"):
            skipped.result()

    def test_the_first_one_counts(self, stream: Stream) -> None:
        stream.launch(fail("first"))
        stream.launch(fail("second"))
        with pytest.raises(LookupError, match="first"):
            stream.record().synchronize()

    def test_stay_until_an_event_is_recorded(self, stream: Stream) -> None:
        stream.launch(fail("early"))
        stream.launch(lambda: None)
        stream.launch(lambda: None)
        with pytest.raises(LookupError, match="early"):
            stream.record().synchronize()

    def test_cross_to_a_stream_that_waits(self, new_stream: NewStream) -> None:
        ahead, behind = new_stream("ahead"), new_stream("behind")
        seen: list[str] = []
        ahead.launch(fail())
        behind.wait(ahead.record())
        skipped = behind.launch(lambda: seen.append("skipped"))
        marked = behind.record()
        behind.launch(lambda: seen.append("after"))
        behind.record().synchronize()
        ahead.launch(lambda: seen.append("ahead lives"))
        ahead.record().synchronize()
        assert seen == ["after", "ahead lives"]
        with pytest.raises(LookupError, match="planted"):
            marked.synchronize()
        with pytest.raises(LookupError, match="planted"):
            skipped.result()

    def test_cross_to_every_stream_that_waits_and_from_there_on(self, new_stream: NewStream) -> None:
        first, second, third = (new_stream(name) for name in ("first", "second", "third"))
        first.launch(fail())
        event = first.record()
        second.wait(event)
        third.wait(second.record())
        first.wait(event)  # even back to where it came from
        for stream in (first, third):
            with pytest.raises(LookupError, match="planted"):
                stream.record().synchronize()
            stream.record().synchronize()

    def test_a_streams_own_error_comes_before_one_it_waits_for(self, new_stream: NewStream) -> None:
        ahead, behind = new_stream("ahead"), new_stream("behind")
        ahead.launch(fail("theirs"))
        behind.launch(fail("own"))
        behind.wait(ahead.record())
        with pytest.raises(LookupError, match="own"):
            behind.record().synchronize()

    def test_even_odd_ones_travel(self, stream: Stream) -> None:
        for kind in (KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError, StopIteration):

            def work(kind: type[BaseException] = kind) -> None:
                raise kind("odd")

            stream.launch(work)
            with pytest.raises(kind):
                stream.record().synchronize()
        launch = stream.launch(lambda: "alive")
        stream.record().synchronize()
        assert launch.result() == "alive"

    def test_that_nobody_asks_for_are_forgotten(self, stream: Stream, run: Run) -> None:
        async def main() -> None:
            stream.launch(fail())
            stream.record()
            await stream.record()

        run(main())


class TestCancellation:
    def test_of_a_waiter_leaves_the_stream_alone(self, stream: Stream, run: Run) -> None:
        gate = Gate()
        launch = stream.launch(gate)

        async def main() -> None:
            event = stream.record()
            patient = asyncio.create_task(finished(event))
            hasty = asyncio.create_task(finished(event))
            await asyncio.sleep(0)
            hasty.cancel()
            with pytest.raises(asyncio.CancelledError):
                await hasty
            assert not event.done()
            gate.open()
            await patient
            launch.result()

        run(main())

    def test_of_a_waiter_whose_work_then_fails(self, stream: Stream, run: Run) -> None:
        async def main() -> None:
            gate = Gate()
            stream.launch(gate)
            stream.launch(fail())
            task = asyncio.create_task(finished(stream.record()))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            gate.open()
            await stream.record()

        run(main())

    def test_by_a_timeout(self, stream: Stream, run: Run) -> None:
        gate = Gate()
        stream.launch(gate)

        async def main() -> None:
            event = stream.record()
            for _ in range(5):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(finished(event), timeout=0.001)
            gate.open()
            await event

        run(main())

    def test_of_many_waiters_keeps_nothing_of_them(self, stream: Stream, run: Run) -> None:
        gate = Gate()
        stream.launch(gate)

        async def main() -> list[weakref.ref[asyncio.Task[None]]]:
            event = stream.record()
            gone = []
            for _ in range(100):
                task = asyncio.create_task(finished(event))
                await asyncio.sleep(0)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                gone.append(weakref.ref(task))
            del task
            gc.collect()
            alive = sum(ref() is not None for ref in gone)
            gate.open()
            await event
            assert alive <= 1
            return gone

        run(main())

    def test_at_the_very_moment_the_event_passes(self, stream: Stream, run: Run) -> None:
        generator = random.Random(4)

        async def main() -> None:
            for _ in range(200):
                stream.launch(lambda: sum(range(generator.randrange(300))))
                task = asyncio.create_task(finished(stream.record()))
                for _ in range(generator.randrange(4)):
                    await asyncio.sleep(0)
                task.cancel()
                (outcome,) = await asyncio.gather(task, return_exceptions=True)
                assert outcome is None or isinstance(outcome, asyncio.CancelledError)
            await stream.record()

        run(main())

    def test_a_loop_that_closed_meanwhile_is_left_alone(self, stream: Stream, run: Run) -> None:
        gate = Gate()
        stream.launch(gate)
        event = stream.record()

        async def give_up() -> None:
            asyncio.create_task(finished(event))  # noqa: RUF006 - the loop ends with it pending
            await asyncio.sleep(0)

        run(give_up())
        gate.open()
        event.synchronize()
        launch = stream.launch(lambda: "alive")
        stream.record().synchronize()
        assert launch.result() == "alive"


class TestClosing:
    def test_finishes_what_is_queued(self, stream: Stream) -> None:
        gate = Gate()
        seen: list[int] = []
        stream.launch(gate)
        for index in range(100):
            stream.launch(lambda index=index: seen.append(index))
        event = stream.record()
        gate.open()
        stream.close()
        assert seen == list(range(100))
        assert event.done()

    def test_twice_is_once(self, stream: Stream) -> None:
        stream.close()
        stream.close()

    def test_from_several_threads(self, stream: Stream) -> None:
        gate = Gate()
        stream.launch(gate)
        closers = [threading.Thread(target=stream.close) for _ in range(4)]
        for closer in closers:
            closer.start()
        gate.open()
        for closer in closers:
            closer.join(PATIENCE_S)
            assert not closer.is_alive()

    def test_from_its_own_work(self, stream: Stream) -> None:
        stream.launch(stream.close)
        event = stream.record()
        event.synchronize()
        stream.close()

    def test_nothing_can_be_queued_afterwards(self, new_stream: NewStream) -> None:
        stream, other = new_stream("spent"), new_stream("other")
        event = other.record()
        stream.close()
        for use in (lambda: stream.launch(int), stream.record, lambda: stream.wait(event)):
            with pytest.raises(StreamClosedError, match="'spent' is closed"):
                use()

    def test_waits_for_a_stream_that_it_waits_for(self, new_stream: NewStream) -> None:
        ahead, behind = new_stream("ahead"), new_stream("behind")
        gate = Gate()
        ahead.launch(gate)
        behind.wait(ahead.record())
        launch = behind.launch(lambda: 5)
        closer = threading.Thread(target=behind.close)
        closer.start()
        gate.open()
        closer.join(PATIENCE_S)
        assert launch.result() == 5

    def test_with_an_error_that_nobody_took(self, stream: Stream) -> None:
        stream.launch(fail())
        stream.close()


class TestWorkers:
    """What holds for streams on threads only."""

    @pytest.fixture(autouse=True)
    def torch_threads(self) -> Iterator[None]:
        before = torch.get_num_threads()
        yield
        torch.set_num_threads(before)

    def inside(self, work: Callable[[], object], **options: int | None) -> object:
        stream = ThreadStream("inside", **options)
        try:
            launch = stream.launch(work)
            stream.record().synchronize()
            return launch.result()
        finally:
            stream.close()

    def test_work_runs_in_inference_mode(self) -> None:
        assert self.inside(torch.is_inference_mode_enabled) is True
        assert not torch.is_inference_mode_enabled()

    @pytest.mark.parametrize("num_threads", [1, 2, 3])
    def test_thread_count_is_the_workers_own(self, num_threads: int) -> None:
        outside = torch.get_num_threads()
        assert self.inside(torch.get_num_threads, num_threads=num_threads) == num_threads
        assert torch.get_num_threads() == outside

    def test_thread_count_left_open_is_the_callers(self) -> None:
        torch.set_num_threads(2)
        self.inside(torch.get_num_threads, num_threads=1)
        assert self.inside(torch.get_num_threads) == 2

    def test_two_workers_keep_their_own_counts(self) -> None:
        one, two = ThreadStream("one", num_threads=1), ThreadStream("two", num_threads=2)
        try:
            for _ in range(3):
                launches = [stream.launch(torch.get_num_threads) for stream in (one, two)]
                for stream in (one, two):
                    stream.record().synchronize()
                assert [launch.result() for launch in launches] == [1, 2]
        finally:
            one.close()
            two.close()

    def test_thread_carries_the_streams_name_and_ends_with_it(self) -> None:
        stream = ThreadStream("named")
        launch = stream.launch(threading.current_thread)
        stream.record().synchronize()
        thread = launch.result()
        assert stream.name == "named"
        assert thread.name == "slipstream-named"
        assert thread.daemon
        stream.close()
        assert not thread.is_alive()
