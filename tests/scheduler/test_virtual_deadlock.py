"""Deadlocks on the virtual device: reported with the chain, and told from waits that somebody will end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from scheduler import StreamDeadlock, VirtualDevice, VirtualEvent
from tests.support.stream_contract import PATIENCE_S, Run, finished

SEEDS = range(20)


def synchronize(event: VirtualEvent) -> None:
    event.synchronize()


def await_it(event: VirtualEvent) -> None:
    asyncio.run(finished(event))


def poll_and_await(event: VirtualEvent) -> None:
    assert not any(event.done() for _ in range(100))
    asyncio.run(finished(event))


@pytest.mark.parametrize("wait_for", [synchronize, await_it, poll_and_await])
class TestChains:
    def test_of_an_event_never_recorded(self, wait_for: Callable[[VirtualEvent], None]) -> None:
        for seed in SEEDS:
            device = VirtualDevice(seed)
            with pytest.raises(
                StreamDeadlock, match=r"^deadlock: the host waits for event 'lost', which was never"
            ) as it:
                wait_for(device.event("lost"))
            assert it.value.seed == seed
            assert it.value.num_steps == 0

    def test_over_two_streams(self, wait_for: Callable[[VirtualEvent], None]) -> None:
        for seed in SEEDS:
            device = VirtualDevice(seed)
            draft, target = device.stream("draft"), device.stream("target")
            target.launch(int)
            target.wait(device.event("lost"))
            target.launch(int, label="verify")
            draft.launch(int)
            draft.wait(target.record())
            draft.launch(int, label="roll back")
            event = draft.record()
            with pytest.raises(StreamDeadlock) as caught:
                wait_for(event)
            assert str(caught.value) == (
                "deadlock: the host waits for event 1 of 'draft' behind 'roll back'; 'draft' waits for event 1 of "
                "'target' behind 'verify'; 'target' waits for event 'lost', which was never recorded "
                f"(found with seed {seed}, after 2 steps)"
            )

    def test_in_a_circle(self, wait_for: Callable[[VirtualEvent], None]) -> None:
        for seed in SEEDS:
            device = VirtualDevice(seed)
            draft, target = device.stream("draft"), device.stream("target")
            drafted, verified = device.event("drafted"), device.event("verified")
            draft.wait(verified)
            draft.record(drafted)
            target.wait(drafted)
            target.record(verified)
            with pytest.raises(StreamDeadlock) as caught:
                wait_for(drafted)
            assert str(caught.value).startswith(
                "deadlock: the host waits for event 'drafted' (1 of 'draft'); 'draft' waits for event 'verified' (1 of "
                "'target'); 'target' waits for event 'drafted' (1 of 'draft'); and so on in a circle ("
            )

    def test_of_a_stream_that_waits_for_itself(self, wait_for: Callable[[VirtualEvent], None]) -> None:
        device = VirtualDevice()
        stream, event = device.stream("main"), device.event("own")
        stream.wait(event)
        stream.record(event)
        with pytest.raises(
            StreamDeadlock, match=r"'main' waits for event 'own' \(1 of 'main'\); and so on in a circle"
        ):
            wait_for(event)

    def test_end_the_device(self, wait_for: Callable[[VirtualEvent], None]) -> None:
        device = VirtualDevice()
        stream, event = device.stream("main"), device.event("lost")
        with pytest.raises(StreamDeadlock) as caught:
            wait_for(event)
        assert device.failure is caught.value
        with pytest.raises(StreamDeadlock):
            stream.record(event)
        stream.close()


class TestOtherWaits:
    def test_closing_a_stream_that_never_ends(self) -> None:
        device = VirtualDevice()
        stream = device.stream("main")
        stream.wait(device.event("lost"))
        with pytest.raises(
            StreamDeadlock, match="the host closes 'main'; 'main' waits for event 'lost', which was never"
        ):
            stream.close()

    def test_other_streams_that_wait_for_ever_are_nobodys_affair(self) -> None:
        for seed in SEEDS:
            device = VirtualDevice(seed)
            stuck, free = device.stream("stuck"), device.stream("free")
            stuck.wait(device.event("lost"))
            launch = free.launch(lambda: 3)
            free.record().synchronize()
            assert launch.result() == 3

    def test_an_event_that_another_task_records_is_no_deadlock(self, run: Run) -> None:
        async def main(seed: int) -> int:
            device = VirtualDevice(seed)
            ahead, behind = device.stream("ahead"), device.stream("behind")
            event = device.event("late")
            behind.wait(event)
            launch = behind.launch(lambda: 7)
            waiting = asyncio.create_task(finished(behind.record()))
            # Long in all, but never quiet for long.
            for _ in range(10):
                for _ in range(100):
                    await asyncio.sleep(0)
                ahead.launch(int)
            ahead.record(event)
            await waiting
            return launch.result()

        for seed in (0, 1):
            assert run(main(seed)) == 7

    def test_a_held_stream_is_no_deadlock_for_a_task(self, run: Run) -> None:
        async def main() -> None:
            device = VirtualDevice()
            held, behind = device.stream("held"), device.stream("behind")
            gate = held.hold()
            behind.wait(held.record())
            waiting = asyncio.create_task(finished(behind.record()))
            for _ in range(1_000):
                await asyncio.sleep(0)
            assert not waiting.done()
            gate.release()
            gate.release()
            await waiting

        run(main())

    def test_a_held_stream_is_no_deadlock_for_a_thread(self) -> None:
        device = VirtualDevice()
        held, behind = device.stream("held"), device.stream("behind")
        gate = held.hold()
        behind.wait(held.record())
        event = behind.record()
        thread = threading.Thread(target=event.synchronize, daemon=True)
        thread.start()
        assert not event.done()
        gate.release()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
        assert event.done()

    def test_a_deadlock_is_told_to_a_thread_that_waits_for_a_held_stream(self) -> None:
        device = VirtualDevice()
        held = device.stream("held")
        held.hold()
        event = held.record()
        heard: list[BaseException] = []

        def wait() -> None:
            try:
                event.synchronize()
            except StreamDeadlock as error:
                heard.append(error)

        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        with pytest.raises(StreamDeadlock) as caught:
            device.event("lost").synchronize()
        thread.join(PATIENCE_S)
        assert heard == [caught.value]
