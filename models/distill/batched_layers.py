"""Decoder layers over a batch of sequences, to be trained or to write with.

Owns `BatchedLayer`, `RotaryAngles` and the norm. The inference decoder (`models.decoder`) runs one sequence in few
operations that cannot be differentiated; these run many, as ordinary torch modules with the parameters in the
Hugging Face order. Knows nothing of files, sampling or losses.

Shape suffixes: B sequences, T tokens of this call, S cache positions, E hidden width, F feed-forward width, H query
heads, K key/value heads, G queries a group, D head dimension, O output features of a fused matrix.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import nn

from models.config import ModelConfig
from models.rope import inverse_frequencies


class NamedTensors(Protocol):
    """Where a layer's tensors come from."""

    def tensor(self, name: str) -> torch.Tensor:
        """The tensor of that Hugging Face name, in any float dtype."""
        ...


class RotaryAngles:
    """cos and sin of positions 0 to `num_positions` - 1, features paired with those half a head further on."""

    def __init__(self, config: ModelConfig, num_positions: int, device: torch.device) -> None:
        angles_SF = torch.arange(num_positions).float()[:, None] * inverse_frequencies(config.rope, config.head_dim)
        angles_SD = torch.cat([angles_SF, angles_SF], dim=-1)
        self._cos_SD = angles_SD.cos().to(device)
        self._sin_SD = angles_SD.sin().to(device)

    def rotate(self, heads_BHTD: torch.Tensor, position: int) -> torch.Tensor:
        """The heads of T tokens from `position` on, turned by their positions; in the dtype they came in."""
        num_tokens = heads_BHTD.shape[2]
        cos_TD = self._cos_SD[position : position + num_tokens].to(heads_BHTD.dtype)
        sin_TD = self._sin_SD[position : position + num_tokens].to(heads_BHTD.dtype)
        first, second = heads_BHTD.chunk(2, dim=-1)
        return heads_BHTD * cos_TD + torch.cat([-second, first], dim=-1) * sin_TD


class AttentionKeys(Protocol):
    """How the queries of a call meet keys: the causal call, a cache, or the steps of a draft that goes on by itself."""

    def attend(
        self, layer: int, queries_BHTD: torch.Tensor, keys_BKTD: torch.Tensor, values_BKTD: torch.Tensor
    ) -> torch.Tensor:
        """attended_BHTD of rotated queries and keys."""
        ...


class WithinCall:
    """Each query sees the keys of its own call up to its own position."""

    def attend(
        self, layer: int, queries_BHTD: torch.Tensor, keys_BKTD: torch.Tensor, values_BKTD: torch.Tensor
    ) -> torch.Tensor:
        """See `AttentionKeys.attend`."""
        return F.scaled_dot_product_attention(queries_BHTD, keys_BKTD, values_BKTD, is_causal=True, enable_gqa=True)


class BatchedLayer(nn.Module):
    """One decoder layer; parameters fused as queries, keys, values and as gate, up."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        self._qkv_sizes = [query, key, key]
        self.input_norm_E = nn.Parameter(torch.ones(config.hidden_size))
        self.qkv = nn.Linear(config.hidden_size, query + 2 * key, bias=config.qkv_bias)
        self.output = nn.Linear(query, config.hidden_size, bias=config.output_bias)
        self.feedforward_norm_E = nn.Parameter(torch.ones(config.hidden_size))
        self.gate_up = nn.Linear(config.hidden_size, 2 * config.intermediate_size, bias=config.mlp_bias)
        self.down = nn.Linear(config.intermediate_size, config.hidden_size, bias=config.mlp_bias)
        self.query_norm_D = nn.Parameter(torch.ones(config.head_dim)) if config.qk_norm else None
        self.key_norm_D = nn.Parameter(torch.ones(config.head_dim)) if config.qk_norm else None

    def forward(
        self, hidden_BTE: torch.Tensor, keys: AttentionKeys, rotary: RotaryAngles, *, layer: int, position: int
    ) -> torch.Tensor:
        """hidden_BTE with what attention and feed-forward add."""
        eps = self.config.rms_norm_eps
        normed_BTE = rms_norm(hidden_BTE, self.input_norm_E, eps)
        queries, keys_BKTD, values_BKTD = (
            self._heads(features_BTO) for features_BTO in torch.split(self.qkv(normed_BTE), self._qkv_sizes, dim=-1)
        )
        if self.query_norm_D is not None and self.key_norm_D is not None:
            queries = rms_norm(queries, self.query_norm_D, eps).to(values_BKTD.dtype)
            keys_BKTD = rms_norm(keys_BKTD, self.key_norm_D, eps).to(values_BKTD.dtype)
        attended_BHTD = keys.attend(
            layer, rotary.rotate(queries, position), rotary.rotate(keys_BKTD, position), values_BKTD
        )
        hidden_BTE = hidden_BTE + self.output(attended_BHTD.transpose(1, 2).flatten(2)).float()
        normed_BTE = rms_norm(hidden_BTE, self.feedforward_norm_E, eps)
        gate_BTF, up_BTF = self.gate_up(normed_BTE).chunk(2, dim=-1)
        added_BTE: torch.Tensor = self.down(F.silu(gate_BTF) * up_BTF).float()
        return hidden_BTE + added_BTE

    def _heads(self, features_BTO: torch.Tensor) -> torch.Tensor:
        num_sequences, num_tokens, _ = features_BTO.shape
        return features_BTO.view(num_sequences, num_tokens, -1, self.config.head_dim).transpose(1, 2)

    @torch.no_grad()
    def load(self, source: NamedTensors, prefix: str) -> None:
        """Take the tensors called `prefix` and a Hugging Face name behind it, such as `model.layers.3.`.

        Raises:
            CheckpointError: if the source lacks one.
        """
        for name, parameter in self.named_tensors():
            parameter.copy_(source.tensor(prefix + name).float())

    def named_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Hugging Face names and views of the parameters, in the order of `models.decoder_tensors`."""
        yield "input_layernorm.weight", self.input_norm_E
        for name, weight in zip("qkv", torch.split(self.qkv.weight, self._qkv_sizes), strict=True):
            yield f"self_attn.{name}_proj.weight", weight
        if self.config.qkv_bias:
            for name, bias in zip("qkv", torch.split(self.qkv.bias, self._qkv_sizes), strict=True):
                yield f"self_attn.{name}_proj.bias", bias
        if self.query_norm_D is not None and self.key_norm_D is not None:
            yield "self_attn.q_norm.weight", self.query_norm_D
            yield "self_attn.k_norm.weight", self.key_norm_D
        yield from _matrix("self_attn.o_proj", self.output, self.config.output_bias)
        yield "post_attention_layernorm.weight", self.feedforward_norm_E
        gate, up = self.gate_up.weight.chunk(2)
        yield "mlp.gate_proj.weight", gate
        yield "mlp.up_proj.weight", up
        if self.config.mlp_bias:
            gate_bias, up_bias = self.gate_up.bias.chunk(2)
            yield "mlp.gate_proj.bias", gate_bias
            yield "mlp.up_proj.bias", up_bias
        yield from _matrix("mlp.down_proj", self.down, self.config.mlp_bias)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Root mean square norm (https://arxiv.org/abs/1910.07467) over the last dimension, in float32."""
    return F.rms_norm(x.float(), weight.shape, weight.float(), eps)


def unit_rms(x: torch.Tensor, eps: float) -> torch.Tensor:
    """`x` over the root mean square of its last dimension, in float32."""
    return F.rms_norm(x.float(), x.shape[-1:], None, eps)


def _matrix(name: str, linear: nn.Linear, has_bias: bool) -> Iterator[tuple[str, torch.Tensor]]:
    yield f"{name}.weight", linear.weight
    if has_bias:
        yield f"{name}.bias", linear.bias
