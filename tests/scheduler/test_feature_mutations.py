"""Whatever could go wrong between the target's features and the draft's rows, the fuzz would find."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fuzz.case import Case, scattered_cases
from tests.fuzz.mutants import first_failure, rewritten
from tests.fuzz.noise import precomputed_noise

NUM_SEEDS = 50

FAULTS = {
    "a feature is read one row late": (
        "scheduler.feature_lane",
        "self._record.before(start, stop)",
        "self._record.before(max(0, start - 1), max(0, start - 1) + stop - start)",
    ),
    "rows with features of the draft's own outlive a miss": (
        "scheduler.feature_lane",
        "super().roll_back(min(length, self._num_sure))",
        "super().roll_back(length)",
    ),
    "the draft's own features are lost": (
        "scheduler.feature_lane",
        "self._record.write(first_own, own_TE[first_own - start:])",
        "None",
    ),
    "the draft's own features take the place of the target's": (
        "scheduler.feature_lane",
        "max(start, self._num_given)",
        "start",
    ),
    "rows count as sure that are not": (
        "scheduler.feature_lane",
        "min(stop, self.num_readable)",
        "stop",
    ),
    "what was handed out before is not handed out again when it has changed": (
        "scheduler.lane",
        "self._kept.num_handed_out = min(self._kept.num_handed_out, length)",
        "None",
    ),
    "features are kept one position early": (
        "scheduler.lane",
        "self._kept.record.write(self.num_held, features_TE)",
        "self._kept.record.write(max(0, self.num_held - 1), features_TE)",
    ),
    "a prompt's features are handed out before they are there": (
        "scheduler.drafter",
        "self._track.stream.wait(parcel.sent)",
        "None",
    ),
}


@pytest.fixture(autouse=True)
def noise() -> Iterator[None]:
    with precomputed_noise():
        yield


def feature_cases() -> Iterator[Case]:
    return (case for case in scattered_cases() if case.setup().reads_features)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found(fault: str) -> None:
    assert first_failure(rewritten(*FAULTS[fault]), feature_cases(), NUM_SEEDS) is not None


def test_an_unchanged_copy_passes() -> None:
    unchanged = rewritten("scheduler.feature_lane", "gap > 0", "gap > 0")
    assert first_failure(unchanged, feature_cases(), NUM_SEEDS) is None
