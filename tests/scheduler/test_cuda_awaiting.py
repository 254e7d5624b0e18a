"""When an event is looked at while a coroutine waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Generator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.streams.cuda.awaiting import PollingWaiter, ThreadWaiter, pause_s

SECONDS = st.floats(min_value=0.0, max_value=60.0)
TIMER_S = 1.2e-3
"""How late a loop's timer may ring: its granularity and a little."""


class Machine:
    """A clock, and a loop on it whose turns take 10 us and whose timers ring late."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.num_turns = 0
        self.num_timers = 0

    def clock(self) -> float:
        return self.now_s

    def turn(self) -> None:
        self.num_turns += 1
        self.now_s += 10e-6

    def timer(self, delay_s: float) -> None:
        self.num_timers += 1
        self.now_s += delay_s + TIMER_S


class Point:
    """Passes at a moment of the machine's clock."""

    def __init__(self, machine: Machine, delay_s: float) -> None:
        self._machine = machine
        self.passes_s = machine.now_s + delay_s
        self.num_looks = 0

    def done(self) -> bool:
        self.num_looks += 1
        return self._machine.now_s >= self.passes_s

    def wait_error(self) -> BaseException | None:
        return None


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine()

    class Sleep:
        def __init__(self, delay_s: float) -> None:
            self.delay_s = delay_s

        def __await__(self) -> Generator[object, None, None]:
            yield self

    monkeypatch.setattr(asyncio, "sleep", Sleep)
    return machine


def wait(machine: Machine, waiter: PollingWaiter, delay_s: float) -> float:
    """Drive one wait; returns how late the coroutine noticed."""
    point = Point(machine, delay_s)
    for request in waiter.wait_for(point):
        if request is None:
            machine.turn()
        else:
            machine.timer(request.delay_s)  # type: ignore[attr-defined]  # the fixture's Sleep
    return machine.now_s - point.passes_s


class TestPause:
    @given(SECONDS, SECONDS)
    def test_never_passes_the_expected_end_nor_a_millisecond_behind_it(
        self, elapsed_s: float, expected_s: float
    ) -> None:
        delay_s = pause_s(elapsed_s, expected_s)
        assert delay_s >= 0.0
        if elapsed_s < expected_s:
            assert elapsed_s + delay_s <= expected_s
        else:
            assert delay_s <= 1e-3

    def test_begins_with_turns_then_grows_to_a_millisecond(self) -> None:
        delays_s = [pause_s(elapsed_us * 1e-6, 0.0) for elapsed_us in range(0, 20_000, 10)]
        assert delays_s == sorted(delays_s)
        assert delays_s[0] == 0.0
        assert delays_s[-1] == 1e-3

    def test_sleeps_until_shortly_before_the_expected_end_and_then_turns(self) -> None:
        delays_s, elapsed_s = [], 100e-6
        while (delay_s := pause_s(elapsed_s, 20e-3)) > 0.0:
            delays_s.append(delay_s)
            elapsed_s += delay_s
        assert 15e-3 < elapsed_s <= 20e-3 - TIMER_S
        assert len(delays_s) < 8
        assert pause_s(20e-3, 20e-3) == 0.0

    @given(SECONDS)
    def test_what_is_over_early_is_not_slept_past_for_long(self, elapsed_s: float) -> None:
        assert pause_s(elapsed_s, 1e3) <= 5e-3
        if elapsed_s > 1e-3:
            assert pause_s(elapsed_s, 1e3) <= elapsed_s


class TestPolling:
    def test_short_waits_take_turns_only(self, machine: Machine) -> None:
        assert wait(machine, PollingWaiter(machine.clock), 40e-6) <= 10e-6
        assert machine.num_timers == 0

    def test_steady_waits_are_noticed_within_a_turn_and_mostly_slept_through(self, machine: Machine) -> None:
        waiter = PollingWaiter(machine.clock)
        for _ in range(20):
            wait(machine, waiter, 20e-3)
        machine.num_turns = machine.num_timers = 0
        assert wait(machine, waiter, 20e-3) <= 11e-6
        assert machine.num_timers <= 5
        assert machine.num_turns * 10e-6 < 0.2 * 20e-3

    def test_a_short_wait_behind_long_ones_is_not_slept_past_for_long(self, machine: Machine) -> None:
        waiter = PollingWaiter(machine.clock)
        for _ in range(20):
            wait(machine, waiter, 2.0)
        late_s = [wait(machine, waiter, 20e-3) for _ in range(30)]
        assert max(late_s) <= 5e-3 + TIMER_S
        # What the long ones taught is forgotten, and so are the first short ones, whose end was seen late.
        assert max(late_s[20:]) <= 11e-6

    def test_short_waits_among_long_ones_are_not_slept_past(self, machine: Machine) -> None:
        waiter = PollingWaiter(machine.clock)
        late_s = [wait(machine, waiter, 40e-3 if index % 4 else 10e-3) for index in range(40)]
        # The long ones then end a pause late, at most: that is the price.
        assert max(late_s[8::4]) <= 11e-6
        assert max(late_s[8:]) <= 1e-3 + TIMER_S

    def test_a_long_wait_behind_short_ones_is_not_spun_through(self, machine: Machine) -> None:
        waiter = PollingWaiter(machine.clock)
        for _ in range(20):
            wait(machine, waiter, 1e-3)
        machine.num_turns = 0
        assert wait(machine, waiter, 5.0) <= 1e-3 + TIMER_S
        assert machine.num_turns < 200

    def test_without_experience_a_wait_ends_within_a_pause(self, machine: Machine) -> None:
        assert wait(machine, PollingWaiter(machine.clock), 15e-3) <= 1e-3 + TIMER_S

    def test_experience_shrinks_by_itself(self, machine: Machine) -> None:
        waiter = PollingWaiter(machine.clock)
        for _ in range(8):
            wait(machine, waiter, 0.1)
        for _ in range(40):
            wait(machine, waiter, 5e-3)
        assert waiter.expected_s < 8e-3


class Failing:
    """A point whose waiting breaks in a way that no driver announces."""

    def done(self) -> bool:
        return False

    def wait_error(self) -> BaseException | None:
        raise LookupError("planted")


def test_a_thread_that_breaks_wakes_its_waiter_all_the_same() -> None:
    waiter = ThreadWaiter("breaking")

    class Wait:
        def __await__(self) -> Generator[object, None, None]:
            return waiter.wait_for(Failing())

    async def main() -> None:
        await Wait()

    with pytest.raises(LookupError, match="planted"):
        asyncio.run(main())
    waiter.close()
