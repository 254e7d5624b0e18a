"""Rotary factors: each scaling rule's frequencies, and a table that grows without changing."""

from __future__ import annotations

import math

import pytest
import torch

from models.config import RopeConfig, RopeScaling
from models.rope import POSITIONS_PER_CHUNK, RotaryTable, inverse_frequencies

CPU = torch.device("cpu")


def test_plain_frequencies() -> None:
    frequencies_F = inverse_frequencies(RopeConfig(theta=100.0), 8)
    torch.testing.assert_close(frequencies_F, torch.tensor([1.0, 100**-0.25, 0.1, 100**-0.75]))


def test_linear_scaling_stretches_every_wavelength() -> None:
    plain_F = inverse_frequencies(RopeConfig(), 16)
    stretched_F = inverse_frequencies(RopeConfig(scaling=RopeScaling.LINEAR, factor=4.0), 16)
    torch.testing.assert_close(stretched_F, plain_F / 4)


def test_llama3_scaling_keeps_short_wavelengths_and_stretches_long_ones() -> None:
    rope = RopeConfig(
        theta=1e6,
        scaling=RopeScaling.LLAMA3,
        factor=8.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_context=256,
    )
    plain_F = inverse_frequencies(RopeConfig(theta=1e6), 64)
    ratios_F = plain_F / inverse_frequencies(rope, 64)
    wavelengths_F = 2 * math.pi / plain_F
    assert (ratios_F[wavelengths_F < 64] == 1).all()
    torch.testing.assert_close(ratios_F[wavelengths_F > 256], torch.full_like(ratios_F[wavelengths_F > 256], 8))
    between_F = ratios_F[(wavelengths_F > 64) & (wavelengths_F < 256)]
    assert len(between_F) >= 2
    assert ((between_F > 1) & (between_F < 8)).all()
    assert (between_F.diff() > 0).all()


def test_given_divisors_take_the_place_of_a_rule() -> None:
    rope = RopeConfig(scaling=RopeScaling.LLAMA3, factor=8.0, frequency_divisors=(1.0, 2.0, 4.0, 8.0))
    expected_F = inverse_frequencies(RopeConfig(), 8) / torch.tensor([1.0, 2.0, 4.0, 8.0])
    torch.testing.assert_close(inverse_frequencies(rope, 8), expected_F)
    with pytest.raises(ValueError, match="head_dim / 2 = 8 numbers, got 4"):
        inverse_frequencies(rope, 16)


def test_an_odd_head_is_refused() -> None:
    with pytest.raises(ValueError, match="even to be rotated in pairs, got 9"):
        inverse_frequencies(RopeConfig(), 9)


def test_factors_across_a_chunk_and_after_growth() -> None:
    table = RotaryTable(RopeConfig(theta=50.0), 8, CPU)
    table.reserve(10)
    first_TF = table.factors(0, 10).clone()
    table.reserve(POSITIONS_PER_CHUNK + 5)
    assert torch.equal(table.factors(0, 10), first_TF)
    position = POSITIONS_PER_CHUNK - 2
    angles_TF = torch.arange(position, position + 5)[:, None] * inverse_frequencies(RopeConfig(theta=50.0), 8)
    torch.testing.assert_close(table.factors(position, 5), torch.polar(torch.ones_like(angles_TF), angles_TF))
    grown_at_once = RotaryTable(RopeConfig(theta=50.0), 8, CPU)
    grown_at_once.reserve(3 * POSITIONS_PER_CHUNK)
    assert torch.equal(grown_at_once.factors(0, POSITIONS_PER_CHUNK + 5), table.factors(0, POSITIONS_PER_CHUNK + 5))
