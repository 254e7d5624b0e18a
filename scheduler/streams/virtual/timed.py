"""Order by time: a discrete-event simulation of streams whose launches have durations.

Owns the virtual clock, the contention of launches that run at once, and the timeline. Time passes only while the host
waits or pays for a call, so a run takes as long as its real work does and its times are exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from scheduler.settings import check_number
from scheduler.streams.base import LaunchTimes
from scheduler.streams.virtual.choices import Choices
from scheduler.streams.virtual.machine import Machine, Queue
from scheduler.streams.virtual.operations import VirtualEvent, VirtualLaunch
from scheduler.streams.virtual.timeline import TimelineEntry

_GRACE_TURNS = 10
_ROUNDING = 1e-12
"""Relative: completions that are no further apart than this happen at once."""


@dataclass(frozen=True, kw_only=True)
class CostModel:
    """What things cost on the machine that is simulated.

    Raises:
        TypeError, ValueError: if a number is of the wrong type or outside its limits.
    """

    duration_ms: Callable[[str, str, object], float]
    """How long a launch takes with the machine to itself, given the name of its stream, its label and the work's value
    (None where it raised). Asked once for each launch, right after its work was executed, so that it may also ask a
    simulated model what it has just been through."""
    contention: Mapping[str, float] = field(default_factory=dict)
    """By stream, at least 1: how many times longer its launches take while one of another stream runs; 1 if absent."""
    host_latency_ms: float = 0.0
    """From an event's passing to the next line of a host that waits for it."""
    call_ms: float = 0.0
    """Time of the host for each launch, record, wait or look at an event. At 0, polling `done()` makes no time pass."""

    def __post_init__(self) -> None:
        for stream, factor in self.contention.items():
            check_number(f"contention[{stream!r}]", factor, low=1.0, high=1e3, advice="1 is no slow-down")
        for name in ("host_latency_ms", "call_ms"):
            check_number(name, getattr(self, name), low=0.0, high=1e6, advice="0 is a host that takes no time")


@dataclass(slots=True)
class _Running:
    launch: VirtualLaunch[object]
    start_ms: float
    remaining_ms: float
    """With the machine to itself."""


class TimedOrder:
    """Executes heads as their time comes; what comes at the same time is ordered by `choices`.

    Work is executed when its launch starts, and all that it does takes effect at that time; its stream is past it, and
    events behind it pass, when its duration is over.
    """

    def __init__(self, machine: Machine, choices: Choices, costs: CostModel) -> None:
        self._machine = machine
        self._choices = choices
        self._costs = costs
        self._running: dict[int, _Running] = {}
        self.now_ms = 0.0
        self.entries: list[TimelineEntry] = []

    @property
    def grace_turns(self) -> int:
        """Some: what other tasks of the host do at this time must not find that time has passed."""
        return _GRACE_TURNS

    def before_enqueue(self) -> None:
        """The host's call takes its time."""
        self._advance(self.now_ms + self._costs.call_ms)

    def after_enqueue(self) -> None:
        """What can start, starts."""
        while self._start_one():
            pass

    def before_look(self) -> None:
        """The host's call takes its time."""
        self._advance(self.now_ms + self._costs.call_ms)

    def step(self) -> bool:
        """Start one launch, or else go on to the next completion."""
        if self._start_one():
            return True
        if not self._running:
            return False
        self._complete(self._next_completion_ms())
        return True

    def is_idle(self, queue: Queue) -> bool:
        """Whether the queue is empty and its last launch over."""
        return not queue.operations and queue.index not in self._running

    def linger(self, event: VirtualEvent) -> int:
        """The host goes on at its own time, and streams with what is queued until then."""
        self._advance(max(self.now_ms, event.passed_ms + self._costs.host_latency_ms))
        return 0

    def _advance(self, until_ms: float) -> None:
        while True:
            while self._start_one():
                pass
            if not self._running or (next_ms := self._next_completion_ms()) > until_ms:
                break
            self._complete(next_ms)
        self._progress(until_ms)

    def _start_one(self) -> bool:
        ready = [queue for queue in self._machine.ready() if queue.index not in self._running]
        if not ready:
            return False
        queue = ready[self._choices.choose(len(ready))]
        operation = self._machine.execute(queue)
        if isinstance(operation, VirtualEvent):
            operation.passed_ms = self.now_ms
        elif isinstance(operation, VirtualLaunch):
            self._running[queue.index] = _Running(operation, self.now_ms, self._duration_ms(operation))
        return True

    def _duration_ms(self, launch: VirtualLaunch[object]) -> float:
        if not launch.was_run:
            return 0.0
        duration_ms = self._costs.duration_ms(launch.site.stream, launch.site.label, launch.value_or_none())
        if not 0.0 <= duration_ms < math.inf:
            raise ValueError(
                f"duration_ms of {launch.site} must be finite and not negative, got {duration_ms}; mend the cost model"
            )
        return duration_ms

    def _slowdown(self, index: int) -> float:
        if len(self._running) == 1:
            return 1.0
        return self._costs.contention.get(self._machine.queues[index].name, 1.0)

    def _next_completion_ms(self) -> float:
        return self.now_ms + min(
            running.remaining_ms * self._slowdown(index) for index, running in self._running.items()
        )

    def _progress(self, until_ms: float) -> None:
        """Let time pass in which nothing starts or ends."""
        for index, running in self._running.items():
            running.remaining_ms -= (until_ms - self.now_ms) / self._slowdown(index)
        self.now_ms = until_ms

    def _complete(self, at_ms: float) -> None:
        """Let time pass up to the next completion, and end what is over then."""
        scale_ms = max(1.0, at_ms) * _ROUNDING
        over = [
            index
            for index, running in self._running.items()
            if self.now_ms + running.remaining_ms * self._slowdown(index) <= at_ms + scale_ms
        ]
        self._progress(at_ms)
        for index in over:
            running = self._running.pop(index)
            launch = running.launch
            if launch.was_run:
                launch.ran = LaunchTimes(start_ms=running.start_ms, end_ms=at_ms)
            self.entries.append(
                TimelineEntry(
                    stream=launch.site.stream,
                    label=launch.site.label,
                    start_ms=running.start_ms,
                    end_ms=at_ms,
                    generation=None if launch.generation is None else launch.generation.number,
                    skipped=not launch.was_run,
                )
            )
