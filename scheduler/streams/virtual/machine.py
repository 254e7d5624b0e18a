"""The machine: the queues of a virtual device, and what executing the head of one does.

Owns queues, clocks, errors that travel and the check for races. In which order heads are executed, and what the host
may know, is decided above.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import torch

from scheduler.errors import StreamRace
from scheduler.streams.virtual.clock import NOTHING_KNOWN, Clock, advanced, joined
from scheduler.streams.virtual.operations import Hold, Operation, VirtualEvent, VirtualLaunch, Wait
from scheduler.streams.virtual.races import Race, RaceDetector


@dataclass(eq=False, kw_only=True, slots=True)
class Queue:
    """One stream as the machine sees it."""

    name: str
    index: int
    operations: deque[Operation] = field(default_factory=deque)
    clock: Clock = NOTHING_KNOWN
    """What has happened before whatever comes next."""
    poison: BaseException | None = None
    """The error that skips launches up to the next event."""
    num_launches: int = 0
    num_events: int = 0
    last_label: str = ""
    closed: bool = False

    @property
    def can_go(self) -> bool:
        """Whether the head can be executed."""
        return bool(self.operations) and self.operations[0].can_go


class Machine:
    """Executes operations, one at a time, on whatever thread asks for it."""

    def __init__(self, *, seed: int | None) -> None:
        """Begin without queues.

        Args:
            seed: what errors say of how to find them again; None in a replay.
        """
        self._seed = seed
        self._races = RaceDetector()
        self.queues: list[Queue] = []
        self.num_steps = 0
        self.running: VirtualLaunch[object] | None = None
        """The launch whose work runs at this moment."""

    def ready(self) -> list[Queue]:
        """The queues whose head can be executed."""
        return [queue for queue in self.queues if queue.can_go]

    def execute(self, queue: Queue) -> Operation:
        """Execute the head of `queue`; returns it.

        Raises:
            StreamRace: if it is a launch that touches what another one touches, and nothing orders the two.
        """
        operation = queue.operations.popleft()
        self.num_steps += 1
        queue.clock = joined(queue.clock, operation.known)
        match operation:
            case VirtualLaunch():
                self._run(queue, operation)
            case VirtualEvent():
                operation.clock, operation.error = queue.clock, queue.poison
                operation.passed = True
                queue.poison = None
            case Wait(event=event):
                queue.clock = joined(queue.clock, event.clock)
                queue.poison = queue.poison or event.error
            case Hold():
                pass
        return operation

    def race(self, race: Race) -> StreamRace:
        """The error for a race found at this moment."""
        return StreamRace(str(race), seed=self._seed, num_steps=self.num_steps)

    def _run(self, queue: Queue, launch: VirtualLaunch[object]) -> None:
        queue.clock = advanced(queue.clock, queue.index, launch.site.number)
        if queue.poison is not None or (launch.generation is not None and launch.generation.stale):
            launch.skip(queue.poison)
            return
        race = self._races.access(launch.site, queue.clock, launch.reads, launch.writes)
        if race is not None:
            raise self.race(race)
        self.running = launch
        try:
            with torch.inference_mode():
                queue.poison = launch.run()
        finally:
            self.running = None
