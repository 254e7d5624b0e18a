"""Rounds on the device: every wait is needed there as well, and what goes wrong there would show."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

import pytest

from scheduler import StreamDeadlock, StreamRace
from tests.fuzz.case import Place, scattered_cases, telling_cases
from tests.fuzz.law import Sample
from tests.fuzz.mutants import (
    Mutant,
    early_launches,
    first_failure,
    installed,
    missing_awaits,
    missing_waits,
    rewritten,
)
from tests.fuzz.noise import precomputed_noise
from tests.fuzz.play import play

NUM_SEEDS = 60


@pytest.fixture(autouse=True)
def noise() -> Iterator[None]:
    with precomputed_noise():
        yield


def of_the_device(mutants: Iterable[Mutant]) -> list[Mutant]:
    """Without the edges on which features travel: no source that reads them runs on the device."""
    return [mutant for mutant in mutants if "parcel." not in mutant.name]


def by_name(mutant: Mutant) -> str:
    return mutant.name


def failure_of(mutant: Mutant) -> Exception | None:
    return first_failure(mutant, scattered_cases(Place.DEVICE), NUM_SEEDS)


@pytest.mark.parametrize("mutant", of_the_device([*missing_waits(), *early_launches()]), ids=by_name)
def test_no_wait_can_be_left_out(mutant: Mutant) -> None:
    found = failure_of(mutant)
    assert isinstance(found, StreamRace | StreamDeadlock), f"{mutant.name}: {NUM_SEEDS} seeds found {found!r}"


@pytest.mark.parametrize("mutant", of_the_device(missing_awaits()), ids=by_name)
def test_the_host_waits_for_what_it_reads(mutant: Mutant) -> None:
    assert failure_of(mutant) is not None


def test_an_unchanged_copy_passes() -> None:
    assert failure_of(rewritten("scheduler.on_device.target", "_NUM_RESULT_SLOTS = 4", "_NUM_RESULT_SLOTS = 4")) is None


POSITION, CHAIN, TARGET = (f"scheduler.on_device.{name}" for name in ("position", "chain", "target"))
RESULTS = {
    "the chain stays after a miss": (
        POSITION,
        "torch.where(restart.hit, self.next_position, restart.next_position)",
        "self.next_position.clone()",
    ),
    "the chain is thrown away after a hit": (
        POSITION,
        "torch.where(restart.hit, self.next_position, restart.next_position)",
        "restart.next_position",
    ),
    "the chain goes on from its own tokens after a miss": (
        POSITION,
        "torch.where(restart.hit, self.tail_2, restart.tail_2)",
        "self.tail_2.clone()",
    ),
    "a step does not read the token before the last": (
        CHAIN,
        "self._position.tail_2.clamp(max=num_shared - 1)",
        "self._position.tail_2.clamp(max=num_shared - 1)[[1, 1]]",
    ),
    "a step may see too few keys": (
        "scheduler.on_device.extent",
        "max(after_miss, after_hit) + pending.num_drawn_since",
        "after_miss + pending.num_drawn_since",
    ),
    "what the target wrote alone is not read": (
        "scheduler.on_device.extent",
        "self._num_steps > 0 or self.num_read >= self.length - (2 if self._pending is None else 1)",
        "True",
    ),
    "tokens of all slots are written to one": (
        CHAIN,
        "self._slots.write(slot, place, token_id, sound)",
        "self._slots.write(0, place, token_id, sound)",
    ),
    "the target keeps what was refuted": (
        TARGET,
        "self._lane.roll_back(judgement.kept_length)",
        "None",
    ),
    "the target never learns what it holds": (
        TARGET,
        "self._lane.reveal(start, judgement.history.ids(start)[:judgement.kept_length - start])",
        "None",
    ),
    "the draft holds a token that it never read": (
        CHAIN,
        "min(self._extent.num_read, self._history.length)",
        "self._history.length",
    ),
}


@pytest.mark.parametrize("fault", RESULTS)
def test_wrong_results_are_found(fault: str) -> None:
    assert failure_of(rewritten(*RESULTS[fault])) is not None


class TestLaw:
    """The law of first tokens under the rejection rule, drawn by many runs of whole loops."""

    @staticmethod
    def sampled(num_runs: int) -> Sample:
        sample = Sample()
        for case in itertools.islice(telling_cases(Place.DEVICE), num_runs):
            played = play(case)
            sample.add((case.pattern, played.law_name), played.first_ids)
        return sample

    def test_is_the_targets(self) -> None:
        assert all(distance.is_fair for distance in self.sampled(300).distances()["random"])

    def test_another_one_would_show(self) -> None:
        redrawn = rewritten(
            "scheduler.on_device.judge", "torch.where(left_over_P1, residual_PV, target_PV)", "target_PV"
        )
        with installed(redrawn):
            sample = self.sampled(300)
        assert not all(distance.is_fair for distance in sample.distances()["random"])
