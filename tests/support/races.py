"""What the tests of races share: a device with three streams, programs that must race in every order or in none."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest

from scheduler import StreamRace, VirtualDevice

NUM_SEEDS = 50
SEEDS = range(NUM_SEEDS)
READ = {"reads": ("cache",)}
WRITE = {"writes": ("cache",)}


class Rig:
    """A device with three streams."""

    def __init__(self, seed: int, trace: Sequence[tuple[int, int]] | None = None) -> None:
        self.device = VirtualDevice(seed, choices=trace)
        self.draft, self.target, self.third = (self.device.stream(name) for name in ("draft", "target", "third"))

    def close(self) -> None:
        for stream in (self.draft, self.target, self.third):
            stream.close()


def rigs() -> Iterator[Rig]:
    for seed in SEEDS:
        yield Rig(seed)


def must_race(program: Callable[[Rig], object], match: str) -> None:
    """In every order."""

    def whole(rig: Rig) -> None:
        program(rig)
        rig.close()

    for rig in rigs():
        with pytest.raises(StreamRace, match=match):
            whole(rig)
        assert isinstance(rig.device.failure, StreamRace)


def must_not_race(program: Callable[[Rig], object]) -> None:
    """In any order."""
    for rig in rigs():
        program(rig)
        rig.close()
        assert rig.device.failure is None
