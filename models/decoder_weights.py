"""A decoder's matrices, fused, reordered and packed for the lean forward pass.

Owns the order of features inside the fused matrices. Knows nothing of how they are multiplied
or of caches.

- One matrix gives queries, keys and values: G + 2 groups of K heads, the queries' group g first, then keys,
  then values. Inside a query or key head, features i and i + D/2 stand side by side (`models.rope`).
- The output projection takes its heads in the same order (group, kv head).
- Gate and up are one matrix, gate first.

Shape suffixes: E hidden width, H query heads, K key/value heads, G queries a group, D head dimension,
I input features, O output features, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import torch

from models.config import ModelConfig
from models.linear import (
    Float32Linear,
    HalfLinear,
    MatrixKinds,
    PackedLinear,
    WeightKind,
    fits_float16,
    half_dtype,
    pack_linear,
)


class TensorSource(Protocol):
    """What a decoder needs of a checkpoint: tensors by their Hugging Face names."""

    @property
    def name(self) -> str:
        """A name for messages and metrics."""
        ...

    @property
    def config(self) -> ModelConfig:
        """The decoder's shape."""
        ...

    def tensor(self, name: str) -> torch.Tensor:
        """The tensor of that name, in any float dtype."""
        ...

    def has(self, name: str) -> bool:
        """Whether there is a tensor of that name."""
        ...


@dataclass(frozen=True, kw_only=True)
class LayerWeights:
    """One decoder layer."""

    input_norm_E: torch.Tensor
    """RMS weight times sqrt(E): the forward pass divides by the Euclidean norm, not by the root mean square."""
    qkv: PackedLinear
    head_norm_GKD: torch.Tensor | None
    """Per-head RMS weights times sqrt(D) for the G query groups and the keys' group, shape (G + 1, 1, D)."""
    output: PackedLinear
    feedforward_norm_E: torch.Tensor
    gate_up: PackedLinear
    down: PackedLinear

    @property
    def num_bytes(self) -> int:
        """Bytes of this layer's weights."""
        norms = [self.input_norm_E, self.feedforward_norm_E]
        if self.head_norm_GKD is not None:
            norms.append(self.head_norm_GKD)
        matrices = [self.qkv, self.output, self.gate_up, self.down]
        return sum(norm.nbytes for norm in norms) + sum(matrix.num_bytes for matrix in matrices)


@dataclass(frozen=True, kw_only=True)
class DecoderWeights:
    """All of a decoder."""

    embedding_VE: torch.Tensor
    """Rows are widened to float32 when they are looked up."""
    layers: tuple[LayerWeights, ...]
    final_norm_E: torch.Tensor
    head: PackedLinear
    key_value_dtype: torch.dtype = torch.float32
    """What keys and values are cached in; see `key_value_dtype`."""

    @property
    def rounds_products(self) -> bool:
        """Whether any matrix rounds its sums to half precision."""
        matrices = [
            self.head,
            *(m for layer in self.layers for m in (layer.qkv, layer.output, layer.gate_up, layer.down)),
        ]
        return any(isinstance(matrix, HalfLinear) for matrix in matrices)

    @property
    def num_bytes(self) -> int:
        """Bytes of all weights; a head that is the embedding itself counts once."""
        shared = isinstance(self.head, Float32Linear | HalfLinear) and self.head.shares_memory_with(self.embedding_VE)
        head_bytes = 0 if shared else self.head.num_bytes
        layer_bytes = sum(layer.num_bytes for layer in self.layers)
        return self.embedding_VE.nbytes + layer_bytes + self.final_norm_E.nbytes + head_bytes

    def num_read_bytes(self, config: ModelConfig, num_positions: int) -> int:
        """Bytes that a call reads: everything but the embedding, of which it reads a few rows, and a cache's start."""
        layer_bytes = sum(layer.num_bytes for layer in self.layers)
        num_cached = 2 * config.num_layers * config.num_kv_heads * config.head_dim * num_positions
        cached_bytes = num_cached * self.key_value_dtype.itemsize
        return layer_bytes + self.final_norm_E.nbytes + self.head.num_bytes + cached_bytes


def key_value_dtype(kinds: MatrixKinds) -> torch.dtype:
    """Bfloat16 where the matrices before and after attention are: the one has rounded to it, the other will."""
    kept_short = kinds.qkv is WeightKind.BFLOAT16 and kinds.output is WeightKind.BFLOAT16
    return torch.bfloat16 if kept_short else torch.float32


def load_weights(
    source: TensorSource,
    kinds: MatrixKinds,
    device: torch.device,
    *,
    input_scales: Mapping[str, torch.Tensor] | None = None,
) -> DecoderWeights:
    """Fuse and pack all tensors of `source`.

    Args:
        source: an opened checkpoint.
        kinds: a weight kind for each matrix.
        device: where the weights shall lie.
        input_scales: what each input feature of a matrix shall be divided by, keyed `layers.3.qkv`, `layers.3.gate_up`,
            `layers.3.down` or `head`; the division is folded into the norm or the up projection before it,
            the product into the matrix, so float32 results stay the same and int8 ones get finer.

    Raises:
        UnsupportedModelError, CheckpointError: whatever `source` raises for a tensor.
        ValueError: if a kind cannot hold a matrix on this device, or `input_scales` names an unknown matrix.
    """
    config = source.config
    loader = _LayerLoader(source, kinds, device, dict(input_scales or {}))
    # Widening and packing release the interpreter; two at a time hide each other's waits.
    with ThreadPoolExecutor(max_workers=2) as pool:
        embedding = pool.submit(loader.embedding_and_head)
        layers = tuple(pool.map(loader.layer, range(config.num_layers)))
        embedding_VE, head = embedding.result()
    loader.check_all_scales_used()
    final_norm_E = loader.norm("model.norm.weight", config.hidden_size, loader.head_scale)
    if device.type == "cuda":
        # The pool's threads worked on their own default streams, behind which no later stream waits.
        torch.cuda.synchronize(device)
    return DecoderWeights(
        embedding_VE=embedding_VE,
        layers=layers,
        final_norm_E=final_norm_E,
        head=head,
        key_value_dtype=key_value_dtype(kinds),
    )


def load_layers(source: TensorSource, kinds: MatrixKinds, device: torch.device) -> tuple[LayerWeights, ...]:
    """Fuse and pack the layers of `source` alone.

    Args:
        source: its config says how many; needs neither embedding nor head.
        kinds: a weight kind for each matrix.
        device: where the weights shall lie.

    Raises:
        ValueError: if a kind cannot hold a matrix on this device.
    """
    loader = _LayerLoader(source, kinds, device, {})
    return tuple(loader.layer(index) for index in range(source.config.num_layers))


class _LayerLoader:
    def __init__(
        self, source: TensorSource, kinds: MatrixKinds, device: torch.device, input_scales: dict[str, torch.Tensor]
    ) -> None:
        self._source = source
        self._config = source.config
        self._kinds = kinds
        self._device = device
        self._input_scales = input_scales

    @property
    def head_scale(self) -> torch.Tensor | None:
        return self._input_scales.get("head")

    def check_all_scales_used(self) -> None:
        known = {f"layers.{i}.{name}" for i in range(self._config.num_layers) for name in ("qkv", "gate_up", "down")}
        unknown = sorted(set(self._input_scales) - known - {"head"})
        if unknown:
            raise ValueError(f"input_scales names no matrix of this model: {unknown[0]!r}; expected e.g. layers.0.qkv")

    def _float(self, name: str) -> torch.Tensor:
        return self._source.tensor(name).to(self._device, torch.float32)

    def _optional(self, name: str, present: bool) -> torch.Tensor | None:
        return self._float(name) if present else None

    def norm(self, name: str, width: int, scale: torch.Tensor | None = None) -> torch.Tensor:
        weight_E = self._float(name) * float(width**0.5)
        return weight_E if scale is None else weight_E / scale

    def embedding_and_head(self) -> tuple[torch.Tensor, PackedLinear]:
        kind = self._kinds.head
        embedding_VE = self._float("model.embed_tokens.weight")
        compact_VE = embedding_VE
        if kind is WeightKind.BFLOAT16:
            compact_VE = embedding_VE.to(torch.bfloat16)
        elif kind is not WeightKind.FLOAT32 and fits_float16(embedding_VE):
            compact_VE = embedding_VE.half()
        if not self._config.tie_embeddings:
            head_VE = self._float("lm_head.weight")
        else:
            head_VE = compact_VE if compact_VE.dtype == half_dtype(kind, self._device) else embedding_VE
        return compact_VE, pack_linear(head_VE, None, kind, input_scale_I=self.head_scale)

    def layer(self, index: int) -> LayerWeights:
        config, prefix = self._config, f"model.layers.{index}."
        qkv_scale = self._input_scales.get(f"layers.{index}.qkv")
        gate_up_scale = self._input_scales.get(f"layers.{index}.gate_up")
        down_scale = self._input_scales.get(f"layers.{index}.down")
        return LayerWeights(
            input_norm_E=self.norm(f"{prefix}input_layernorm.weight", config.hidden_size, qkv_scale),
            qkv=self._qkv(f"{prefix}self_attn.", qkv_scale),
            head_norm_GKD=self._head_norm(f"{prefix}self_attn.") if config.qk_norm else None,
            output=self._output(f"{prefix}self_attn.o_proj."),
            feedforward_norm_E=self.norm(f"{prefix}post_attention_layernorm.weight", config.hidden_size, gate_up_scale),
            gate_up=self._gate_up(f"{prefix}mlp.", gate_up_scale, down_scale),
            down=pack_linear(
                self._float(f"{prefix}mlp.down_proj.weight"),
                self._optional(f"{prefix}mlp.down_proj.bias", config.mlp_bias),
                self._kinds.down,
                input_scale_I=down_scale,
            ),
        )

    def _qkv(self, prefix: str, scale_E: torch.Tensor | None) -> PackedLinear:
        group_size = self._config.num_heads // self._config.num_kv_heads
        parts = []
        for name, heads, rotated in (("q_proj", group_size, True), ("k_proj", 1, True), ("v_proj", 1, False)):
            weight = self._float(f"{prefix}{name}.weight")
            bias = self._optional(f"{prefix}{name}.bias", self._config.qkv_bias)
            parts.append([None if t is None else self._reorder_rows(t, heads, rotated) for t in (weight, bias)])
        weight_OI = torch.cat([weight for weight, _ in parts if weight is not None])
        bias_O = torch.cat([bias for _, bias in parts if bias is not None]) if self._config.qkv_bias else None
        return pack_linear(weight_OI, bias_O, self._kinds.qkv, input_scale_I=scale_E)

    def _reorder_rows(self, tensor: torch.Tensor, heads_per_group: int, rotated: bool) -> torch.Tensor:
        """Rows (kv head, group, feature) to (group, kv head, feature), features paired for rotation."""
        num_kv_heads, head_dim = self._config.num_kv_heads, self._config.head_dim
        rest = tensor.shape[1:]
        if rotated:
            halves = tensor.reshape(num_kv_heads, heads_per_group, 2, head_dim // 2, *rest)
            return halves.transpose(2, 3).transpose(0, 1).reshape(-1, *rest)
        return tensor.reshape(num_kv_heads, heads_per_group, head_dim, *rest).transpose(0, 1).reshape(-1, *rest)

    def _head_norm(self, prefix: str) -> torch.Tensor:
        group_size, head_dim = self._config.num_heads // self._config.num_kv_heads, self._config.head_dim
        query_D, key_D = (
            self.norm(f"{prefix}{name}.weight", head_dim).reshape(2, head_dim // 2).t().reshape(head_dim)
            for name in ("q_norm", "k_norm")
        )
        return torch.cat([query_D.expand(group_size, 1, head_dim), key_D.expand(1, 1, head_dim)]).contiguous()

    def _output(self, prefix: str) -> PackedLinear:
        config = self._config
        weight_EH = self._float(f"{prefix}weight")
        group_size = config.num_heads // config.num_kv_heads
        by_head = weight_EH.reshape(config.hidden_size, config.num_kv_heads, group_size, config.head_dim)
        bias_E = self._optional(f"{prefix}bias", config.output_bias)
        return pack_linear(by_head.transpose(1, 2).reshape(config.hidden_size, -1), bias_E, self._kinds.output)

    def _gate_up(self, prefix: str, scale_E: torch.Tensor | None, down_scale: torch.Tensor | None) -> PackedLinear:
        gate, up = self._float(f"{prefix}gate_proj.weight"), self._float(f"{prefix}up_proj.weight")
        gate_bias = self._optional(f"{prefix}gate_proj.bias", self._config.mlp_bias)
        up_bias = self._optional(f"{prefix}up_proj.bias", self._config.mlp_bias)
        if down_scale is not None:
            up = up / down_scale[:, None]
            up_bias = None if up_bias is None else up_bias / down_scale
        bias = torch.cat([gate_bias, up_bias]) if gate_bias is not None and up_bias is not None else None
        return pack_linear(torch.cat([gate, up]), bias, self._kinds.gate_up, input_scale_I=scale_E)
