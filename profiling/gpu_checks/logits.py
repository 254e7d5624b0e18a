"""Logits of the device against the same model in float64 on the host.

Owns a plain reference of the Qwen2 kind (https://arxiv.org/abs/2407.10671, section 2.2): no cache, no fused matrix, no
line shared with the decoder. Knows nothing of streams.

Shape suffixes: T tokens, R logit rows, E hidden width, H heads, D head dimension, V vocabulary.
"""

from __future__ import annotations

import torch

from models import Decoder, ModelConfig, RandomTensors, RopeScaling, WeightKind
from profiling.gpu_checks.bench import GpuBench
from profiling.gpu_checks.check import Budget, Finding

_NUM_TOKENS = 150
"""More than two buckets of keys."""
_NUM_PREFILLED = 60
_WIDTHS = (1, 2, 3, 5, 8, 9, 16, 4)
_LARGEST_ERROR = {WeightKind.FLOAT32: 1e-3, WeightKind.BFLOAT16: 0.4}
"""Of a logit; their standard deviation is 2."""
_LARGEST_RMS_ERROR = {WeightKind.FLOAT32: 1e-4, WeightKind.BFLOAT16: 0.08}
_SEED = 5


async def check_logits(bench: GpuBench, budget: Budget) -> Finding:
    """Prefill, blocks of several widths and calls at given positions, in float32 and bfloat16."""
    config = bench.sizes.small_target
    tensors = RandomTensors(config, device=torch.device("cpu"), seed=_SEED)
    ids_T = torch.randint(config.vocab_size, (_NUM_TOKENS,), generator=torch.Generator().manual_seed(_SEED))
    wanted_TV = reference_logits(tensors, ids_T)
    figures: dict[str, object] = {"float32_matmul_precision": torch.get_float32_matmul_precision()}
    faults: list[str] = []
    for kind in (WeightKind.FLOAT32, WeightKind.BFLOAT16):
        decoder = Decoder.from_checkpoint(tensors, weights=kind, device=bench.device)
        for way, found_RV in _rows(bench, decoder, ids_T).items():
            error_RV = found_RV.double().cpu() - wanted_TV[_NUM_PREFILLED : _NUM_PREFILLED + len(found_RV)]
            largest, rms = float(error_RV.abs().max()), float(error_RV.square().mean().sqrt())
            figures[f"{kind.value}, {way}"] = {"largest_error": largest, "rms_error": rms}
            if not (largest <= _LARGEST_ERROR[kind] and rms <= _LARGEST_RMS_ERROR[kind]):
                faults.append(
                    f"{kind.value}, {way}: logits differ from float64 by up to {largest:.2g} (bound "
                    f"{_LARGEST_ERROR[kind]:g}), root mean square {rms:.2g} (bound {_LARGEST_RMS_ERROR[kind]:g})"
                )
    figures["float32 with TF32 allowed"] = _with_tf32(bench, tensors, ids_T, wanted_TV)
    worst = {
        kind.value: max(
            float(entry["largest_error"])
            for name, entry in figures.items()
            if name.startswith(f"{kind.value},") and isinstance(entry, dict)
        )
        for kind in _LARGEST_ERROR
    }
    return Finding(
        summary="largest error against float64: " + ", ".join(f"{name} {error:.1e}" for name, error in worst.items()),
        figures=figures,
        faults=tuple(faults),
    )


def _rows(bench: GpuBench, decoder: Decoder, ids_T: torch.Tensor) -> dict[str, torch.Tensor]:
    """logits_RV of the tokens behind the prefill, computed in three ways."""
    ids_T = ids_T.to(bench.device)
    head_T, tail_T = ids_T[:_NUM_PREFILLED], ids_T[_NUM_PREFILLED:]
    ways = {}
    cache = decoder.new_cache(_NUM_TOKENS)
    decoder.forward(head_T, cache, num_logits=0)
    ways["one block"] = decoder.forward(tail_T, cache, num_logits=len(tail_T))
    cache.rollback(_NUM_PREFILLED)
    blocks, start = [], 0
    for width in _WIDTHS:
        block_T = tail_T[start : start + width]
        blocks.append(decoder.forward(block_T, cache, num_logits=width))
        # Rejected tokens leave rows behind that nobody may see.
        decoder.forward(head_T[:3], cache, num_logits=1)
        start += width
        cache.rollback(_NUM_PREFILLED + start)
    ways["blocks of several widths"] = torch.cat(blocks)
    cache.rollback(_NUM_PREFILLED)
    steps = []
    for index in range(sum(_WIDTHS)):
        position = _NUM_PREFILLED + index
        # As a draft steps: the token before the last is read once more.
        positions_2 = torch.tensor([position - 1, position], device=bench.device)
        steps.append(
            decoder.forward_at(
                ids_T[position - 1 : position + 1], positions_2, cache, key_length=position + 1, num_logits=1
            )
        )
    ways["at given positions"] = torch.cat(steps)
    bench.gauge.synchronize()
    return ways


def _with_tf32(
    bench: GpuBench, tensors: RandomTensors, ids_T: torch.Tensor, wanted_TV: torch.Tensor
) -> dict[str, float]:
    """What the shorter mantissa costs, which only an application can ask for; no bound."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        decoder = Decoder.from_checkpoint(tensors, weights=WeightKind.FLOAT32, device=bench.device)
        found_TV = decoder.forward(ids_T.to(bench.device), decoder.new_cache(len(ids_T)), num_logits=len(ids_T))
        error_TV = found_TV.double().cpu() - wanted_TV
    finally:
        torch.set_float32_matmul_precision(before)
    return {"largest_error": float(error_TV.abs().max()), "rms_error": float(error_TV.square().mean().sqrt())}


def reference_logits(tensors: RandomTensors, ids_T: torch.Tensor) -> torch.Tensor:
    """logits_TV in float64 for a config without head norms, windows or scaled rotation.

    Raises:
        ValueError: if the config has any of them.
    """
    config = tensors.config
    if config.qk_norm or config.sliding_window is not None or config.rope.scaling is not RopeScaling.NONE:
        raise ValueError(f"the reference covers plain Qwen2 only, got {config}")

    def weight(name: str) -> torch.Tensor:
        return tensors.tensor(name).double()

    def norm(x_TE: torch.Tensor, name: str) -> torch.Tensor:
        return x_TE * (x_TE.square().mean(-1, keepdim=True) + config.rms_norm_eps).rsqrt() * weight(f"{name}.weight")

    hidden_TE = weight("model.embed_tokens.weight")[ids_T]
    for index in range(config.num_layers):
        prefix = f"model.layers.{index}"
        x_TE = norm(hidden_TE, f"{prefix}.input_layernorm")
        projected = [
            x_TE @ weight(f"{prefix}.self_attn.{name}.weight").T + weight(f"{prefix}.self_attn.{name}.bias")
            for name in ("q_proj", "k_proj", "v_proj")
        ]
        attended_TE = _attention(projected, config)
        hidden_TE = hidden_TE + attended_TE @ weight(f"{prefix}.self_attn.o_proj.weight").T
        x_TE = norm(hidden_TE, f"{prefix}.post_attention_layernorm")
        gate_TF = torch.nn.functional.silu(x_TE @ weight(f"{prefix}.mlp.gate_proj.weight").T)
        up_TF = x_TE @ weight(f"{prefix}.mlp.up_proj.weight").T
        hidden_TE = hidden_TE + (gate_TF * up_TF) @ weight(f"{prefix}.mlp.down_proj.weight").T
    head = "model.embed_tokens.weight" if config.tie_embeddings else "lm_head.weight"
    return norm(hidden_TE, "model.norm") @ weight(head).T


def _attention(projected: list[torch.Tensor], config: ModelConfig) -> torch.Tensor:
    num_tokens, head_dim = len(projected[0]), config.head_dim
    query_HTD, key_HTD, value_HTD = (x.view(num_tokens, -1, head_dim).transpose(0, 1) for x in projected)
    frequencies = config.rope.theta ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    angles_TD = torch.outer(torch.arange(num_tokens, dtype=torch.float64), frequencies).repeat(1, 2)

    def rotated(x_HTD: torch.Tensor) -> torch.Tensor:
        first, second = x_HTD.chunk(2, dim=-1)
        return x_HTD * angles_TD.cos() + torch.cat([-second, first], dim=-1) * angles_TD.sin()

    group_size = config.num_heads // config.num_kv_heads
    key_HTD, value_HTD = (x.repeat_interleave(group_size, 0) for x in (rotated(key_HTD), value_HTD))
    scores_HTT = rotated(query_HTD) @ key_HTD.transpose(1, 2) / head_dim**0.5
    future_TT = torch.ones(num_tokens, num_tokens, dtype=torch.bool).triu(1)
    weights_HTT = scores_HTT.masked_fill(future_TT, float("-inf")).softmax(-1)
    attended_THD: torch.Tensor = (weights_HTT @ value_HTD).transpose(0, 1)
    return attended_THD.reshape(num_tokens, -1)
