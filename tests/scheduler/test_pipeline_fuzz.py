"""A slice of the interleaving fuzz; `make fuzz` runs it for thousands of seeds."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.fuzz.__main__ import main
from tests.fuzz.case import Case, FateKind, Place, cases_of, telling_cases
from tests.fuzz.law import Sample, bound_of, exact_law
from tests.fuzz.mutants import installed, rewritten
from tests.fuzz.noise import precomputed_noise
from tests.fuzz.play import play
from tests.fuzz.tally import Tally


@pytest.fixture(autouse=True)
def noise() -> Iterator[None]:
    with precomputed_noise():
        yield


def test_every_combination(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "1", "--workers", "1"]) == 0, capfd.readouterr().err
    result = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert (result["runs"], result["seeds"]) == (2 * 4 * 6 * 6, 1)
    assert result["races"] == result["deadlocks"] == result["mismatches"] == result["errors"] == 0
    for what in ("hits", "misses", "discarded", "skipped_launches", "rounds"):
        assert result[what] > 100, f"too few to mean anything: {what}"
    assert set(result["law"]) == {"always", "never", "alternating", "random"}
    for distance in itertools.chain.from_iterable(result["law"].values()):
        assert 0 < distance["total_variation"] <= distance["bound"]


def test_cases_take_every_turn() -> None:
    setups = [case.setup() for case in itertools.islice(cases_of(4), 288)] + [
        case.setup() for case in itertools.islice(cases_of(5), 288)
    ]
    assert {fate.kind for setup in setups for fate in setup.fates} == set(FateKind)
    assert {setup.num_awaited for setup in setups} == {None, *range(7)}
    assert {setup.num_verdict_slots for setup in setups} == {1, 2}
    assert max(setup.max_lead for setup in setups) > 20
    assert {setup.with_ngram for setup in setups} == {False, True}
    assert {setup.warmup_tokens for setup in setups} == set(range(5))
    assert len({setup.draft_block for setup in setups}) == 3


def test_half_of_the_cases_run_on_the_device_and_another_seed_has_the_other_half() -> None:
    first, second = [
        {dataclasses.replace(case, seed=0, place=Place.HOST): case.place for case in cases_of(seed)} for seed in (6, 7)
    ]
    assert Counter(first.values()) == {Place.HOST: 144, Place.DEVICE: 144}
    assert all(first[combination] is not second[combination] for combination in first)


def test_a_case_is_what_its_name_says() -> None:
    for case in itertools.islice(cases_of(7), 0, 288, 17):
        assert Case.parse(str(case)) == case
        first, second = play(case), play(case)
        assert (first.counts, first.first_ids) == (second.counts, second.first_ids)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1/coupled/never/3/2/nowhere",
        "1/coupled/never/3",
        "1/none/never/3/2",
        "1/coupled/never/0/2",
        "x/coupled/never/1/2",
    ],
)
def test_a_name_of_no_case_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"as in 17/coupled/never/3/2|between 1 and 6"):
        Case.parse(text)


class TestLaw:
    def test_a_guess_is_never_redrawn(self) -> None:
        # Were it thrown away when it is refused, and its place drawn anew from the target's whole law, what the draft
        # likes would be written too often.
        redrawn = rewritten(
            "scheduler.verify",
            "residual.draw(seed, position, Purpose.RESIDUAL)",
            "(target if row == len(proposal.token_ids) - 1 else residual).draw(seed, position, Purpose.RESIDUAL)",
        )
        sample = Sample()
        with installed(redrawn):
            for case in itertools.islice(telling_cases(), 700):
                played = play(case)
                sample.add((case.pattern, played.law_name), played.first_ids)
        assert not all(distance.is_fair for distance in sample.distances()["random"])

    def test_bounds_shrink_with_the_number_of_runs(self) -> None:
        law = exact_law("sampled").values()
        bounds = [bound_of(law, num_runs) for num_runs in (100, 1_000, 10_000, 100_000)]
        for larger, smaller in itertools.pairwise(bounds):
            assert smaller == pytest.approx(larger / 10**0.5, rel=0.2)

    def test_laws_are_laws_and_not_one_sided(self) -> None:
        law = exact_law("sampled")
        assert len(law) == 4**3
        assert sum(law.values()) == pytest.approx(1)
        assert max(law.values()) < 0.3


class TestProgram:
    def test_a_failure_names_the_command_that_repeats_it(self) -> None:
        broken = rewritten("scheduler.drafter", "self._track.stream.wait(flight.verified)", "None")
        with installed(broken):
            tally = Tally().play(itertools.islice(cases_of(0), 3))
        assert tally.has_failed
        assert [failure.kind for failure in tally.failures] == ["races"] * 3
        assert "python -m tests.fuzz --case 0/coupled/always/1/1" in str(tally.failures[0])
        assert json.loads(tally.as_json(num_seeds=1, duration_s=1.0))["races"] == 3

    def test_one_case_again(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["--case", "3/rejection/random/2/2"]) == 0
        assert "first_ids" in capsys.readouterr().out
