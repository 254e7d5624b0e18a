"""Packing eight-bit matrices in several threads at once."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from models.linear import WeightKind, has_packed_kinds, pack_linear


@pytest.fixture
def every_warning() -> Iterator[None]:
    """Torch warns of an old function at each call, and not at a process's first alone."""
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    yield
    torch.set_warn_always(before)


@pytest.mark.skipif(not has_packed_kinds(torch.device("cpu")), reason="int8 needs an x86-64 CPU")
def test_what_torch_says_of_the_old_way_reaches_nobody(every_warning: None) -> None:
    weight_OI = torch.randn(64, 64)
    with warnings.catch_warnings(), ThreadPoolExecutor(4) as pool:
        warnings.simplefilter("error")
        list(pool.map(lambda _: pack_linear(weight_OI, None, WeightKind.INT8), range(2000)))
