"""Order by chance: which stream goes next, and how far the device gets while the host does other things.

Owns the schedule of a seeded device: any order that events allow may come. Uniform draws alone would rarely let one
stream run far ahead, or the device lag far behind the host; so a favourite stream and the device's zeal are drawn as
well, and stay for a while.
"""

from __future__ import annotations

import sys
from typing import Protocol

from scheduler.streams.virtual.choices import Choices
from scheduler.streams.virtual.machine import Machine, Queue
from scheduler.streams.virtual.operations import VirtualEvent

_BURSTS = ((0,), (0, 0, 0, 1, 1, 2), (0, 1, 2, 3, 5, 8), (sys.maxsize,))
"""For each degree of zeal: how many steps the device may take at a host call."""
_STEPS_PER_FAVOURITE = 12
_CALLS_PER_ZEAL = 30


class Order(Protocol):
    """When the device executes what."""

    @property
    def grace_turns(self) -> int:
        """Turns of the loop that the device leaves to the host's other tasks before it goes on."""
        ...

    def before_enqueue(self) -> None:
        """The host is about to enqueue something."""
        ...

    def after_enqueue(self) -> None:
        """The host has enqueued something."""
        ...

    def before_look(self) -> None:
        """The host is about to look whether an event has passed."""
        ...

    def step(self) -> bool:
        """Go on by as little as possible, while the host waits; False if nothing can go."""
        ...

    def is_idle(self, queue: Queue) -> bool:
        """Whether that stream has nothing left to do."""
        ...

    def linger(self, event: VirtualEvent) -> int:
        """The event for which the host waits has passed: how many more steps the host may be late by."""
        ...


class SeededOrder:
    """Executes ready heads as `choices` has it; a launch is over as soon as it has begun."""

    def __init__(self, machine: Machine, choices: Choices) -> None:
        self._machine = machine
        self._choices = choices
        self._zeal: int | None = None
        self._favourite: Queue | None = None

    @property
    def grace_turns(self) -> int:
        """None: every delay is legal."""
        return 0

    def before_enqueue(self) -> None:
        """Nothing: whatever may happen here may have happened behind the call before."""

    def after_enqueue(self) -> None:
        """Take some steps, or none: what was just enqueued may be over before the host's next line."""
        self._take(self._burst())

    def before_look(self) -> None:
        """Take some steps, or none."""
        self._take(self._burst())

    def step(self) -> bool:
        """Execute one head."""
        ready = self._machine.ready()
        if not ready:
            return False
        self._machine.execute(self._pick(ready))
        return True

    def is_idle(self, queue: Queue) -> bool:
        """Whether the queue is empty."""
        return not queue.operations

    def linger(self, event: VirtualEvent) -> int:
        """Any number of steps."""
        return self._burst()

    def _take(self, num_steps: int) -> None:
        while num_steps > 0 and self.step():
            num_steps -= 1

    def _burst(self) -> int:
        if not any(queue.can_go for queue in self._machine.queues):
            return 0
        if self._zeal is None or self._choices.choose(_CALLS_PER_ZEAL) == 0:
            self._zeal = self._choices.choose(len(_BURSTS))
        bursts = _BURSTS[self._zeal]
        return bursts[self._choices.choose(len(bursts))]

    def _pick(self, ready: list[Queue]) -> Queue:
        if len(ready) == 1:
            return ready[0]
        if self._choices.choose(_STEPS_PER_FAVOURITE) == 0:
            # One more than there are streams: nobody may be the favourite.
            candidates = [*self._machine.queues, None]
            self._favourite = candidates[self._choices.choose(len(candidates))]
        if self._favourite is not None and self._favourite in ready:
            return self._favourite
        return ready[self._choices.choose(len(ready))]
