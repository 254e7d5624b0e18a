"""A decoder's shape as plain numbers, whatever file it was read from.

Owns `ModelConfig` and `RopeConfig`. Knows nothing of files, tensors or caches.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


class Family(Enum):
    """Decoder families whose layers the lean decoder computes."""

    LLAMA = "llama"
    MISTRAL = "mistral"
    QWEN2 = "qwen2"
    QWEN3 = "qwen3"


class RopeScaling(Enum):
    """How rotary frequencies are stretched beyond the trained context."""

    NONE = "default"
    LINEAR = "linear"
    LLAMA3 = "llama3"


@dataclass(frozen=True, kw_only=True)
class RopeConfig:
    """Rotary position embedding (Su et al., 2021, https://arxiv.org/abs/2104.09864)."""

    theta: float = 10_000.0
    scaling: RopeScaling = RopeScaling.NONE
    factor: float = 1.0
    """Stretch of the wavelengths; 1 leaves them alone."""
    low_freq_factor: float = 1.0
    """llama3 only: wavelengths above original_context / this are stretched in full."""
    high_freq_factor: float = 4.0
    """llama3 only: wavelengths below original_context / this are left alone."""
    original_context: int = 8192
    """llama3 only: positions the model was trained on before stretching."""
    frequency_divisors: tuple[float, ...] | None = None
    """One divisor per frequency, as GGUF's `rope_freqs.weight` stores llama3 scaling; used as it is when given."""


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Everything a decoder needs to know besides its weights."""

    family: Family
    vocab_size: int
    """Rows of the embedding and width of a logit row; may exceed the tokenizer's ids."""
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    context_length: int
    rms_norm_eps: float = 1e-6
    rope: RopeConfig = field(default_factory=RopeConfig)
    tie_embeddings: bool = False
    """The output head is the embedding itself."""
    qkv_bias: bool = False
    output_bias: bool = False
    """Attention's output projection has a bias."""
    mlp_bias: bool = False
    qk_norm: bool = False
    """Queries and keys are RMS-normalised per head before rotation (Qwen3)."""
    sliding_window: int | None = None
    """Each query sees at most this many latest keys, on every layer; None sees all."""
    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None
