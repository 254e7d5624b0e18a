"""Rotary position embedding as one complex factor per position and frequency.

Owns the frequencies of each scaling rule and the table of factors. Knows nothing of layers
or caches. Feature i of a head is paired with feature i + D/2 (the Hugging Face order); the
decoder stores the two next to each other, so that a rotation is one complex product.

Shape suffixes: P positions, F frequencies (D/2), D head dimension.
"""

from __future__ import annotations

import math

import torch

from models.config import RopeConfig, RopeScaling

POSITIONS_PER_CHUNK = 1024


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> torch.Tensor:
    """Radians per position of each feature pair.

    Returns:
        inverse_frequencies_F, float32, F = head_dim / 2; the rules are those of Su et al.
        (https://arxiv.org/abs/2104.09864), of linear position interpolation
        (https://arxiv.org/abs/2306.15595) and of Llama 3.1's piecewise stretch.

    Raises:
        ValueError: if `head_dim` is odd, or the divisors are not one per frequency.
    """
    if head_dim % 2:
        raise ValueError(f"head_dim must be even to be rotated in pairs, got {head_dim}")
    exponents_F = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    frequencies_F = 1.0 / (rope.theta**exponents_F)
    if rope.frequency_divisors is not None:
        divisors_F = torch.tensor(rope.frequency_divisors, dtype=torch.float32)
        if divisors_F.shape != frequencies_F.shape:
            num_divisors = len(rope.frequency_divisors)
            raise ValueError(f"frequency_divisors must hold head_dim / 2 = {head_dim // 2} numbers, got {num_divisors}")
        return frequencies_F / divisors_F
    if rope.scaling is RopeScaling.LINEAR:
        return frequencies_F / rope.factor
    if rope.scaling is RopeScaling.LLAMA3:
        return _stretch_long_wavelengths(frequencies_F, rope)
    return frequencies_F


def _stretch_long_wavelengths(frequencies_F: torch.Tensor, rope: RopeConfig) -> torch.Tensor:
    """Llama 3.1: short wavelengths stay, long ones are stretched in full, those between are blended."""
    wavelengths_F = 2 * math.pi / frequencies_F
    longest_kept = rope.original_context / rope.high_freq_factor
    shortest_stretched = rope.original_context / rope.low_freq_factor
    blend_F = (rope.original_context / wavelengths_F - rope.low_freq_factor) / (
        rope.high_freq_factor - rope.low_freq_factor
    )
    stretched_F = frequencies_F / rope.factor
    blended_F = (1 - blend_F) * stretched_F + blend_F * frequencies_F
    between_F = (wavelengths_F >= longest_kept) & (wavelengths_F <= shortest_stretched)
    ends_F = torch.where(wavelengths_F > shortest_stretched, stretched_F, frequencies_F)
    return torch.where(between_F, blended_F, ends_F)


class RotaryTable:
    """cos + i sin for every position that any cache may reach; grows, never changes an entry."""

    def __init__(self, rope: RopeConfig, head_dim: int, device: torch.device) -> None:
        self._frequencies_F = inverse_frequencies(rope, head_dim)
        self._device = device
        self._factors_PF = torch.empty(0, head_dim // 2, dtype=torch.complex64, device=device)

    def reserve(self, num_positions: int) -> None:
        """Make sure that positions 0 .. num_positions - 1 have entries."""
        missing = range(self._factors_PF.shape[0], num_positions, POSITIONS_PER_CHUNK)
        # Whole chunks, each computed alone, so that an entry's bits do not depend on when the table grew.
        chunks_PF = [self._chunk(first).to(self._device) for first in missing]
        if chunks_PF:
            self._factors_PF = torch.cat([self._factors_PF, *chunks_PF])

    def _chunk(self, first_position: int) -> torch.Tensor:
        positions_P = torch.arange(first_position, first_position + POSITIONS_PER_CHUNK).float()
        angles_PF = positions_P[:, None] * self._frequencies_F
        return torch.complex(angles_PF.cos(), angles_PF.sin())

    def factors(self, position: int, num_tokens: int) -> torch.Tensor:
        """factors_TF, complex64, of the `num_tokens` positions from `position` on; they must be reserved."""
        return self._factors_PF[position : position + num_tokens]

    def factors_at(self, positions_T: torch.Tensor) -> torch.Tensor:
        """factors_TF, complex64, of positions in an int64 tensor on the table's device; they must be reserved."""
        return self._factors_PF.index_select(0, positions_T)
