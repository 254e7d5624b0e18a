"""Packed matrices: the right product, and rows that never depend on each other in int8."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F

from models.linear import (
    HalfLinear,
    MatrixKinds,
    WeightKind,
    default_weight_kind,
    half_dtype,
    has_packed_kinds,
    pack_linear,
    refuse_unless_supported,
)

CPU = torch.device("cpu")
RELATIVE_ERROR = {
    WeightKind.FLOAT32: 1e-6,
    WeightKind.BFLOAT16: 1e-2,
    WeightKind.FLOAT16: 1e-3,
    WeightKind.INT8: 2.5e-2,
}

pytestmark = pytest.mark.skipif(not has_packed_kinds(CPU), reason="float16 and int8 kernels need an x86-64 CPU")


def example(num_rows: int = 17) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    weight_OI = torch.randn(96, 72, generator=generator) * torch.linspace(0.01, 2, 96)[:, None]
    bias_O = torch.randn(96, generator=generator)
    x_TI = torch.randn(num_rows, 72, generator=generator) * torch.linspace(0.01, 30, num_rows)[:, None]
    return weight_OI, bias_O, x_TI


@pytest.mark.parametrize("kind", WeightKind)
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_product(kind: WeightKind, with_bias: bool, dtype: torch.dtype) -> None:
    weight_OI, bias_O, x_TI = example()
    weight_OI = weight_OI.to(dtype)
    linear = pack_linear(weight_OI, bias_O if with_bias else None, kind)
    expected_TO = F.linear(x_TI.double(), weight_OI.double(), bias_O.double() if with_bias else None)
    product_TO = linear(x_TI)
    assert product_TO.dtype == torch.float32
    errors_T = (product_TO - expected_TO).norm(dim=1) / expected_TO.norm(dim=1)
    assert errors_T.max() < RELATIVE_ERROR[kind]


def test_float16_loses_nothing_of_float16_weights() -> None:
    weight_OI, _, _ = example()
    rounded_OI = weight_OI.half()
    unit_II = torch.eye(72)
    assert torch.equal(pack_linear(rounded_OI, None, WeightKind.FLOAT16)(unit_II), rounded_OI.float().t())


def test_an_int8_row_does_not_depend_on_its_neighbours() -> None:
    weight_OI, bias_O, x_TI = example()
    linear = pack_linear(weight_OI, bias_O, WeightKind.INT8)
    together_TO = linear(x_TI)
    for width in range(1, 17):
        for first in range(17 - width + 1):
            assert torch.equal(linear(x_TI[first : first + width].contiguous()), together_TO[first : first + width])


@pytest.mark.parametrize("kind", WeightKind)
def test_a_row_of_zeros_gives_the_bias(kind: WeightKind) -> None:
    weight_OI, bias_O, _ = example()
    expected_O = bias_O.bfloat16().float() if kind is WeightKind.BFLOAT16 else bias_O
    assert torch.equal(pack_linear(weight_OI, bias_O, kind)(torch.zeros(3, 72)), expected_O.expand(3, -1))


def test_int8_extremes_do_not_saturate_silently() -> None:
    x_TI = torch.ones(4, 64)
    product_TO = pack_linear(torch.ones(16, 64), None, WeightKind.INT8)(x_TI)
    torch.testing.assert_close(product_TO, torch.full((4, 16), 64.0), rtol=0.01, atol=0)


@pytest.mark.parametrize("kind", WeightKind)
def test_input_scale_is_taken_up(kind: WeightKind) -> None:
    weight_OI, bias_O, x_TI = example()
    scale_I = torch.linspace(0.5, 4, 72)
    product_TO = pack_linear(weight_OI, bias_O, kind, input_scale_I=scale_I)(x_TI / scale_I)
    expected_TO = F.linear(x_TI, weight_OI, bias_O)
    errors_T = (product_TO - expected_TO).norm(dim=1) / expected_TO.norm(dim=1)
    assert errors_T.max() < 2 * RELATIVE_ERROR[kind]


def test_outlying_inputs_cost_int8_less_when_scaled() -> None:
    weight_OI, _, x_TI = example()
    x_TI[:, 3] *= 60
    scale_I = torch.ones(72)
    scale_I[3] = 60
    expected_TO = F.linear(x_TI, weight_OI)
    plain_TO = pack_linear(weight_OI, None, WeightKind.INT8)(x_TI)
    flattened_TO = pack_linear(weight_OI.clone(), None, WeightKind.INT8, input_scale_I=scale_I.sqrt())(
        x_TI / scale_I.sqrt()
    )
    assert (flattened_TO - expected_TO).norm() < 0.5 * (plain_TO - expected_TO).norm()


def test_packing_warns_of_nothing() -> None:
    weight_OI, bias_O, x_TI = example()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for kind in WeightKind:
            pack_linear(weight_OI, bias_O, kind)(x_TI)


def test_num_bytes() -> None:
    weight_OI, bias_O, _ = example()
    assert pack_linear(weight_OI, bias_O, WeightKind.FLOAT32).num_bytes == 4 * 96 * 72 + 4 * 96
    assert pack_linear(weight_OI, bias_O, WeightKind.FLOAT16).num_bytes == 2 * 96 * 72 + 4 * 96
    assert pack_linear(weight_OI, bias_O, WeightKind.BFLOAT16).num_bytes == 2 * 96 * 72 + 2 * 96
    assert 96 * 72 < pack_linear(weight_OI, None, WeightKind.INT8).num_bytes < 1.5 * 96 * 72


@pytest.mark.parametrize("bad", [7e4, float("inf"), float("nan")])
def test_float16_refuses_what_it_cannot_hold(bad: float) -> None:
    weight_OI, _, _ = example()
    weight_OI[1, 1] = bad
    with pytest.raises(ValueError, match="float16's 65504"):
        pack_linear(weight_OI, None, WeightKind.FLOAT16)


def test_bad_shapes() -> None:
    weight_OI, _, _ = example()
    with pytest.raises(ValueError, match="2 dimensions"):
        pack_linear(weight_OI[0], None, WeightKind.FLOAT32)
    with pytest.raises(ValueError, match=r"input_scale_I must have shape \(72,\), got \(96,\)"):
        pack_linear(weight_OI, None, WeightKind.FLOAT32, input_scale_I=torch.ones(96))


def test_bfloat16_rounds_operands_and_result_and_nothing_else() -> None:
    weight_OI, bias_O, x_TI = example()
    rounded_OI, rounded_O, rounded_TI = weight_OI.bfloat16(), bias_O.bfloat16(), x_TI.bfloat16()
    found_TO = pack_linear(weight_OI, bias_O, WeightKind.BFLOAT16)(x_TI)
    expected_TO = F.linear(rounded_TI.double(), rounded_OI.double(), rounded_O.double())
    # One rounding of the sum: half a unit in the last of 8 binary places, and a little for the sum itself.
    assert ((found_TO - expected_TO).abs() <= 2**-8 * expected_TO.abs() + 1e-4).all()
    assert torch.equal(found_TO, found_TO.bfloat16().float())


def test_a_bfloat16_weight_is_kept_without_a_copy() -> None:
    weight_OI = example()[0].bfloat16()
    linear = pack_linear(weight_OI, None, WeightKind.BFLOAT16)
    assert isinstance(linear, HalfLinear)
    assert linear.shares_memory_with(weight_OI)
    assert linear.num_bytes == 2 * 96 * 72
    scaled = pack_linear(weight_OI, None, WeightKind.BFLOAT16, input_scale_I=torch.ones(72))
    assert isinstance(scaled, HalfLinear)
    assert not scaled.shares_memory_with(weight_OI)


def test_the_kinds_of_each_device() -> None:
    cuda, meta = torch.device("cuda"), torch.device("meta")
    assert default_weight_kind(cuda) is WeightKind.BFLOAT16
    assert default_weight_kind(meta) is WeightKind.FLOAT32
    assert default_weight_kind(CPU) is WeightKind.FLOAT16
    assert half_dtype(WeightKind.FLOAT16, cuda) is torch.float16
    assert half_dtype(WeightKind.FLOAT16, CPU) is None
    assert half_dtype(WeightKind.BFLOAT16, CPU) is half_dtype(WeightKind.BFLOAT16, cuda) is torch.bfloat16
    assert not has_packed_kinds(cuda)
    assert not has_packed_kinds(meta)
    for kind, device, message in (
        (WeightKind.INT8, cuda, "weights=int8 needs an x86-64 CPU, got device cuda; use bfloat16 there"),
        (WeightKind.INT8, meta, "weights=int8 needs an x86-64 CPU, got device meta; use float32 there"),
        (WeightKind.FLOAT16, meta, "weights=float16 needs an x86-64 CPU or CUDA, got device meta"),
    ):
        with pytest.raises(ValueError, match=message):
            refuse_unless_supported(kind, device)
    for kind in (WeightKind.FLOAT32, WeightKind.BFLOAT16, WeightKind.FLOAT16):
        refuse_unless_supported(kind, cuda)
    with pytest.raises(ValueError, match="x86-64"):
        pack_linear(torch.empty(4, 4, device=meta), None, WeightKind.INT8)


def test_int8_keeps_down_projections_in_float16() -> None:
    kinds = MatrixKinds.of(WeightKind.INT8)
    assert kinds.down is WeightKind.FLOAT16
    assert {kinds.qkv, kinds.output, kinds.gate_up, kinds.head} == {WeightKind.INT8}
