"""Eight-bit weights and activations whose rows never depend on each other.

Owns the quantisation rule and its scale on this CPU. Knows nothing of layers.

Each output channel of the weight has its own scale. Each activation row is divided by its
own largest magnitude and quantised with one fixed scale, and the product is multiplied by that
magnitude again: sums of integers are exact, so a row gives the same bits in any company.

Shape suffixes: T rows (tokens), I input features, O output features.
"""

from __future__ import annotations

import functools
import threading
import warnings

import torch

SMALLEST_MAGNITUDE = 1e-30
"""Stands in for the magnitude of a row of zeros."""

_OLD_WAY = r".*(quantize_per_channel|torch\.ao\.quantization|quantized).*"
"""A warning whose replacement packs for other kernels."""


_quiet = threading.Lock()
"""Matrices are packed by several threads, and the filters of warnings are the whole process's: whoever left first would
take them from the others."""


def _pack(weight_OI: torch.Tensor, bias_O: torch.Tensor | None) -> torch.ScriptObject:
    scales_O = (weight_OI.abs().amax(dim=1) / 127).clamp_min(SMALLEST_MAGNITUDE).double()
    zero_points_O = torch.zeros(weight_OI.shape[0], dtype=torch.long)
    with _quiet, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=_OLD_WAY)
        quantised_OI = torch.quantize_per_channel(weight_OI, scales_O, zero_points_O, axis=0, dtype=torch.qint8)
        packed: torch.ScriptObject = torch.ops.quantized.linear_prepack(quantised_OI, bias_O)
    return packed


@functools.cache
def activation_grid() -> tuple[float, int]:
    """Scale and zero point for activations within -1 and 1 on this CPU.

    Without VNNI instructions FBGEMM adds pairs of 8-bit products in 16 bits, which saturate at
    full range; a coarser grid keeps real sums inside. Found by multiplying extremes once.
    """
    num_features = 64
    packed = _pack(torch.ones(16, num_features), None)
    products_TO = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32(
        torch.ones(4, num_features), 1 / 127, 128, packed
    )
    saturates = bool((products_TO < 0.99 * num_features).any())
    return (1 / 95, 96) if saturates else (1 / 127, 128)


class Int8Linear:
    """y_TO = x_TI @ weight_OI.T + bias_O with 8-bit operands."""

    def __init__(self, weight_OI: torch.Tensor, bias_O: torch.Tensor | None) -> None:
        self.packed = _pack(weight_OI, None)
        # Added afterwards: the packed one would be multiplied by the row's magnitude.
        self.bias_O = bias_O
        self.scale, self.zero_point = activation_grid()
        self._multiply = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32.default
        # 8-bit weights, float32 scales and zero points, and FBGEMM's 32-bit column offsets.
        self._num_bytes = weight_OI.numel() + 12 * weight_OI.shape[0] + (0 if bias_O is None else bias_O.nbytes)

    @property
    def num_bytes(self) -> int:
        """Bytes of the packed weight, its scales and the bias."""
        return self._num_bytes

    def __call__(self, x_TI: torch.Tensor) -> torch.Tensor:
        """Multiply float32 rows."""
        magnitudes_T1 = torch.linalg.vector_norm(x_TI, ord=float("inf"), dim=-1, keepdim=True)
        magnitudes_T1.clamp_min_(SMALLEST_MAGNITUDE)
        y_TO: torch.Tensor = self._multiply(x_TI / magnitudes_T1, self.scale, self.zero_point, self.packed)
        y_TO.mul_(magnitudes_T1)
        return y_TO if self.bias_O is None else y_TO.add_(self.bias_O)

    def unpacked(self) -> torch.Tensor:
        """weight_OI, float32: what the 8-bit numbers stand for."""
        with _quiet, warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=_OLD_WAY)
            weight_OI: torch.Tensor = torch.ops.quantized.linear_unpack(self.packed)[0].dequantize()
        return weight_OI
