"""The stream contract, for every implementation: errors that travel, cancellation, an orderly end, and workers."""

from __future__ import annotations

import asyncio
import gc
import random
import threading
import weakref
from collections.abc import Callable, Iterator

import pytest
import torch

from scheduler import Stream, StreamClosedError, ThreadStream
from tests.support.stream_contract import PATIENCE_S, NewStream, Run, fail, finished, hold


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
            gate = hold(stream)
            stream.launch(fail())
            event = stream.record()
            waiting = [asyncio.create_task(finished(event)) for _ in range(3)]
            await asyncio.sleep(0)
            gate.release()
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
        gate = hold(stream)
        launch = stream.launch(lambda: 3)

        async def main() -> None:
            event = stream.record()
            patient = asyncio.create_task(finished(event))
            hasty = asyncio.create_task(finished(event))
            await asyncio.sleep(0)
            hasty.cancel()
            with pytest.raises(asyncio.CancelledError):
                await hasty
            assert not event.done()
            gate.release()
            await patient
            assert launch.result() == 3

        run(main())

    def test_of_a_waiter_whose_work_then_fails(self, stream: Stream, run: Run) -> None:
        async def main() -> None:
            gate = hold(stream)
            stream.launch(fail())
            task = asyncio.create_task(finished(stream.record()))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            gate.release()
            await stream.record()

        run(main())

    def test_by_a_timeout(self, stream: Stream, run: Run) -> None:
        gate = hold(stream)

        async def main() -> None:
            event = stream.record()
            for _ in range(5):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(finished(event), timeout=0.001)
            gate.release()
            await event

        run(main())

    def test_of_many_waiters_keeps_nothing_of_them(self, stream: Stream, run: Run) -> None:
        gate = hold(stream)

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
            gate.release()
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
        gate = hold(stream)
        event = stream.record()

        async def give_up() -> None:
            asyncio.create_task(finished(event))  # noqa: RUF006 - the loop ends with it pending
            await asyncio.sleep(0)

        run(give_up())
        gate.release()
        event.synchronize()
        launch = stream.launch(lambda: "alive")
        stream.record().synchronize()
        assert launch.result() == "alive"


class TestClosing:
    def test_finishes_what_is_queued(self, stream: Stream) -> None:
        seen: list[int] = []
        gate = hold(stream)
        for index in range(100):
            stream.launch(lambda index=index: seen.append(index))
        event = stream.record()
        gate.release()
        stream.close()
        assert seen == list(range(100))
        assert event.done()

    def test_twice_is_once(self, stream: Stream) -> None:
        stream.close()
        stream.close()

    def test_from_several_threads(self, stream: Stream) -> None:
        gate = hold(stream)
        closers = [threading.Thread(target=stream.close) for _ in range(4)]
        for closer in closers:
            closer.start()
        gate.release()
        for closer in closers:
            closer.join(PATIENCE_S)
            assert not closer.is_alive()

    def test_from_its_own_work(self, deferring_stream: Stream) -> None:
        # Let go at once, the stream might be closed before the next line.
        gate = hold(deferring_stream)
        deferring_stream.launch(deferring_stream.close)
        event = deferring_stream.record()
        gate.release()
        event.synchronize()
        deferring_stream.close()

    def test_from_its_own_work_that_runs_at_once(self, eager_stream: Stream) -> None:
        gate = hold(eager_stream)

        def work() -> str:
            eager_stream.close()
            return "ended"

        launch = eager_stream.launch(work)  # it does not wait for the gate
        with pytest.raises(StreamClosedError):
            eager_stream.record()
        with pytest.raises(RuntimeError, match="has not run yet"):
            launch.result()
        gate.release()
        eager_stream.close()
        assert launch.result() == "ended"

    def test_nothing_can_be_queued_afterwards(self, new_stream: NewStream) -> None:
        stream, other = new_stream("spent"), new_stream("other")
        event = other.record()
        stream.close()
        for use in (lambda: stream.launch(int), stream.record, lambda: stream.wait(event)):
            with pytest.raises(StreamClosedError, match="'spent' is closed"):
                use()

    def test_waits_for_a_stream_that_it_waits_for(self, new_stream: NewStream) -> None:
        ahead, behind = new_stream("ahead"), new_stream("behind")
        gate = hold(ahead)
        behind.wait(ahead.record())
        launch = behind.launch(lambda: 5)
        closer = threading.Thread(target=behind.close)
        closer.start()
        gate.release()
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
