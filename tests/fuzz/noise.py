"""The noise of a run, worked out for all its positions at once: one by one it would cost more than all else.

It is the real noise: a pure function of seed, position and purpose.

Shape suffixes: N token ids asked for, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import numpy as np
import torch

import scheduler.distribution
from scheduler.noise import Purpose, gumbel_of_bits
from tests.fuzz.models import VOCAB
from tests.support.noise_reference import bits_matrix

_NUM_POSITIONS = 32
"""Enough for prompt, output and lookahead of any case."""


@contextmanager
def precomputed_noise() -> Iterator[None]:
    """Within, distributions draw with noise from a table."""
    real = scheduler.distribution.gumbel_noise
    scheduler.distribution.gumbel_noise = _noise_of
    try:
        yield
    finally:
        scheduler.distribution.gumbel_noise = real


def _noise_of(seed: int, position: int, purpose: Purpose, token_ids_N: torch.Tensor) -> torch.Tensor:
    noise_V = _noise_table(seed, purpose)[position]
    return noise_V.clone() if len(token_ids_N) == VOCAB else noise_V.index_select(0, token_ids_N)


@lru_cache(maxsize=16)
def _noise_table(seed: int, purpose: Purpose) -> list[torch.Tensor]:
    words = bits_matrix([(seed, position, purpose) for position in range(_NUM_POSITIONS)], VOCAB)
    return list(gumbel_of_bits(torch.from_numpy(words.view(np.int32))))
