"""What CUDA streams promise beyond the stream contract, on the fake device."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest
import torch

from scheduler import AwaitMethod, CudaStream, Launch, Lineage, StreamClosedError
from tests.support.fake_cuda import LEAST_URGENT, MOST_URGENT, FakeDriver, FakeEvent
from tests.support.stream_contract import PATIENCE_S, Run, fail, finished


@pytest.fixture
def driver() -> Iterator[FakeDriver]:
    driver = FakeDriver(by_hand=True)
    yield driver
    assert driver.faults == []


@pytest.fixture
def stream(driver: FakeDriver) -> CudaStream:
    return CudaStream("main", driver)


class TestLaunching:
    def test_runs_work_at_once_under_the_stream_and_on_the_calling_thread(
        self, driver: FakeDriver, stream: CudaStream
    ) -> None:
        seen: list[object] = []
        stream.launch(lambda: seen.extend([driver.current, threading.current_thread()]))
        assert seen == [stream._handle, threading.current_thread()]
        assert driver.current is None

    def test_leaves_the_stream_even_where_work_fails(self, driver: FakeDriver, stream: CudaStream) -> None:
        stream.launch(fail())
        assert driver.current is None
        assert not torch.is_inference_mode_enabled()

    def test_skipped_work_makes_no_call_of_the_driver(self, driver: FakeDriver, stream: CudaStream) -> None:
        lineage = Lineage()
        generation = lineage.begin()
        lineage.retire(generation)
        driver.calls.clear()
        stream.launch(int, generation=generation)
        assert driver.calls == []

    def test_costs_one_visit_of_the_stream_a_launch_and_one_record_an_event(
        self, driver: FakeDriver, stream: CudaStream
    ) -> None:
        driver.calls.clear()
        stream.launch(int)
        stream.launch(int)
        stream.record()
        assert driver.calls == ["under", "kernels", "under", "kernels", "record"]

    def test_results_may_be_read_by_other_work_before_the_device_has_got_there(
        self, driver: FakeDriver, stream: CudaStream
    ) -> None:
        other = CudaStream("other", driver)
        first = stream.launch(lambda: torch.ones(2))
        other.wait(stream.record())
        second = other.launch(lambda: first.result() + 1)
        event = other.record()
        with pytest.raises(RuntimeError, match="has not run yet"):
            second.result()
        event.synchronize()
        assert second.result().tolist() == [2.0, 2.0]

    def test_a_result_takes_an_event_and_not_only_time(self, driver: FakeDriver, stream: CudaStream) -> None:
        launch = stream.launch(int)
        driver.advance(100)
        with pytest.raises(RuntimeError, match="wait for an event recorded behind it"):
            launch.result()
        event = stream.record()
        driver.advance(100)
        assert event.done()
        assert launch.result() == 0

    def test_an_event_before_a_launch_says_nothing_of_it(self, driver: FakeDriver, stream: CudaStream) -> None:
        stream.record().synchronize()
        launch = stream.launch(int)
        with pytest.raises(RuntimeError, match="has not run yet"):
            launch.result()

    def test_inside_a_launch_of_the_same_stream_is_refused(self, stream: CudaStream) -> None:
        launch = stream.launch(lambda: stream.launch(int))
        with pytest.raises(RuntimeError, match="launch inside a launch of stream 'main'"):
            stream.record().synchronize()
        with pytest.raises(RuntimeError, match="inside a launch"):
            launch.result()

    def test_inside_a_launch_of_another_stream_is_fine(self, driver: FakeDriver, stream: CudaStream) -> None:
        other = CudaStream("other", driver)
        seen: list[object] = []

        def inner() -> None:
            seen.append(driver.current)

        def outer() -> None:
            other.launch(inner)
            seen.append(driver.current)

        stream.launch(outer)
        stream.record().synchronize()
        assert seen == [other._handle, stream._handle]

    def test_from_two_threads_at_once_is_refused_by_name(self, stream: CudaStream) -> None:
        inside, leave = threading.Event(), threading.Event()

        def work() -> None:
            inside.set()
            leave.wait(PATIENCE_S)

        thread = threading.Thread(target=lambda: stream.launch(work), name="first")
        thread.start()
        assert inside.wait(PATIENCE_S)
        with pytest.raises(
            RuntimeError, match=r"record on stream 'main' from thread .* while thread 'first' is using it"
        ):
            stream.record()
        leave.set()
        thread.join(PATIENCE_S)
        stream.record().synchronize()

    def test_from_one_thread_after_the_other_is_fine(self, stream: CudaStream) -> None:
        thread = threading.Thread(target=lambda: stream.launch(int))
        thread.start()
        thread.join(PATIENCE_S)
        launch = stream.launch(int)
        stream.record().synchronize()
        assert launch.result() == 0


class TestClosing:
    def test_by_another_thread_waits_for_a_launch_to_end(self, driver: FakeDriver, stream: CudaStream) -> None:
        inside, leave = threading.Event(), threading.Event()
        launched: list[Launch[str]] = []

        def work() -> str:
            inside.set()
            leave.wait(PATIENCE_S)
            return "ended"

        launcher = threading.Thread(target=lambda: launched.append(stream.launch(work)))
        launcher.start()
        assert inside.wait(PATIENCE_S)
        closer = threading.Thread(target=stream.close)
        closer.start()
        closer.join(0.05)
        assert closer.is_alive()
        leave.set()
        for thread in (launcher, closer):
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
        assert launched[0].result() == "ended"


class TestPriority:
    @pytest.mark.parametrize("priority", [LEAST_URGENT, -1, MOST_URGENT])
    def test_reaches_the_driver(self, driver: FakeDriver, priority: int) -> None:
        assert CudaStream("urgent", driver, priority=priority)._handle.priority == priority

    @pytest.mark.parametrize("priority", [LEAST_URGENT + 1, MOST_URGENT - 1])
    def test_outside_the_devices_range_is_refused(self, driver: FakeDriver, priority: int) -> None:
        with pytest.raises(ValueError, match=rf"priority .*-5.*0.*{priority}.*smaller number is more urgent"):
            CudaStream("urgent", driver, priority=priority)


class TestWaiting:
    def test_happens_on_the_device(self, driver: FakeDriver, stream: CudaStream) -> None:
        other = CudaStream("other", driver)
        event = stream.record()
        driver.calls.clear()
        other.wait(event)
        assert driver.calls == ["wait"]

    def test_for_an_event_of_another_driver_is_refused(self, stream: CudaStream) -> None:
        foreign = CudaStream("foreign", FakeDriver()).record()
        with pytest.raises(TypeError, match="own driver only, not for event 1 of 'foreign'"):
            stream.wait(foreign)

    def test_an_error_crosses_before_the_device_gets_there(self, driver: FakeDriver, stream: CudaStream) -> None:
        other = CudaStream("other", driver)
        stream.launch(fail())
        other.wait(stream.record())
        seen: list[int] = []
        other.launch(lambda: seen.append(1))
        event = other.record()
        assert not event.done()
        with pytest.raises(LookupError):
            event.synchronize()
        assert seen == []


class TestTiming:
    def test_gives_the_devices_time_between_two_events(self, driver: FakeDriver) -> None:
        stream = CudaStream("timed", driver, timing=True)
        start = stream.record()
        stream.launch(int)
        end = stream.record()
        end.synchronize()
        assert 0.0 < end.elapsed_ms_since(start) == -start.elapsed_ms_since(end)

    def test_needs_a_stream_that_times(self, stream: CudaStream) -> None:
        start, end = stream.record(), stream.record()
        end.synchronize()
        with pytest.raises(RuntimeError, match="event 1 of 'main' has no time: make its stream with timing=True"):
            end.elapsed_ms_since(start)

    def test_needs_events_that_have_passed(self, driver: FakeDriver) -> None:
        stream = CudaStream("timed", driver, timing=True)
        start, end = stream.record(), stream.record()
        with pytest.raises(RuntimeError, match="event 1 of 'timed' has not passed yet"):
            end.elapsed_ms_since(start)


@pytest.mark.parametrize("awaiting", AwaitMethod)
class TestDeviceFailure:
    """A kernel that does wrong shows at some later call: nobody may wait for ever, and the message must arrive."""

    class FailingDriver(FakeDriver):
        def query(self, event: FakeEvent) -> bool:
            raise RuntimeError("an illegal memory access was encountered")

        def synchronize(self, event: FakeEvent) -> None:
            raise RuntimeError("an illegal memory access was encountered")

    def test_reaches_whoever_waits(self, awaiting: AwaitMethod, run: Run) -> None:
        stream = CudaStream("main", self.FailingDriver(), awaiting=awaiting)
        awaited, looked_at, synchronized = (stream.record() for _ in range(3))
        with pytest.raises(RuntimeError, match="illegal memory access"):
            run(finished(awaited))
        assert looked_at.done()
        for event in (looked_at, synchronized):
            with pytest.raises(RuntimeError, match="illegal memory access"):
                event.synchronize()

    def test_does_not_hide_the_error_of_a_launch(self, awaiting: AwaitMethod) -> None:
        stream = CudaStream("main", self.FailingDriver(), awaiting=awaiting)
        stream.launch(fail())
        with pytest.raises(LookupError, match="planted"):
            stream.record().synchronize()

    def test_in_the_middle_of_a_wait(self, awaiting: AwaitMethod, run: Run) -> None:
        driver = FakeDriver(by_hand=True)
        stream = CudaStream("main", driver, awaiting=awaiting)
        hold = driver.hold(stream._handle)
        event = stream.record()

        async def main() -> None:
            waiting = asyncio.create_task(finished(event))
            await asyncio.sleep(0.01)
            assert not waiting.done()
            driver.fail("an illegal memory access was encountered")
            with pytest.raises(RuntimeError, match="illegal memory access"):
                await waiting

        run(main())
        hold.release()


def test_closing_is_the_end_of_every_helper_thread(driver: FakeDriver, run: Run) -> None:
    stream = CudaStream("ending", driver, awaiting=AwaitMethod.THREAD)
    hold = driver.hold(stream._handle)
    event = stream.record()

    def helpers() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread.name == "slipstream-await-ending"]

    async def main() -> None:
        waiting = [asyncio.create_task(finished(event)) for _ in range(20)]
        await asyncio.sleep(0)
        assert len(helpers()) == 1
        hold.release()
        await asyncio.gather(*waiting)
        for _ in range(50):
            await stream.record()
        # A helper that has just woken the loop may not be back yet when the next one is needed.
        assert len(helpers()) <= 4

    run(main())
    before = helpers()
    stream.close()
    for thread in before:
        thread.join(PATIENCE_S)
    assert helpers() == []


def test_closing_after_the_device_has_failed_says_so_and_ends_all_the_same(driver: FakeDriver, run: Run) -> None:
    stream = CudaStream("failing", driver, awaiting=AwaitMethod.THREAD)
    hold = driver.hold(stream._handle)
    event = stream.record()

    async def main() -> None:
        waiting = asyncio.create_task(finished(event))
        await asyncio.sleep(0.01)
        hold.release()
        await waiting

    run(main())
    driver.fail("an illegal memory access was encountered")
    for _ in range(2):
        with pytest.raises(RuntimeError, match="illegal memory access"):
            stream.close()
    with pytest.raises(StreamClosedError):
        stream.launch(int)
    for thread in threading.enumerate():
        if thread.name == "slipstream-await-failing":
            thread.join(PATIENCE_S)
            assert not thread.is_alive()


def test_an_early_point_is_noticed_while_a_late_one_is_waited_for(driver: FakeDriver, run: Run) -> None:
    stream = CudaStream("main", driver, awaiting=AwaitMethod.THREAD)
    first_hold = driver.hold(stream._handle)
    early = stream.record()
    second_hold = driver.hold(stream._handle)
    late = stream.record()

    async def main() -> None:
        waiting_late = asyncio.create_task(finished(late))
        await asyncio.sleep(0.01)
        waiting_early = asyncio.create_task(finished(early))
        await asyncio.sleep(0.01)
        first_hold.release()
        await asyncio.wait_for(waiting_early, PATIENCE_S)
        assert not waiting_late.done()
        second_hold.release()
        await waiting_late

    run(main())
