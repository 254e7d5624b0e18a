"""Which tensors a decoder of a given config has, and with which shapes.

Owns `expected_tensors`, `expected_layer_tensors` and `check_tensors`, in Hugging Face's names for every file format.
Knows nothing of files. Shapes are `(out, in)` for matrices.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from models.config import ModelConfig
from models.errors import CheckpointError, UnsupportedModelError

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"

Shape = tuple[int, ...]


def expected_tensors(config: ModelConfig) -> Iterator[tuple[str, Shape]]:
    """Name and shape of every tensor, in the order in which a forward pass meets them."""
    yield EMBEDDING, (config.vocab_size, config.hidden_size)
    for name, shape in expected_layer_tensors(config):
        yield f"model.{name}", shape
    yield "model.norm.weight", (config.hidden_size,)
    if not config.tie_embeddings:
        yield HEAD, (config.vocab_size, config.hidden_size)


def expected_layer_tensors(config: ModelConfig) -> Iterator[tuple[str, Shape]]:
    """Name and shape of every tensor of the layers alone, without the prefix `model.`, in the same order."""
    for index in range(config.num_layers):
        for name, shape in _layer_tensors(config):
            yield f"layers.{index}.{name}", shape


def check_tensors(config: ModelConfig, shapes: Mapping[str, Shape], origin: str) -> None:
    """Compare what a file holds with what the config calls for.

    Rotary tables, which old checkpoints store although they follow from the config, and a stored
    head beside tied embeddings are passed over.

    Raises:
        CheckpointError: naming the first tensor that is missing or has another shape.
        UnsupportedModelError: naming a tensor that the decoder would leave unused: with it, the
            model computes something else.
    """
    expected = set()
    for name, shape in expected_tensors(config):
        if name not in shapes:
            raise CheckpointError(
                f"{origin}: the tensor {name} is missing; the file is incomplete or its config is wrong"
            )
        if shapes[name] != shape:
            raise CheckpointError(
                f"{origin}: the tensor {name} has shape {shapes[name]}, but its config calls for {shape}"
            )
        expected.add(name)
    for name in shapes:
        if name not in expected and name != HEAD and not name.endswith(".rotary_emb.inv_freq"):
            raise UnsupportedModelError(
                f"{origin}: the tensor {name[:200]} is not part of a {config.family.value} decoder with this config; "
                "computing without it would give other text"
            )


def _layer_tensors(config: ModelConfig) -> Iterator[tuple[str, Shape]]:
    hidden, intermediate = config.hidden_size, config.intermediate_size
    query, key_value = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    yield "input_layernorm.weight", (hidden,)
    for name, width in (("q_proj", query), ("k_proj", key_value), ("v_proj", key_value)):
        yield from _linear(f"self_attn.{name}", (width, hidden), config.qkv_bias)
    if config.qk_norm:
        yield "self_attn.q_norm.weight", (config.head_dim,)
        yield "self_attn.k_norm.weight", (config.head_dim,)
    yield from _linear("self_attn.o_proj", (hidden, query), config.output_bias)
    yield "post_attention_layernorm.weight", (hidden,)
    for name in ("gate_proj", "up_proj"):
        yield from _linear(f"mlp.{name}", (intermediate, hidden), config.mlp_bias)
    yield from _linear("mlp.down_proj", (hidden, intermediate), config.mlp_bias)


def _linear(name: str, shape: Shape, bias: bool) -> Iterator[tuple[str, Shape]]:
    yield f"{name}.weight", shape
    if bias:
        yield f"{name}.bias", shape[:1]
