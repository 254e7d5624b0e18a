"""Elementwise steps of the decoder give a row the same bits in any company, however many threads share the work."""

from __future__ import annotations

import pytest
import torch

from models.elementwise import silu


@pytest.mark.parametrize("num_threads", [1, 2, 3, 4])
@pytest.mark.parametrize("num_features", [1536, 4864, 8960])
def testsilu(num_threads: int, num_features: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        gate_TF = torch.randn(48, 2 * num_features, generator=torch.Generator().manual_seed(1)).chunk(2, dim=-1)[0]
        alone = torch.cat([silu(gate_TF[row : row + 1]) for row in range(48)])
        for width in (2, 3, 8, 11, 17, 48):
            assert torch.equal(silu(gate_TF[:width]), alone[:width])
    finally:
        torch.set_num_threads(before)
