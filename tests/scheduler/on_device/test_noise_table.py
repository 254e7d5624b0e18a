"""The table of keys: the noise of `scheduler.noise` to the bit, for positions that only a tensor knows."""

from __future__ import annotations

import pytest
import torch

from scheduler import SamplingSettings, Verification
from scheduler.noise import Purpose, gumbel_noise, uniform
from scheduler.on_device import NoiseTable, purposes_of

SEEDS = (0, 1, -1, -(2**63), 2**64 - 1)
POSITIONS = (0, 1, 254, 255, 256, 257, 511, 512, 700)
IDS_V = torch.arange(1003, dtype=torch.int32)


def full_table(seed: int, **options: int) -> NoiseTable:
    table = NoiseTable(seed, device="cpu", num_positions=701, **options)
    table.reserve(701)
    return table


@pytest.mark.parametrize("purpose", Purpose)
@pytest.mark.parametrize("seed", SEEDS)
class TestSameNoise:
    def test_gumbel_to_the_bit(self, seed: int, purpose: Purpose) -> None:
        found_RV = full_table(seed).gumbel_RV(purpose, torch.tensor(POSITIONS), IDS_V)
        wanted = [gumbel_noise(seed, position, purpose, IDS_V) for position in POSITIONS]
        assert torch.equal(found_RV, torch.stack(wanted))

    def test_uniforms_to_the_bit(self, seed: int, purpose: Purpose) -> None:
        found_R = full_table(seed).uniform_R(purpose, torch.tensor(POSITIONS))
        assert found_R.dtype == torch.float64
        assert found_R.tolist() == [uniform(seed, position, purpose) for position in POSITIONS]


def test_uniforms_have_all_their_bits() -> None:
    words_R = full_table(3).uniform_R(Purpose.ACCEPT, torch.arange(701)) * 2.0**53
    low_bits = words_R.to(torch.int64) % 2
    assert 250 < int(low_bits.sum()) < 450
    assert bool((words_R >= 2.0**52).any())


def test_some_ids_get_the_values_they_have_among_all() -> None:
    table = full_table(5)
    some = torch.tensor([1002, 3, 64, 3], dtype=torch.int32)
    whole_RV = table.gumbel_RV(Purpose.SHARED, torch.tensor([4, 5]), IDS_V)
    assert torch.equal(table.gumbel_RV(Purpose.SHARED, torch.tensor([4, 5]), some), whole_RV[:, some.long()])


class TestReserving:
    def test_a_table_may_start_behind_the_prompt(self) -> None:
        positions = torch.tensor([600, 650, 700])
        found_RV = full_table(9, first_position=600).gumbel_RV(Purpose.SHARED, positions, IDS_V)
        assert torch.equal(found_RV, full_table(9).gumbel_RV(Purpose.SHARED, positions, IDS_V))

    def test_position_by_position_gives_what_all_at_once_gives(self) -> None:
        slowly = NoiseTable(2, device="cpu", num_positions=701)
        for num_positions in (1, 1, 250, 256, 257, 600, 700, 701):
            slowly.reserve(num_positions)
            assert num_positions <= slowly.num_reserved <= 701
        positions = torch.arange(701)
        assert torch.equal(
            slowly.uniform_R(Purpose.TARGET, positions), full_table(2).uniform_R(Purpose.TARGET, positions)
        )

    def test_nothing_that_is_there_moves(self) -> None:
        table = NoiseTable(2, device="cpu", num_positions=701)
        table.reserve(10)
        addresses = [keys_P2.data_ptr() for keys_P2 in table._keys_P2.values()]
        before = table.uniform_R(Purpose.TARGET, torch.arange(10))
        table.reserve(701)
        assert [keys_P2.data_ptr() for keys_P2 in table._keys_P2.values()] == addresses
        assert torch.equal(table.uniform_R(Purpose.TARGET, torch.arange(10)), before)

    def test_beyond_the_end_is_refused(self) -> None:
        with pytest.raises(ValueError, match="num_positions must be at most 701, the end of this table, got 702"):
            full_table(0).reserve(702)

    def test_an_end_before_the_start_is_refused(self) -> None:
        with pytest.raises(ValueError, match="num_positions must be at least 5, got 4"):
            NoiseTable(0, device="cpu", num_positions=4, first_position=5)

    def test_an_empty_table_can_be_had(self) -> None:
        table = NoiseTable(0, device="cpu", num_positions=5, first_position=5)
        table.reserve(5)
        assert table.num_reserved == 5


class TestPurposes:
    def test_one_that_was_not_named_is_refused(self) -> None:
        table = NoiseTable(0, device="cpu", num_positions=4, purposes=(Purpose.SHARED,))
        table.reserve(4)
        with pytest.raises(ValueError, match="without keys for DRAFT"):
            table.gumbel_RV(Purpose.DRAFT, torch.tensor([0]), IDS_V)

    def test_rules_do_not_share_noise(self) -> None:
        rejection = purposes_of(SamplingSettings(temperature=1.0, verification=Verification.REJECTION))
        assert set(rejection) == set(Purpose) - {Purpose.SHARED}
        assert purposes_of(SamplingSettings(temperature=1.0)) == (Purpose.SHARED,)
        assert purposes_of(SamplingSettings()) == ()
