"""Noise as a pure function of (seed, position, purpose, token id).

Owns the counter-based generator behind every random choice: no state, no global generator, the
same values whatever was drawn before and in whatever order. Knows nothing of logits or models.

A key of 64 bits comes from BLAKE2b over (seed, position, purpose); a token's 32 bits come from two
rounds of a keyed integer hash (xor-shift-multiply, the constants of C. Wellons' "lowbias32",
https://nullprogram.com/blog/2018/07/31/). Only integer operations of torch are used up to the
uniform, so every device gives the same 32 bits.

Shape suffix: N token ids asked for.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from hashlib import blake2b

import torch

_WORD = 1 << 32
_UNIFORM_STEP = 2.0**-31
_LARGEST_BELOW_ONE = 1 - 2.0**-24


class Purpose(IntEnum):
    """What a draw decides; two purposes never share a value."""

    SHARED = 0
    """The coupled rule's noise: the target's and the draft's choice at one position."""
    DRAFT = 1
    """A proposal under the rejection rule."""
    ACCEPT = 2
    """The uniform that judges a proposal."""
    RESIDUAL = 3
    """The token after a rejection."""
    TARGET = 4
    """The token after a whole block, or without a proposal, under the rejection rule."""


def key_bytes(seed: int, position: int, purpose: Purpose) -> bytes:
    """The 64 bits that one draw starts from: two little-endian words of 32."""
    message = struct.pack("<QQB", seed % (1 << 64), position, purpose)
    return blake2b(message, digest_size=8, person=b"slipstream").digest()


def _signed(word: int) -> int:
    """The int32 with the same bits as an unsigned word."""
    return word - _WORD if word >= _WORD >> 1 else word


_MULTIPLIER_1 = _signed(0x7FEB352D)
_MULTIPLIER_2 = _signed(0x846CA68B)


def _logical_shift(bits_N: torch.Tensor, count: int) -> torch.Tensor:
    # int32 shifts copy the sign bit; the mask drops the copies.
    return (bits_N >> count).bitwise_and_((1 << (32 - count)) - 1)


def _mix(bits_N: torch.Tensor) -> torch.Tensor:
    bits_N.bitwise_xor_(_logical_shift(bits_N, 16)).mul_(_MULTIPLIER_1)
    bits_N.bitwise_xor_(_logical_shift(bits_N, 15)).mul_(_MULTIPLIER_2)
    return bits_N.bitwise_xor_(_logical_shift(bits_N, 16))


def random_bits(seed: int, position: int, purpose: Purpose, token_ids_N: torch.Tensor) -> torch.Tensor:
    """Uniform 32-bit words, one a token id.

    Args:
        seed: any 64-bit integer.
        position: absolute position of the token being drawn, from 0.
        purpose: what the draw decides.
        token_ids_N: int32.

    Returns:
        bits_N, int32 (all 2**32 values are equally likely).
    """
    key_1, key_2 = struct.unpack("<II", key_bytes(seed, position, purpose))
    return bits_of_keys(_signed(key_1), _signed(key_2), token_ids_N)


def bits_of_keys(key_1: torch.Tensor | int, key_2: torch.Tensor | int, token_ids_N: torch.Tensor) -> torch.Tensor:
    """The words that two keys of 32 bits give; int32 keys of any shape broadcast against the int32 ids."""
    return _mix(_mix(token_ids_N ^ key_1).add_(key_2))


def gumbel_noise(seed: int, position: int, purpose: Purpose, token_ids_N: torch.Tensor) -> torch.Tensor:
    """Standard Gumbel noise, float32, one value a token id.

    argmax(log p + noise) is a draw from p (the Gumbel-max trick; Maddison et al., 2014,
    https://arxiv.org/abs/1411.0030).
    """
    return gumbel_of_bits(random_bits(seed, position, purpose, token_ids_N))


def gumbel_of_bits(bits_N: torch.Tensor) -> torch.Tensor:
    """The Gumbel variate that each uniform 32-bit word stands for; int32 to float32, any shape.

    It is -log(-log(1 - u)) with u in steps of 2**-31, so the upper tail, where rare tokens win, reaches 22.2 at
    full relative precision.
    """
    # Read as a signed number, a word's magnitude is exact in float32 where it is small; shifted to an
    # unsigned range first, it would lose its low bits just where the upper tail needs them.
    uniform_N = bits_N.to(torch.float32).add_(0.5).abs_().mul_(_UNIFORM_STEP)
    uniform_N.clamp_max_(_LARGEST_BELOW_ONE)
    return uniform_N.neg_().log1p_().neg_().log_().neg_()


def uniform(seed: int, position: int, purpose: Purpose) -> float:
    """A uniform number in [0, 1) with 53 random bits."""
    (word,) = struct.unpack("<Q", key_bytes(seed, position, purpose))
    return float(word >> 11) * 2.0**-53
