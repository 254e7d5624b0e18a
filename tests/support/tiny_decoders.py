"""Tiny random decoders of every family, as transformers models and as checkpoints with the same weights.

Shape suffixes: T tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from models.config import Family, ModelConfig, RopeConfig, RopeScaling


@dataclass(frozen=True)
class StateDictCheckpoint:
    """A transformers model's weights as a checkpoint."""

    config: ModelConfig
    tensors: dict[str, torch.Tensor]
    name: str = "tiny"

    def tensor(self, name: str) -> torch.Tensor:
        return self.tensors[name]

    def has(self, name: str) -> bool:
        return name in self.tensors


@dataclass(frozen=True)
class Reference:
    """A tiny transformers model and what the decoder needs to equal it."""

    model: Any
    checkpoint: StateDictCheckpoint

    def logits(self, token_ids_T: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            logits_TV: torch.Tensor = self.model(token_ids_T[None]).logits[0]
        return logits_TV


SHAPE: dict[str, Any] = {
    "vocab_size": 211,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
}


def build(family: Family, model_class: Any, config_class: Any, ours: dict[str, Any], **theirs: Any) -> Reference:
    """A random model of `config_class`, norms and biases random too, and its weights under our configuration."""
    shape = {**SHAPE, **theirs}
    with torch.random.fork_rng():
        torch.manual_seed(7)
        model = model_class(config_class(**shape, attn_implementation="eager")).eval()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "norm" in name:
                    parameter.uniform_(0.5, 1.5)
                elif name.endswith("bias"):
                    parameter.normal_(0, 0.5)
                else:
                    parameter.normal_(0, 0.15)
    config = ModelConfig(
        family=family,
        vocab_size=shape["vocab_size"],
        hidden_size=shape["hidden_size"],
        intermediate_size=shape["intermediate_size"],
        num_layers=shape["num_hidden_layers"],
        num_heads=shape["num_attention_heads"],
        num_kv_heads=shape["num_key_value_heads"],
        head_dim=shape.get("head_dim", shape["hidden_size"] // shape["num_attention_heads"]),
        context_length=shape["max_position_embeddings"],
        rms_norm_eps=shape["rms_norm_eps"],
        tie_embeddings=shape.get("tie_word_embeddings", False),
        **ours,
    )
    return Reference(model, StateDictCheckpoint(config, dict(model.state_dict())))


def llama(ours: dict[str, Any] | None = None, **theirs: Any) -> Reference:
    from transformers import LlamaConfig, LlamaForCausalLM

    return build(Family.LLAMA, LlamaForCausalLM, LlamaConfig, ours or {}, **theirs)


def llama3_scaling() -> Reference:
    numbers = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    rope = RopeConfig(theta=500.0, scaling=RopeScaling.LLAMA3, original_context=64, **numbers)
    parameters = {"rope_type": "llama3", "rope_theta": 500.0, "original_max_position_embeddings": 64, **numbers}
    return llama({"rope": rope}, rope_parameters=parameters)


def linear_scaling() -> Reference:
    rope = RopeConfig(theta=10_000.0, scaling=RopeScaling.LINEAR, factor=4.0)
    return llama({"rope": rope}, rope_parameters={"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0})


def llama_biases() -> Reference:
    return llama(
        {"qkv_bias": True, "output_bias": True, "mlp_bias": True},
        attention_bias=True,
        mlp_bias=True,
        tie_word_embeddings=True,
    )


def mistral(sliding_window: int | None, **theirs: Any) -> Reference:
    from transformers import MistralConfig, MistralForCausalLM

    ours = {"sliding_window": sliding_window}
    theirs = {"sliding_window": sliding_window, "head_dim": 12, **theirs}
    return build(Family.MISTRAL, MistralForCausalLM, MistralConfig, ours, **theirs)


def qwen2() -> Reference:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    return build(Family.QWEN2, Qwen2ForCausalLM, Qwen2Config, {"qkv_bias": True}, tie_word_embeddings=True)


def qwen3() -> Reference:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    return build(Family.QWEN3, Qwen3ForCausalLM, Qwen3Config, {"qk_norm": True}, head_dim=16)


REFERENCES: dict[str, Callable[[], Reference]] = {
    "llama": llama,
    "llama-one-kv-head": lambda: llama(num_key_value_heads=1),
    "llama-ungrouped": lambda: llama(num_key_value_heads=6),
    "llama-llama3-rope": llama3_scaling,
    "llama-linear-rope": linear_scaling,
    "llama-biases-tied": llama_biases,
    "mistral": lambda: mistral(None),
    "mistral-sliding": lambda: mistral(20),
    "qwen2": qwen2,
    "qwen3": qwen3,
}
