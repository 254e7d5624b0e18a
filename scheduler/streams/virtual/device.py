"""The virtual device: streams on one thread, in every order that their events allow.

Owns what the host sees: streams, waiting, what it may know, and failures. Launches are executed for real, one at a time
and only inside the host's own calls, in an order that a seed draws. What a real device shows now and then is found
here in nearly every order: a missing wait is a race unless the host had seen the event pass, or one of the two launches
was skipped; a wait for what never comes is a deadlock. Knows nothing of models.

All tasks and threads that use a device are one host to it: what one of them has awaited, all know.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from scheduler.errors import StreamClosedError, StreamDeadlock
from scheduler.streams.virtual.choices import Choice, Choices
from scheduler.streams.virtual.clock import NOTHING_KNOWN, Clock, joined, knows
from scheduler.streams.virtual.deadlock import chain_behind
from scheduler.streams.virtual.machine import Machine, Queue
from scheduler.streams.virtual.operations import Hold, VirtualEvent, VirtualLaunch
from scheduler.streams.virtual.order import Order, SeededOrder
from scheduler.streams.virtual.races import result_race
from scheduler.streams.virtual.stream import VirtualStream
from scheduler.streams.virtual.timed import CostModel, TimedOrder
from scheduler.streams.virtual.timeline import TimelineEntry

Result = TypeVar("Result")

_PATIENCE_TURNS = 300
"""Turns of the loop in which nothing can go and nobody enqueues anything, until that is called a deadlock."""


class VirtualTime:
    """The time of a virtual device."""

    def __init__(self, device: VirtualDevice) -> None:
        self._device = device

    def now_ms(self) -> float:
        """What the virtual clock shows."""
        return self._device.now_ms


class VirtualDevice:
    """Makes streams, and executes what is launched on them.

    The same seed and the same host program give the same order. `trace` holds all that was drawn: a device made with
    `choices=trace` repeats the order without the seed.
    """

    def __init__(
        self, seed: int = 0, *, choices: Sequence[tuple[int, int]] | None = None, costs: CostModel | None = None
    ) -> None:
        """Begin without streams.

        Args:
            seed: of the order.
            choices: the trace of an earlier device, to be replayed in place of the seed.
            costs: makes the order follow a virtual clock, on which launches take the time that this says; the seed then
                orders what happens at the same time. None has no clock, and any order that events allow.

        Raises:
            TypeError: if the seed is no integer or the costs are no `CostModel`.
        """
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise TypeError(f"seed must be an integer, not {type(seed).__name__}")
        if costs is not None and not isinstance(costs, CostModel):
            raise TypeError(f"costs must be a CostModel or None, not {type(costs).__name__}")
        self._choices = Choices(seed, choices)
        self._machine = Machine(seed=self._choices.seed)
        self._timed = None if costs is None else TimedOrder(self._machine, self._choices, costs)
        self._order: Order = self._timed or SeededOrder(self._machine, self._choices)
        # Work may come back to the device: it launches, reads results, closes.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._num_changes = 0
        self._num_enqueued = 0
        self._host_clock: Clock = NOTHING_KNOWN
        self._failure: Exception | None = None
        self._failure_told = False

    @property
    def seed(self) -> int | None:
        """What the order is drawn from; None in a replay."""
        return self._choices.seed

    @property
    def trace(self) -> tuple[Choice, ...]:
        """Everything that was random so far."""
        with self._lock:
            return self._choices.made

    @property
    def num_steps(self) -> int:
        """Operations executed so far."""
        return self._machine.num_steps

    @property
    def now_ms(self) -> float:
        """Time on the virtual clock; 0 without one."""
        return 0.0 if self._timed is None else self._timed.now_ms

    def time_source(self) -> VirtualTime:
        """The virtual clock.

        Raises:
            ValueError: if the device was made without one.
        """
        if self._timed is None:
            raise ValueError("no time passes on this VirtualDevice: make it with costs=CostModel(...)")
        return VirtualTime(self)

    @property
    def timeline(self) -> tuple[TimelineEntry, ...]:
        """What has run on the virtual clock, in the order of the ends; nothing without one."""
        with self._lock:
            return () if self._timed is None else tuple(self._timed.entries)

    @property
    def failure(self) -> Exception | None:
        """The race, deadlock or mismatch that has ended this device; every later call raises it."""
        return self._failure

    def stream(self, name: str) -> VirtualStream:
        """A new stream.

        Raises:
            ValueError: if there is one of that name.
        """
        with self._lock:
            queues = self._machine.queues
            if any(queue.name == name for queue in queues):
                raise ValueError(f"the device has a stream {name!r} already; messages need another name")
            queues.append(Queue(name=name, index=len(queues)))
            return VirtualStream(self, queues[-1])

    def event(self, name: str) -> VirtualEvent:
        """An event that streams can wait for before any stream records it (`VirtualStream.record(event)`)."""
        return VirtualEvent(self, name)

    @contextmanager
    def enqueuing(self, queue: Queue) -> Iterator[tuple[Clock, int]]:
        """Around the appending of an operation: gives what the caller knows and the operation's position among all."""
        with self._lock:
            self._check()
            if queue.closed:
                raise StreamClosedError(f"stream {queue.name!r} is closed; load a new runtime")
            from_host = self._machine.running is None
            if from_host:
                self._drive(self._order.before_enqueue)
            self._num_enqueued += 1
            yield self._clock(), self._num_enqueued
            self._note_change()
            if from_host:
                self._drive(self._order.after_enqueue)

    def release(self, hold: Hold) -> None:
        """See `Hold.release`."""
        with self._lock:
            hold.can_go = True
            self._note_change()

    def close(self, queue: Queue) -> None:
        """See `VirtualStream.close`."""
        with self._lock:
            was_closed, queue.closed = queue.closed, True
            if self._machine.running is not None:
                return
            if self._failure is None:
                while not self._order.is_idle(queue):
                    if not self._drive(self._order.step):
                        self._stall(queue)
                self._learn(queue.clock)
                if not was_closed and all(other.closed for other in self._machine.queues):
                    self._drive(self._choices.check_used_up)
            queue.operations.clear()
            if not self._failure_told:
                self._check()

    def is_done(self, event: VirtualEvent) -> bool:
        """See `VirtualEvent.done`."""
        with self._lock:
            if self._failure is None and self._machine.running is None:
                try:
                    self._drive(self._order.before_look)
                except Exception:
                    # Looking never raises: whoever calls next hears of it.
                    self._failure_told = False
            if event.passed:
                self._learn(event.clock)
            return event.passed or self._failure is not None

    def synchronize(self, event: VirtualEvent) -> None:
        """See `VirtualEvent.synchronize`."""
        with self._lock:
            self._check()
            running = self._machine.running
            if running is not None and not event.passed:
                raise RuntimeError(f"{running.site} waits for {event}; only streams can: stream.wait(event)")
            while not event.passed:
                if not self._drive(self._order.step):
                    self._stall(event)
            num_late = self._linger(event) if running is None else 0
            while num_late > 0 and self._drive(self._order.step):
                num_late -= 1
            self._learn(event.clock)
        if event.error is not None:
            raise event.error

    def turns_until(self, event: VirtualEvent) -> Generator[None, None, None]:
        """Yield to the loop until `event` has passed, going on by one step a turn."""
        num_quiet_turns = num_stalled_turns = num_changes = 0
        while True:
            yield
            with self._lock:
                self._check()
                if event.passed:
                    num_late = self._linger(event)
                    break
                num_quiet_turns = num_quiet_turns + 1 if num_changes == self._num_changes else 0
                num_changes = self._num_changes
                if num_quiet_turns < self._order.grace_turns:
                    continue
                stepped = self._drive(self._order.step)
                num_stalled_turns = 0 if stepped or num_quiet_turns == 0 else num_stalled_turns + 1
                if num_stalled_turns > _PATIENCE_TURNS:
                    self._check_deadlock(event)
        while num_late > 0:
            yield
            with self._lock:
                self._check()
                num_late = num_late - 1 if self._drive(self._order.step) else 0
        with self._lock:
            self._learn(event.clock)
            self._note_change()
        if event.error is not None:
            raise event.error

    def result_of(self, launch: VirtualLaunch[Result]) -> Result:
        """See `VirtualLaunch.result`."""
        with self._lock:
            if self.knows_of(launch):
                return launch.outcome()
            reader = self._machine.running
            if reader is not None and reader is not launch:
                self._failure = self._failure or self._machine.race(result_race(launch.site, reader.site))
            if self._failure is not None:
                raise self._failure
            raise RuntimeError(
                f"as far as the caller can know, {launch.site} has not run yet; wait for an event recorded behind it"
            )

    def knows_of(self, launch: VirtualLaunch[Result]) -> bool:
        """Whether `launch` has certainly happened before the caller's line."""
        with self._lock:
            is_running = self._machine.running is launch
            return not is_running and knows(self._clock(), launch.site.stream_index, launch.site.number)

    def _clock(self) -> Clock:
        """What is known to the caller: to the work that runs, or to the host."""
        running = self._machine.running
        return self._host_clock if running is None else self._machine.queues[running.site.stream_index].clock

    def _learn(self, clock: Clock) -> None:
        running = self._machine.running
        if running is None:
            self._host_clock = joined(self._host_clock, clock)
        else:
            queue = self._machine.queues[running.site.stream_index]
            queue.clock = joined(queue.clock, clock)

    def _note_change(self) -> None:
        self._num_changes += 1
        self._changed.notify_all()

    def _check(self) -> None:
        if self._failure is not None:
            self._failure_told = True
            raise self._failure

    def _drive(self, action: Callable[[], Result]) -> Result:
        """Let the device go on; whatever goes wrong there, other than in work, is the end of it."""
        try:
            result = action()
        except Exception as error:
            self._failure = self._failure or error
        self._check()
        return result

    def _linger(self, event: VirtualEvent) -> int:
        return self._drive(lambda: self._order.linger(event))

    def _stall(self, start: VirtualEvent | Queue) -> None:
        """Nothing can go: wait for somebody to release a stream, or give up."""
        self._check_deadlock(start)
        self._changed.wait()
        self._check()

    def _check_deadlock(self, start: VirtualEvent | Queue) -> None:
        chain = chain_behind(self._machine.queues, start)
        if not chain.is_held:
            self._failure = StreamDeadlock(
                f"deadlock: {chain.text}", seed=self._choices.seed, num_steps=self._machine.num_steps
            )
            self._changed.notify_all()
            self._check()
