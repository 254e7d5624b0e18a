"""The guard against host reads: each way to read a tensor's value is refused, and kernels are not."""

from __future__ import annotations

import operator
from collections.abc import Callable
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch.nn import functional

from tests.support.host_reads import HostReadError, allowed, forbid_host_reads

IDS_T = torch.arange(6)
ROWS_TV = torch.linspace(-1, 1, 24).reshape(6, 4)
MASK_T = IDS_T > 2
ONE = torch.tensor(1)

READS: dict[str, Callable[[], object]] = {
    "item": lambda: ROWS_TV[0, 0].item(),
    "tolist": lambda: IDS_T.tolist(),
    "cpu": lambda: IDS_T.cpu(),
    "numpy": lambda: IDS_T.numpy(),
    "numpy-asarray": lambda: np.asarray(IDS_T),
    "int": lambda: int(ONE),
    "float": lambda: float(ONE),
    "complex": lambda: complex(ONE),
    "bool": lambda: bool(ONE),
    "if": lambda: 1 if ONE == 1 else 2,
    "and": lambda: (ONE > 0) and 3,
    "index": lambda: operator.index(ONE),
    "list-index": lambda: [1, 2][ONE],
    "range": lambda: range(ONE),  # type: ignore[call-overload]  # it takes what has __index__
    "in": lambda: 3 in IDS_T,
    "repr": lambda: repr(IDS_T),
    "format": lambda: f"{ONE}",
    "to-cpu": lambda: IDS_T.to("cpu"),
    "to-device": lambda: IDS_T.to(torch.device("cpu"), torch.float32),
    "to-keyword": lambda: IDS_T.to(device="cpu", non_blocking=True),
    "nonzero": lambda: torch.nonzero(MASK_T),
    "nonzero-method": lambda: MASK_T.nonzero(as_tuple=True),
    "where-one": lambda: torch.where(MASK_T),
    "argwhere": lambda: torch.argwhere(MASK_T),
    "masked_select": lambda: ROWS_TV.masked_select(ROWS_TV > 0),
    "mask": lambda: IDS_T[MASK_T],
    "mask-in-tuple": lambda: ROWS_TV[MASK_T, 1],
    "mask-assigned": lambda: ROWS_TV.clone().__setitem__(MASK_T, 0.0),
    "index_put-mask": lambda: ROWS_TV.clone().index_put_((MASK_T,), torch.tensor(0.0)),
    "scalar-tensor-index": lambda: ROWS_TV[ONE],
    "slice-bound": lambda: IDS_T[:ONE],
    "narrow": lambda: IDS_T.narrow(0, ONE, 2),
    "arange": lambda: torch.arange(ONE),
    "tensor-of-tensors": lambda: torch.tensor([ONE, 2]),
    "tensor-of-lists": lambda: torch.as_tensor([[ONE], [2]]),
    "equal": lambda: torch.equal(IDS_T, IDS_T),
    "allclose": lambda: torch.allclose(ROWS_TV, ROWS_TV),
    "is_nonzero": lambda: torch.is_nonzero(ONE),
    "unique": lambda: torch.unique(IDS_T),
    "bincount": lambda: torch.bincount(IDS_T),
    "repeat_interleave": lambda: torch.repeat_interleave(IDS_T, IDS_T),
    "full": lambda: torch.full((2,), ONE),
}

KERNELS: dict[str, Callable[[], object]] = {
    "linear": lambda: functional.linear(ROWS_TV, ROWS_TV),
    "attention": lambda: functional.scaled_dot_product_attention(*[ROWS_TV[None, None]] * 3),
    "normed": lambda: ROWS_TV * torch.rsqrt(ROWS_TV.pow(2).mean(-1, keepdim=True) + 1e-6),
    "softmax": lambda: ROWS_TV.softmax(-1).log(),
    "sort": lambda: ROWS_TV.sort(-1, descending=True),
    "topk": lambda: ROWS_TV.topk(2),
    "argmax": lambda: (ROWS_TV + 1).argmax(-1),
    "where": lambda: torch.where(MASK_T[:, None], ROWS_TV, -torch.inf),
    "masked_fill": lambda: ROWS_TV.masked_fill(MASK_T[:, None], -torch.inf),
    "gather": lambda: ROWS_TV.gather(-1, IDS_T[:4, None] % 4),
    "row-index": lambda: ROWS_TV[IDS_T],
    "index_select": lambda: ROWS_TV.index_select(0, ONE[None]),
    "index_copy": lambda: ROWS_TV.clone().index_copy_(0, IDS_T, ROWS_TV),
    "scatter": lambda: torch.zeros(6).scatter_add_(0, IDS_T, torch.ones(6)),
    "host-slices": lambda: ROWS_TV[1:3, None, -1],
    "host-assignment": lambda: ROWS_TV.clone()[1].fill_(0),
    "cast": lambda: ROWS_TV.to(torch.bfloat16).float(),
    "upload": lambda: torch.tensor([1, 2, 3]).to(IDS_T),
    "cumulative": lambda: MASK_T.cumprod(0).sum(),
    "copy": lambda: torch.empty(6, dtype=torch.int64).copy_(IDS_T, non_blocking=True),
    "comparison": lambda: (IDS_T == ONE) & ~MASK_T,
    "counted": lambda: torch.repeat_interleave(IDS_T, IDS_T, output_size=15),
    "shape": lambda: (len(IDS_T), IDS_T.numel(), ROWS_TV.shape, IDS_T.device, IDS_T.dtype),
}


@pytest.mark.parametrize("inference", [False, True], ids=["plain", "inference"])
class TestGuard:
    @pytest.fixture(autouse=True)
    def mode(self, inference: bool) -> object:
        with torch.inference_mode() if inference else nullcontext():
            yield

    @pytest.mark.parametrize("read", READS)
    def test_refuses_reads(self, read: str) -> None:
        with forbid_host_reads(), pytest.raises(HostReadError, match=r"on the host, at .*test_cuda_host_reads"):
            READS[read]()

    @pytest.mark.parametrize("kernel", KERNELS)
    def test_lets_kernels_pass_and_leaves_their_results_alone(self, kernel: str) -> None:
        expected = KERNELS[kernel]()
        with forbid_host_reads():
            found = KERNELS[kernel]()
        pairs = zip(expected, found, strict=True) if isinstance(expected, tuple) else [(expected, found)]
        for one, other in pairs:
            assert torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


def test_every_way_to_read_works_outside() -> None:
    for name, read in READS.items():
        read()
        assert name


def test_names_the_operation_and_the_line() -> None:
    with forbid_host_reads(), pytest.raises(HostReadError) as refused:
        ONE.item()  # this very line
    assert str(refused.value).startswith("item reads a tensor's value on the host, at ")
    assert str(refused.value).endswith("ONE.item()  # this very line")


def test_what_is_allowed_passes_and_the_guard_holds_again_behind_it() -> None:
    with forbid_host_reads():
        with allowed():
            assert ONE.item() == 1
        with pytest.raises(HostReadError):
            ONE.item()
    assert ONE.item() == 1


def test_ends_with_its_block_even_by_an_error() -> None:
    with pytest.raises(LookupError), forbid_host_reads():
        raise LookupError
    assert ONE.item() == 1
    with allowed():
        assert ONE.tolist() == 1
