"""Programs for virtual devices, and what they should come to, worked out without clocks."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass

from scheduler import VirtualDevice, VirtualEvent, VirtualStream


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a run of `relay` gave."""

    values: tuple[int, ...]
    order: tuple[str, ...]
    """The launches in the order in which they ran."""


async def relay(device: VirtualDevice, num_rounds: int = 6) -> Outcome:
    """Two streams hand a number to and fro; each also has work of its own that nobody waits for.

    Correctly synchronised: every round's sum is made on the right from what the left has written, and the left writes
    again only behind it.
    """
    left, right = device.stream("left"), device.stream("right")
    order: list[str] = []
    cells = {"left": 0, "right": 0, "spare": 0}
    values: list[int] = []

    def work(name: str, change: Callable[[], None]) -> Callable[[], int]:
        def run() -> int:
            order.append(name)
            change()
            return cells["right"]

        return run

    def set_left(index: int) -> None:
        cells["left"] = cells["right"] + index

    def set_right() -> None:
        cells["right"] = cells["right"] * 2 + cells["left"]

    def set_spare() -> None:
        cells["spare"] += 1

    taken = right.record()
    for index in range(num_rounds):
        left.wait(taken)
        left.launch(work(f"write {index}", lambda index=index: set_left(index)), reads=("right",), writes=("left",))
        written = left.record()
        left.launch(work(f"spare {index}", set_spare), writes=("spare",))
        right.wait(written)
        total = right.launch(work(f"sum {index}", set_right), reads=("left",), writes=("right",))
        taken = right.record()
        right.launch(work(f"idle {index}", lambda: None))
        if index % 2:
            await taken
            values.append(total.result())
    for stream in (left, right):
        await stream.record()
    return Outcome(values=(*values, cells["spare"]), order=tuple(order))


def run_relay(device: VirtualDevice, num_rounds: int = 6) -> Outcome:
    """The same on a loop of its own, both streams closed at its end."""
    return asyncio.run(relay(device, num_rounds))


@dataclass(frozen=True, kw_only=True)
class Access:
    """One launch of a random program."""

    stream: int
    reads: frozenset[str]
    writes: frozenset[str]

    def conflicts_with(self, other: Access) -> bool:
        """Whether both touch one buffer and at least one writes it."""
        return bool(self.writes & (other.writes | other.reads) or self.reads & other.writes)


class RandomProgram:
    """Launches, records, waits and synchronisations on three streams, drawn from a seed.

    Whether it has a race is told by walking through all that must happen before each launch: no clock, no order.
    """

    def __init__(self, seed: int, *, num_operations: int = 24) -> None:
        draw = random.Random(seed)
        self.operations: list[tuple[str, int, object]] = []
        num_events = 0
        for _ in range(num_operations):
            stream = draw.randrange(3)
            kind = draw.choice(("launch", "launch", "record", "wait", "wait", "synchronize"))
            if kind == "launch":
                names = [name for name in ("a", "b", "c") if draw.random() < 0.15]
                writes = frozenset(name for name in names if draw.random() < 0.5)
                self.operations.append(
                    (kind, stream, Access(stream=stream, reads=frozenset(names) - writes, writes=writes))
                )
            elif kind == "record" or not num_events:
                self.operations.append(("record", stream, num_events))
                num_events += 1
            elif kind == "wait" or draw.random() < 0.3:
                self.operations.append((kind, stream, draw.randrange(num_events)))

    @property
    def has_race(self) -> bool:
        """Whether two launches that conflict are unordered."""
        last: dict[int, frozenset[int]] = {}
        events: dict[object, frozenset[int]] = {}
        host: frozenset[int] = frozenset()
        before: list[tuple[Access, frozenset[int]]] = []
        for kind, stream, operand in self.operations:
            known = last.get(stream, frozenset()) | host
            if kind == "launch":
                assert isinstance(operand, Access)
                for index, (access, _) in enumerate(before):
                    if index not in known and operand.conflicts_with(access):
                        return True
                before.append((operand, known))
                known |= {len(before) - 1}
            elif kind == "record":
                events[operand] = known
            elif kind == "wait":
                known |= events[operand]
            else:
                host |= events[operand]
                continue
            last[stream] = known
        return False

    def run(self, device: VirtualDevice) -> None:
        """Enqueue it all, and wait for the end."""
        streams: list[VirtualStream] = [device.stream(name) for name in ("first", "second", "third")]
        events: list[VirtualEvent] = []
        for kind, stream, operand in self.operations:
            if isinstance(operand, Access):
                streams[stream].launch(int, reads=operand.reads, writes=operand.writes)
            elif kind == "record":
                events.append(streams[stream].record())
            elif kind == "wait":
                streams[stream].wait(events[operand])  # type: ignore[call-overload]  # an index of an event
            else:
                events[operand].synchronize()  # type: ignore[call-overload]  # an index of an event
        for virtual_stream in streams:
            virtual_stream.close()
