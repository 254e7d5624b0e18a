"""Matrices prepared once for one way of multiplying, then called with few rows many times.

Owns the kinds of packed weights and the choice among them. Knows nothing of layers.

Shape suffixes: T rows (tokens), I input features, O output features.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import torch
import torch.nn.functional as F

from models.int8_linear import Int8Linear

FLOAT16_MAX = 65504.0
_BEYOND_FLOAT16 = f"a weight is not finite or above float16's {FLOAT16_MAX}; use float32"


class WeightKind(Enum):
    """How a matrix is kept and multiplied; activations are float32 outside it, always."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    """Both operands in bfloat16: what CUDA devices are made for, slow on most CPUs."""
    FLOAT16 = "float16"
    """On an x86-64 CPU a float16 weight times float32 rows, on CUDA both operands in float16."""
    INT8 = "int8"
    """Raises perplexity by 0.5 to 1.1 per cent over float32's on three kinds of text: SmolLM2-135M-Instruct on a CPU
    with VNNI, outliers balanced as `models.loading` does (`docs/measurements/2026-11-30-fidelity-cpu.json`). With the
    coarser grid of CPUs without VNNI, forced on the same CPU, it stays below 3 per cent
    (`tests/profiling/test_fidelity.py`); no CPU without VNNI has been measured."""


def has_packed_kinds(device: torch.device) -> bool:
    """Whether FBGEMM's float16 and int8 kernels exist there, as they do for x86-64 CPUs."""
    return device.type == "cpu" and "fbgemm" in torch.backends.quantized.supported_engines


def half_dtype(kind: WeightKind, device: torch.device) -> torch.dtype | None:
    """What both operands of a product are rounded to there; None where `kind` multiplies otherwise."""
    if kind is WeightKind.BFLOAT16:
        return torch.bfloat16
    return torch.float16 if kind is WeightKind.FLOAT16 and device.type == "cuda" else None


def refuse_unless_supported(kind: WeightKind, device: torch.device) -> None:
    """Raise ValueError, naming a way out, where matrices of `kind` cannot be multiplied on `device`."""
    if kind is WeightKind.FLOAT32 or half_dtype(kind, device) is not None or has_packed_kinds(device):
        return
    place = "an x86-64 CPU" if kind is WeightKind.INT8 else "an x86-64 CPU or CUDA"
    raise ValueError(
        f"weights={kind.value} needs {place}, got device {device}; use {default_weight_kind(device).value} there"
        + (", or device='cpu'" if has_packed_kinds(torch.device("cpu")) else "")
    )


def default_weight_kind(device: torch.device) -> WeightKind:
    """The fastest kind that loses nothing to speak of."""
    if device.type == "cuda":
        return WeightKind.BFLOAT16
    return WeightKind.FLOAT16 if has_packed_kinds(device) else WeightKind.FLOAT32


def draft_weight_kind(kind: WeightKind, device: torch.device) -> WeightKind:
    """How a distilled draft's own matrices are kept beside a target's of `kind`.

    Nobody reads what a draft computes but the verifier, so int8 costs acceptance alone: 0.002 of sum min(p, q) for the
    draft of SmolLM2-135M-Instruct, whose bare step it makes a twelfth shorter on two quiet cores
    (`docs/measurements/2026-11-30-draft-weights.json`); it nearly halves the bytes that a step reads.
    """
    return WeightKind.INT8 if kind is WeightKind.FLOAT16 and has_packed_kinds(device) else kind


CPU_WEIGHT_KIND = default_weight_kind(torch.device("cpu"))
"""What a runtime on this CPU takes unless told otherwise."""


@dataclass(frozen=True, kw_only=True)
class MatrixKinds:
    """A weight kind for each matrix of a decoder."""

    qkv: WeightKind
    output: WeightKind
    gate_up: WeightKind
    down: WeightKind
    head: WeightKind

    @classmethod
    def of(cls, kind: WeightKind) -> MatrixKinds:
        """The usual mix for `kind`: int8 leaves `down` in float16, whose inputs have the wildest outliers."""
        down = WeightKind.FLOAT16 if kind is WeightKind.INT8 else kind
        return cls(qkv=kind, output=kind, gate_up=kind, down=down, head=kind)


class PackedLinear(Protocol):
    """y_TO = x_TI @ weight_OI.T + bias_O, float32 in and out."""

    @property
    def num_bytes(self) -> int:
        """Bytes that the packed weight and bias take."""
        ...

    def __call__(self, x_TI: torch.Tensor) -> torch.Tensor:
        """Multiply contiguous float32 rows; the result is the caller's."""
        ...


class Float32Linear:
    """The plain product."""

    def __init__(self, weight_OI: torch.Tensor, bias_O: torch.Tensor | None) -> None:
        self.weight_OI = weight_OI
        self.bias_O = bias_O

    @property
    def num_bytes(self) -> int:
        """Bytes of weight and bias."""
        return self.weight_OI.nbytes + (0 if self.bias_O is None else self.bias_O.nbytes)

    def shares_memory_with(self, tensor: torch.Tensor) -> bool:
        """Whether the weight is `tensor` itself, as a tied head is its embedding."""
        return self.weight_OI.data_ptr() == tensor.data_ptr()

    def __call__(self, x_TI: torch.Tensor) -> torch.Tensor:
        """Multiply float32 rows."""
        return F.linear(x_TI, self.weight_OI, self.bias_O)


class HalfLinear:
    """The product of operands rounded to bfloat16 or float16, and its result widened to float32.

    The bias is kept in the weight's dtype too, so that one kernel adds it.
    """

    def __init__(self, weight_OI: torch.Tensor, bias_O: torch.Tensor | None) -> None:
        """Keep `weight_OI` as it is; its dtype is the operands'."""
        self.weight_OI = weight_OI
        self.bias_O = None if bias_O is None else bias_O.to(weight_OI.dtype)

    @property
    def num_bytes(self) -> int:
        """Bytes of weight and bias."""
        return self.weight_OI.nbytes + (0 if self.bias_O is None else self.bias_O.nbytes)

    def shares_memory_with(self, tensor: torch.Tensor) -> bool:
        """Whether the weight is `tensor` itself, as a tied head is its embedding."""
        return self.weight_OI.data_ptr() == tensor.data_ptr()

    def __call__(self, x_TI: torch.Tensor) -> torch.Tensor:
        """Multiply rows of any float dtype; the result is float32."""
        return F.linear(x_TI.to(self.weight_OI.dtype), self.weight_OI, self.bias_O).float()


def fits_float16(tensor: torch.Tensor) -> bool:
    """Whether all values are finite and within the range of float16."""
    smallest, largest = tensor.aminmax()
    return bool(smallest >= -FLOAT16_MAX) and bool(largest <= FLOAT16_MAX)


class Float16Linear:
    """FBGEMM's product of float32 rows with a float16 weight, summed in float32."""

    def __init__(self, weight_OI: torch.Tensor, bias_O: torch.Tensor | None) -> None:
        if not fits_float16(weight_OI):
            raise ValueError(_BEYOND_FLOAT16)
        self.packed = torch.ops.quantized.linear_prepack_fp16(weight_OI, bias_O)
        self._multiply = torch.ops.quantized.linear_dynamic_fp16.default
        self._num_bytes = 2 * weight_OI.numel() + (0 if bias_O is None else bias_O.nbytes)

    @property
    def num_bytes(self) -> int:
        """Bytes of the packed weight and the bias."""
        return self._num_bytes

    def __call__(self, x_TI: torch.Tensor) -> torch.Tensor:
        """Multiply float32 rows."""
        y_TO: torch.Tensor = self._multiply(x_TI, self.packed)
        return y_TO


def pack_linear(
    weight_OI: torch.Tensor,
    bias_O: torch.Tensor | None,
    kind: WeightKind,
    *,
    input_scale_I: torch.Tensor | None = None,
) -> PackedLinear:
    """Prepare `weight_OI` (any float dtype) for `kind`.

    Args:
        weight_OI: the matrix, on the device that will multiply it.
        bias_O: added to each row, or None.
        kind: how to keep it; int8 exists on the CPU only.
        input_scale_I: what the caller has divided each input feature by; the weight takes it up,
            so that the product stays the same (SmoothQuant, https://arxiv.org/abs/2211.10438).

    Raises:
        ValueError: if the weight is not a matrix, the scale does not fit it, float16 cannot hold
            it, or the device has no such kind.
    """
    if weight_OI.dim() != 2:
        raise ValueError(f"weight_OI must have 2 dimensions, got shape {tuple(weight_OI.shape)}")
    refuse_unless_supported(kind, weight_OI.device)
    if input_scale_I is not None:
        if input_scale_I.shape != weight_OI.shape[1:]:
            raise ValueError(f"input_scale_I must have shape ({weight_OI.shape[1]},), got {tuple(input_scale_I.shape)}")
        weight_OI = weight_OI.float() * input_scale_I.float()
    dtype = half_dtype(kind, weight_OI.device)
    if dtype is not None:
        if dtype is torch.float16 and not fits_float16(weight_OI):
            raise ValueError(_BEYOND_FLOAT16)
        # No copy of what has this dtype already: a tied head stays its embedding.
        return HalfLinear(weight_OI.to(dtype).contiguous(), bias_O)
    weight_OI = weight_OI.float().contiguous()
    bias_O = None if bias_O is None else bias_O.float().contiguous()
    if kind is WeightKind.FLOAT32:
        return Float32Linear(weight_OI, bias_O)
    if kind is WeightKind.FLOAT16:
        return Float16Linear(weight_OI, bias_O)
    return Int8Linear(weight_OI, bias_O)


def kind_of(linear: PackedLinear) -> WeightKind:
    """How a matrix that `pack_linear` made is kept.

    Raises:
        TypeError: if it comes from elsewhere.
    """
    match linear:
        case Float32Linear():
            return WeightKind.FLOAT32
        case HalfLinear():
            return WeightKind.BFLOAT16 if linear.weight_OI.dtype is torch.bfloat16 else WeightKind.FLOAT16
        case Float16Linear():
            return WeightKind.FLOAT16
        case Int8Linear():
            return WeightKind.INT8
    raise TypeError(f"pack_linear makes no {type(linear).__name__}")


def unpacked(linear: PackedLinear) -> torch.Tensor:
    """weight_OI that such a matrix multiplies by, as far as its kind has kept it, in any float dtype.

    An input scale that the weight took up stays in it. May be the weight itself: not to be written to.

    Raises:
        TypeError: if it comes from elsewhere.
    """
    match linear:
        case Float32Linear() | HalfLinear():
            return linear.weight_OI
        case Float16Linear():
            weight_OI: torch.Tensor = torch.ops.quantized.linear_unpack_fp16(linear.packed)[0]
            return weight_OI
        case Int8Linear():
            return linear.unpacked()
    raise TypeError(f"pack_linear makes no {type(linear).__name__}")
