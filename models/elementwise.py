"""The decoder's operations between its matrices, each element rounded by itself.

Owns the norm and the activation. Knows nothing of layers.

Shape suffixes: T tokens, F feed-forward width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

SHARED_OUT = 32768
"""Elements from which on torch shares an elementwise operation out among threads (`at::internal::GRAIN_SIZE`)."""


def silu(gate_TF: torch.Tensor) -> torch.Tensor:
    """SiLU in pieces that torch gives to one thread each.

    A larger piece is shared out in the middle of rows, and where a share ends, the elements that do not fill a vector
    are computed by other code with other last bits: a row would depend on the rows beside it. Other devices have no
    such shares, and every piece would cost them a launch.
    """
    num_rows = max(1, (SHARED_OUT - 1) // gate_TF.shape[1])
    if gate_TF.device.type != "cpu" or gate_TF.shape[0] <= num_rows:
        return F.silu(gate_TF)
    return torch.cat([F.silu(piece) for piece in torch.split(gate_TF, num_rows)])


def rms_norm(x: torch.Tensor, scaled_weight: torch.Tensor, eps_times_width: torch.Tensor) -> torch.Tensor:
    """Root mean square norm (https://arxiv.org/abs/1910.07467) over the last dimension.

    Six small operations that each round exactly beat `F.rms_norm` on a CPU at a few rows.

    Args:
        x: float32.
        scaled_weight: the norm's weight times the square root of the width: `x` is divided by its Euclidean norm.
        eps_times_width: the norm's epsilon times the width, as a tensor.
    """
    norms: torch.Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    norms.mul_(norms).add_(eps_times_width).sqrt_()
    return x.div(norms).mul_(scaled_weight)
