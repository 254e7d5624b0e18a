"""The noise once more: in plain Python integers for known answers, and for many seeds at once for statistics."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from hashlib import blake2b

import numpy as np

_WORD = (1 << 32) - 1


def key_words(seed: int, position: int, purpose: int) -> tuple[int, int]:
    """The two 32-bit keys of one draw."""
    message = (seed % 2**64).to_bytes(8, "little") + position.to_bytes(8, "little") + bytes([purpose])
    digest = blake2b(message, digest_size=8, person=b"slipstream").digest()
    return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little")


def _lowbias32(word: int) -> int:
    word ^= word >> 16
    word = word * 0x7FEB352D & _WORD
    word ^= word >> 15
    word = word * 0x846CA68B & _WORD
    return word ^ word >> 16


def reference_bits(seed: int, position: int, purpose: int, token_id: int) -> int:
    """One unsigned 32-bit word."""
    key_1, key_2 = key_words(seed, position, purpose)
    return _lowbias32(_lowbias32(token_id ^ key_1) + key_2 & _WORD)


def reference_gumbel(bits: int) -> float:
    """The Gumbel variate of an unsigned word, in float64."""
    signed = bits - 2**32 if bits >= 2**31 else bits
    share = min(abs(signed + 0.5) / 2**31, 1 - 2.0**-24)
    return -math.log(-math.log1p(-share))


def bits_matrix(draws: Sequence[tuple[int, int, int]], num_ids: int) -> np.ndarray:
    """Words of many draws (seed, position, purpose) at once: uint32, shape (draws, token ids)."""
    keys = _digests(draws).view("<u4").reshape(-1, 2)
    words = np.arange(num_ids, dtype=np.uint32)[None, :] ^ keys[:, :1]
    for offset in (keys[:, 1:], None):
        words ^= words >> np.uint32(16)
        words *= np.uint32(0x7FEB352D)
        words ^= words >> np.uint32(15)
        words *= np.uint32(0x846CA68B)
        words ^= words >> np.uint32(16)
        if offset is not None:
            words += offset
    return words


def uniforms(draws: Sequence[tuple[int, int, int]]) -> np.ndarray:
    """Numbers in [0, 1) of many draws at once: float64."""
    return (_digests(draws) >> np.uint64(11)) * 2.0**-53


def _digests(draws: Sequence[tuple[int, int, int]]) -> np.ndarray:
    """uint64, the key of each draw."""
    packed = b"".join(
        blake2b(struct.pack("<QQB", *draw), digest_size=8, person=b"slipstream").digest() for draw in draws
    )
    return np.frombuffer(packed, dtype="<u8")
