"""Every wait of the pipeline is needed, and the fuzz would notice if one were gone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from scheduler import StreamDeadlock, StreamRace
from tests.fuzz.case import scattered_cases
from tests.fuzz.mutants import Mutant, early_launches, first_failure, missing_awaits, missing_waits, rewritten
from tests.fuzz.noise import precomputed_noise

NUM_SEEDS = 50


@pytest.fixture(autouse=True)
def noise() -> Iterator[None]:
    with precomputed_noise():
        yield


def by_name(mutant: Mutant) -> str:
    return mutant.name


class TestEdges:
    @pytest.mark.parametrize("mutant", missing_waits(), ids=by_name)
    def test_no_wait_can_be_left_out(self, mutant: Mutant) -> None:
        found = first_failure(mutant, scattered_cases(), NUM_SEEDS)
        assert isinstance(found, StreamRace | StreamDeadlock), f"{mutant.name}: {NUM_SEEDS} seeds found {found!r}"

    @pytest.mark.parametrize("mutant", early_launches(), ids=by_name)
    def test_nothing_may_go_ahead_of_its_wait(self, mutant: Mutant) -> None:
        # Among them the settling of the draft's side, which writes before the verdict is there.
        found = first_failure(mutant, scattered_cases(), NUM_SEEDS)
        assert isinstance(found, StreamRace | StreamDeadlock), f"{mutant.name}: {NUM_SEEDS} seeds found {found!r}"

    @pytest.mark.parametrize("mutant", missing_awaits(), ids=by_name)
    def test_the_host_waits_for_what_it_reads(self, mutant: Mutant) -> None:
        found = first_failure(mutant, scattered_cases(), NUM_SEEDS)
        assert found is not None, f"{mutant.name}: {NUM_SEEDS} seeds found nothing"

    def test_the_search_finds_the_edges_there_are(self) -> None:
        names = {mutant.name.partition(":")[0] for mutant in missing_waits()}
        assert names == {"scheduler/drafter.py", "scheduler/verifier.py"}
        assert any("flight.verified" in mutant.name for mutant in early_launches())

    def test_an_unchanged_copy_passes(self) -> None:
        unchanged = rewritten("scheduler.verifier", "NUM_VERDICT_SLOTS = 16", "NUM_VERDICT_SLOTS = 16")
        assert first_failure(unchanged, scattered_cases(), NUM_SEEDS) is None


class TestSlots:
    def test_a_ring_slot_is_not_reused_early(self) -> None:
        too_few = rewritten("scheduler.drafter", "number % self._num_slots", "number % (self._num_slots - 7)")
        assert isinstance(first_failure(too_few, scattered_cases(), NUM_SEEDS), StreamRace)

    def test_a_verdict_slot_is_not_reused_before_it_was_read(self) -> None:
        unread = rewritten("scheduler.verifier", "self._settled[flight.slot] = settled", "None")
        assert isinstance(first_failure(unread, scattered_cases(), NUM_SEEDS), StreamRace)


RESULTS = {
    "the chain stays after a miss": ("scheduler.chain", "judgement.hit", "judgement.has_guess"),
    "the draft keeps one rejected token": (
        "scheduler.chain",
        "proposer.roll_back(judgement.kept_length)",
        "proposer.roll_back(judgement.kept_length + 1)",
    ),
    "the target keeps one rejected token": (
        "scheduler.target_side",
        "self._lane.roll_back(kept_length)",
        "self._lane.roll_back(kept_length + 1)",
    ),
    "the target forgets an accepted token": (
        "scheduler.target_side",
        "history.length + min(verdict.num_accepted, len(block))",
        "history.length + max(0, min(verdict.num_accepted, len(block)) - 1)",
    ),
    "a guess counts as right once its block is": (
        "scheduler.round",
        "self.has_guess and self.verdict.num_accepted == len(self.proposal)",
        "self.has_guess and self.verdict.num_accepted >= self.num_verified",
    ),
    "whatever is proposed is accepted": (
        "scheduler.verify",
        "row == len(proposed_ids) or token_id != proposed_ids[row]",
        "row == len(proposed_ids)",
    ),
    "a guess is emitted unjudged": (
        "scheduler.verify",
        "rule(law.settings.seed, history.length + row, target, proposal, row)",
        "(rule(law.settings.seed, history.length + row, target, proposal, row) if row + 1 < len(logits_RV) or "
        "row == len(proposed_ids) else proposed_ids[row])",
    ),
    "used-up tokens are proposed again": (
        "scheduler.lookahead",
        "self._num_taken += len(judgement.verdict.token_ids)",
        "self._num_taken += judgement.num_verified",
    ),
    "what was drafted ahead is never discarded from the block": (
        "scheduler.lookahead",
        "self._throw_away([piece for piece in self._pieces if piece.generation is self.generation])",
        "None",
    ),
}


@pytest.mark.parametrize("fault", RESULTS)
def test_wrong_results_are_found(fault: str) -> None:
    mutant = rewritten(*RESULTS[fault])
    assert first_failure(mutant, scattered_cases(), NUM_SEEDS) is not None
