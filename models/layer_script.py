"""The layers of the lean decoder in the part of Python that torch compiles and then runs without the interpreter.

Owns the arithmetic, operation by operation that of `models.decoder`, in the same order, so that results have the same
bits. Knows nothing of what compiles it (`models.scripted_layers`), of caches or of the plan of a call.

The source of these functions is read by TorchScript's own parser: no keyword-only arguments, no classes, nothing from
other modules but torch, the names of types and one number.

Shape suffixes: T tokens of this call, E hidden width, F feed-forward width, H all query heads' features, G queries a
group, K key/value heads, D head dimension, S cache positions, N rows of an attention call, I input and O output
features; the 2 is keys and values.
"""

from __future__ import annotations

from typing import TypeAlias

import torch

from models.int8_linear import SMALLEST_MAGNITUDE

Matrix: TypeAlias = tuple[torch.Tensor, torch.ScriptObject | None, torch.Tensor | None, float, int]
"""weight_OI or an empty tensor, what FBGEMM packed, bias_O unless packed too, and the scale (0 for float16) and zero
point of int8's activations."""

Layer: TypeAlias = tuple[torch.Tensor, Matrix, torch.Tensor | None, Matrix, torch.Tensor, Matrix, Matrix]
"""input_norm_E, qkv, head_norm_GKD, output, feedforward_norm_E, gate_up and down, as `decoder_weights.LayerWeights`."""

Window: TypeAlias = tuple[int, int, int, int, torch.Tensor]
"""first, stop, keep_first, keep_stop and mask_NS of an `attention.AttentionWindow`."""


def scale_to_unit(x: torch.Tensor, scaled_weight: torch.Tensor, eps_times_width: torch.Tensor) -> torch.Tensor:
    """Root mean square norm over the last dimension."""
    norms: torch.Tensor = torch.linalg.vector_norm(x, 2, [-1], True)
    norms.mul_(norms).add_(eps_times_width).sqrt_()
    return x.div(norms).mul_(scaled_weight)


def multiply(x_TI: torch.Tensor, matrix: Matrix) -> torch.Tensor:
    """The product of `models.linear` and `models.int8_linear`; float32 in and out."""
    weight_OI, packed, bias_O, scale, zero_point = matrix
    if packed is None:
        plain_TO: torch.Tensor = torch.ops.aten.linear(x_TI.to(weight_OI.dtype), weight_OI, bias_O)
        return plain_TO.float()
    if scale == 0.0:
        half_TO: torch.Tensor = torch.ops.quantized.linear_dynamic_fp16(x_TI, packed)
        return half_TO
    magnitudes_T1 = torch.linalg.vector_norm(x_TI, float("inf"), [-1], True)
    magnitudes_T1.clamp_min_(SMALLEST_MAGNITUDE)
    y_TO: torch.Tensor = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32(
        x_TI / magnitudes_T1, scale, zero_point, packed
    )
    y_TO.mul_(magnitudes_T1)
    if bias_O is not None:
        y_TO.add_(bias_O)
    return y_TO


def gate(gate_TF: torch.Tensor, most_elements: int) -> torch.Tensor:
    """SiLU in pieces of at most `most_elements`."""
    num_rows = max(1, most_elements // gate_TF.size(1))
    if gate_TF.size(0) <= num_rows:
        whole_TF: torch.Tensor = torch.ops.aten.silu(gate_TF)
        return whole_TF
    pieces = [torch.ops.aten.silu(piece) for piece in torch.split(gate_TF, num_rows)]
    return torch.cat(pieces)


def attend(
    queries_TGKD: torch.Tensor, keys_1KSD: torch.Tensor, values_1KSD: torch.Tensor, mask_NS: torch.Tensor
) -> torch.Tensor:
    """One attention call; attended_TH."""
    num_tokens = queries_TGKD.size(0)
    group_size = queries_TGKD.size(1)
    num_kv_heads = queries_TGKD.size(2)
    head_dim = queries_TGKD.size(3)
    queries_1NKD = queries_TGKD.to(keys_1KSD.dtype).reshape(1, num_tokens * group_size, num_kv_heads, head_dim)
    attended_1KND: torch.Tensor = torch.ops.aten.scaled_dot_product_attention(
        queries_1NKD.transpose(1, 2), keys_1KSD, values_1KSD, mask_NS
    )
    return attended_1KND.transpose(1, 2).reshape(num_tokens, group_size * num_kv_heads * head_dim)


def attend_in_windows(
    queries_TGKD: torch.Tensor,
    keys_values: list[list[tuple[torch.Tensor, torch.Tensor]]],
    index: int,
    windows: list[Window],
) -> torch.Tensor:
    """Attention of a layer's whole block."""
    num_tokens = queries_TGKD.size(0)
    kept = []
    for number, window in enumerate(windows):
        first, stop, keep_first, keep_stop, mask_NS = window
        rows_TGKD = queries_TGKD[first:stop]
        if stop > num_tokens:
            rows_TGKD = torch.constant_pad_nd(rows_TGKD, [0, 0, 0, 0, 0, 0, 0, stop - num_tokens])
        keys_1KSD, values_1KSD = keys_values[number][index]
        rows_TH = attend(rows_TGKD, keys_1KSD, values_1KSD, mask_NS)
        if keep_stop - keep_first < stop - first:
            rows_TH = rows_TH[keep_first - first : keep_stop - first]
        kept.append(rows_TH)
    if len(kept) == 1:
        return kept[0]
    return torch.cat(kept)


def run_layers(
    hidden_TE: torch.Tensor,
    layers: list[Layer],
    factors_T11F: torch.Tensor,
    rows_by_layer: list[torch.Tensor],
    keys_values: list[list[tuple[torch.Tensor, torch.Tensor]]],
    windows: list[Window],
    hidden_eps: torch.Tensor,
    head_eps: torch.Tensor,
    most_elements: int,
) -> torch.Tensor:
    """Write keys and values and add every layer's work to `hidden_TE`, in place.

    Args:
        hidden_TE: float32 embeddings.
        layers: the weights.
        factors_T11F: rotation of each token, complex64.
        rows_by_layer: the cache rows keys_values_T2KD of each layer, to be written to.
        keys_values: for each window, keys_1KSD and values_1KSD of each layer.
        windows: the attention calls.
        hidden_eps: the norms' epsilon times E.
        head_eps: the same times D.
        most_elements: see `gate`.
    """
    num_tokens = hidden_TE.size(0)
    for index, layer in enumerate(layers):
        input_norm_E, qkv, head_norm_GKD, output, feedforward_norm_E, gate_up, down = layer
        rows_T2KD = rows_by_layer[index]
        num_kv_heads = rows_T2KD.size(2)
        head_dim = rows_T2KD.size(3)
        qkv_TO = multiply(scale_to_unit(hidden_TE, input_norm_E, hidden_eps), qkv)
        group_size = qkv_TO.size(1) // (num_kv_heads * head_dim) - 2
        qkv_TGKD = qkv_TO.view(num_tokens, group_size + 2, num_kv_heads, head_dim)
        rotated_TGKD = qkv_TGKD[:, : group_size + 1]
        if head_norm_GKD is not None:
            rotated_TGKD.copy_(scale_to_unit(rotated_TGKD, head_norm_GKD, head_eps))
        pairs_TGKF2 = rotated_TGKD.view(num_tokens, group_size + 1, num_kv_heads, head_dim // 2, 2)
        torch.view_as_complex(pairs_TGKF2).mul_(factors_T11F)
        rows_T2KD.copy_(qkv_TGKD[:, group_size:])
        attended_TH = attend_in_windows(qkv_TGKD[:, :group_size], keys_values, index, windows)
        hidden_TE.add_(multiply(attended_TH, output))
        gate_up_TO = multiply(scale_to_unit(hidden_TE, feedforward_norm_E, hidden_eps), gate_up)
        gate_TF, up_TF = gate_up_TO.chunk(2, -1)
        hidden_TE.add_(multiply(gate(gate_TF, most_elements).mul_(up_TF), down))
    return hidden_TE
