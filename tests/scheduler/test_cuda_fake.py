"""The fake device notices what a GPU would not forgive, and keeps time and order as a GPU does."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch

from tests.support import fake_cuda
from tests.support.fake_cuda import RUBBISH, FakeCudaError, FakeDriver, FakeEvent, FakeStream


class Rig:
    def __init__(self) -> None:
        self.driver = FakeDriver(by_hand=True)
        self.stream = self.driver.new_stream(0)
        self.host = self.driver.host_buffer(8)

    def event(self, *, timing: bool = False) -> FakeEvent:
        return self.driver.new_event(timing=timing, blocking=False)

    def recorded(self, *, timing: bool = False) -> FakeEvent:
        event = self.event(timing=timing)
        self.driver.record(event, self.stream)
        return event

    def passed(self, *, timing: bool = False) -> FakeEvent:
        event = self.recorded(timing=timing)
        self.driver.synchronize(event)
        return event

    def copy(self) -> None:
        with self.driver.under(self.stream):
            self.driver.copy_to_host(self.host, torch.zeros(8, dtype=torch.uint8))

    def destroyed(self) -> FakeStream:
        self.driver.destroy(self.stream)
        return self.stream


def elsewhere() -> FakeEvent:
    return Rig().recorded()


FAULTS: dict[str, tuple[str, Callable[[Rig], object]]] = {
    "query": ("queried before it was recorded", lambda rig: rig.driver.query(rig.event())),
    "wait": ("waited for before it was recorded", lambda rig: rig.driver.wait(rig.stream, rig.event())),
    "synchronize": ("synchronized with before it was", lambda rig: rig.driver.synchronize(rig.event())),
    "time unrecorded": (
        "timed before it was recorded",
        lambda rig: rig.driver.elapsed_ms(rig.passed(timing=True), rig.event(timing=True)),
    ),
    "time without timing": ("without timing", lambda rig: rig.driver.elapsed_ms(rig.passed(), rig.passed())),
    "time to come": (
        "has not passed",
        lambda rig: rig.driver.elapsed_ms(rig.passed(timing=True), rig.recorded(timing=True)),
    ),
    "foreign event queried": ("another device", lambda rig: rig.driver.query(elsewhere())),
    "foreign event waited for": ("another device", lambda rig: rig.driver.wait(rig.stream, elsewhere())),
    "foreign event recorded": ("another device", lambda rig: rig.driver.record(elsewhere(), rig.stream)),
    "foreign stream": ("stream of another device", lambda rig: rig.driver.record(rig.event(), Rig().stream)),
    "destroyed stream": ("destroyed stream", lambda rig: rig.driver.record(rig.event(), rig.destroyed())),
    "destroyed stream entered": ("destroyed stream", lambda rig: rig.driver.under(rig.destroyed()).__enter__()),
    "buffer written twice": ("written again before", lambda rig: (rig.copy(), rig.copy())),
    "copy on no stream": ("default stream", lambda rig: rig.driver.copy_to_host(rig.host, rig.host.clone())),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_misuse_is_a_fault_that_is_kept(fault: str) -> None:
    message, misuse = FAULTS[fault]
    rig = Rig()
    with pytest.raises(FakeCudaError, match=message) as raised:
        misuse(rig)
    assert rig.driver.faults == [raised.value]


def test_a_wait_for_what_never_passes_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake_cuda, "PATIENCE_S", 0.01)
    rig = Rig()
    rig.driver.hold(rig.stream)
    with pytest.raises(FakeCudaError, match="never passes"):
        rig.driver.synchronize(rig.recorded())


def test_nothing_passes_by_itself_and_all_passes_by_hand() -> None:
    rig = Rig()
    events = [rig.recorded() for _ in range(3)]
    assert [rig.driver.query(event) for event in events] == [False] * 3
    assert rig.driver.advance(2) == 2
    assert [rig.driver.query(event) for event in events] == [True, True, False]
    assert rig.driver.advance(5) == 1


def test_by_chance_calls_let_things_pass_and_the_seed_decides_which() -> None:
    def history(seed: int) -> list[bool]:
        driver = FakeDriver(seed)
        streams = [driver.new_stream(0) for _ in range(3)]
        events = [driver.new_event(timing=False, blocking=False) for _ in range(30)]
        for index, event in enumerate(events):
            driver.record(event, streams[index % 3])
        return [driver.query(event) for event in events]

    histories = {tuple(history(seed)) for seed in range(10)}
    assert history(3) == history(3)
    assert len(histories) > 3
    assert any(True in one and False in one for one in histories)


def test_a_wait_holds_for_the_recording_that_it_saw() -> None:
    rig = Rig()
    other = rig.driver.new_stream(0)
    event = rig.recorded()
    rig.driver.wait(other, event)
    rig.driver.synchronize(event)
    rig.driver.hold(rig.stream)
    rig.driver.record(event, rig.stream)  # again, and this one does not pass
    behind = rig.event()
    rig.driver.record(behind, other)
    rig.driver.synchronize(behind)
    assert not rig.driver.query(event)


def test_a_wait_orders_two_streams() -> None:
    rig = Rig()
    other = rig.driver.new_stream(0)
    hold = rig.driver.hold(rig.stream)
    rig.driver.wait(other, rig.recorded())
    behind = rig.event()
    rig.driver.record(behind, other)
    rig.driver.advance(100)
    assert not rig.driver.query(behind)
    hold.release()
    rig.driver.advance(100)
    assert rig.driver.query(behind)


def test_a_release_wakes_a_thread_that_waits() -> None:
    rig = Rig()
    hold = rig.driver.hold(rig.stream)
    event = rig.recorded()
    thread = threading.Thread(target=rig.driver.synchronize, args=(event,))
    thread.start()
    hold.release()
    thread.join(fake_cuda.PATIENCE_S)
    assert not thread.is_alive()
    assert rig.driver.query(event)


def test_a_copy_arrives_when_it_passes() -> None:
    rig = Rig()
    source = torch.arange(8, dtype=torch.uint8)
    with rig.driver.under(rig.stream):
        event = rig.driver.copy_to_host(rig.host, source)
    source.zero_()
    assert rig.host.tolist() == [RUBBISH] * 8
    rig.driver.synchronize(event)
    assert rig.host.tolist() == list(range(8))


def test_time_passes_with_operations() -> None:
    rig = Rig()
    start = rig.passed(timing=True)
    end = rig.passed(timing=True)
    assert rig.driver.elapsed_ms(start, end) > 0.0
