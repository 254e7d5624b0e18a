"""`ModelConfig` from the metadata of a GGUF file.

Owns the reading of `llama.*`, `qwen2.*` and `qwen3.*` keys and the refusal of what the lean decoder
would compute differently. Knows nothing of file layout. Keys:
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Absent keys take llama.cpp's defaults.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from models.config import Family, ModelConfig, RopeConfig, RopeScaling
from models.errors import CheckpointError, UnsupportedModelError
from models.hf_config import MAX_LAYERS
from models.settings_reader import MAX_CONTEXT, SettingsReader

ARCHITECTURES = {"llama": Family.LLAMA, "qwen2": Family.QWEN2, "qwen3": Family.QWEN3}
"""Mistral's converter writes `llama`: without a sliding window the layers are the same."""

_NEUTRAL_SETTINGS: dict[str, object] = {
    "expert_count": 0,
    "use_parallel_residual": False,
    "logit_scale": 1.0,
    "residual_scale": 1.0,
    "embedding_scale": 1.0,
    "attn_logit_softcapping": 0.0,
    "final_logit_softcapping": 0.0,
    "attention.scale": 0.0,
    "attention.clamp_kqv": 0.0,
    "attention.max_alibi_bias": 0.0,
    "attention.causal": True,
    "attention.sliding_window_pattern": 1,
}
"""Settings that would change the arithmetic, and the values at which they do not."""


def parse_gguf_config(
    metadata: Mapping[str, object],
    *,
    tensor_names: Collection[str],
    vocab_size: int,
    rope_divisors: tuple[float, ...] | None,
    origin: str,
) -> ModelConfig:
    """The config that a file's metadata and tensors describe.

    Args:
        metadata: all of it, by key.
        tensor_names: as in the file; they tell which biases there are and whether the head is tied.
        vocab_size: rows of the embedding, used unless the metadata names a size.
        rope_divisors: the numbers of `rope_freqs.weight`, if the file has it.
        origin: the file's name, for messages.

    Raises:
        CheckpointError: if a key is missing, has a wrong type, or an impossible value.
        UnsupportedModelError: if the decoder cannot compute this model exactly; names the key.
    """
    whole = SettingsReader(metadata, origin)
    architecture = whole.text("general.architecture")
    family = ARCHITECTURES.get(architecture)
    if family is None:
        raise UnsupportedModelError(
            f"{origin}: general.architecture is {architecture[:100]!r}; supported are {', '.join(ARCHITECTURES)}"
        )
    reader = _architecture_reader(metadata, architecture, origin)
    _refuse_other_arithmetic(reader)
    num_layers = reader.integer("block_count", maximum=MAX_LAYERS)
    hidden_size = reader.integer("embedding_length")
    num_heads = _read_per_layer(reader, "attention.head_count", num_layers)
    num_kv_heads = _read_per_layer(reader, "attention.head_count_kv", num_layers, default=num_heads)
    if num_heads % num_kv_heads:
        raise reader.error("attention.head_count_kv", f"must divide attention.head_count, {num_heads}")
    context_length = reader.integer("context_length", maximum=MAX_CONTEXT)
    window = reader.integer("attention.sliding_window", 0, minimum=0, maximum=MAX_CONTEXT)
    bos_ids = whole.token_ids("tokenizer.ggml.bos_token_id", vocab_size=vocab_size)
    head_dim = _read_head_dim(reader, hidden_size, num_heads)
    return ModelConfig(
        family=family,
        vocab_size=reader.integer("vocab_size", vocab_size),
        hidden_size=hidden_size,
        intermediate_size=_read_per_layer(reader, "feed_forward_length", num_layers),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        context_length=context_length,
        rms_norm_eps=reader.number("attention.layer_norm_rms_epsilon"),
        rope=_read_rope(reader, head_dim, rope_divisors),
        tie_embeddings="output.weight" not in tensor_names,
        qkv_bias="blk.0.attn_q.bias" in tensor_names,
        output_bias="blk.0.attn_output.bias" in tensor_names,
        mlp_bias="blk.0.ffn_gate.bias" in tensor_names,
        qk_norm=family is Family.QWEN3,
        sliding_window=window if 0 < window < context_length else None,
        eos_token_ids=_read_end_ids(whole, vocab_size),
        bos_token_id=bos_ids[0] if bos_ids else None,
    )


def _architecture_reader(metadata: Mapping[str, object], architecture: str, origin: str) -> SettingsReader:
    prefix = f"{architecture}."
    settings = {key.removeprefix(prefix): value for key, value in metadata.items() if key.startswith(prefix)}
    return SettingsReader(settings, f"{origin}: {architecture}")


def _refuse_other_arithmetic(reader: SettingsReader) -> None:
    for key, neutral in _NEUTRAL_SETTINGS.items():
        if reader.settings.get(key, neutral) != neutral:
            error = reader.error(key, f"supported is {neutral}")
            raise UnsupportedModelError(str(error))


def _read_per_layer(reader: SettingsReader, key: str, num_layers: int, default: int | None = None) -> int:
    """A size that may be given once or for each layer, and must be the same for all."""
    value = reader.settings.get(key)
    if isinstance(value, list):
        if len(value) != num_layers:
            raise reader.error(key, f"must have one entry for each of the {num_layers} layers")
        if any(size != value[0] for size in value):
            raise UnsupportedModelError(str(reader.error(key, "supported is one size for all layers")))
        reader = SettingsReader({key: value[0]}, reader.origin)
    size = reader.integer(key, default)
    if size is None:
        raise CheckpointError(f"{reader.origin}: {key} is missing")
    return size


def _read_head_dim(reader: SettingsReader, hidden_size: int, num_heads: int) -> int:
    head_dim = reader.integer("attention.key_length", None)
    if head_dim is None:
        if hidden_size % num_heads:
            raise reader.error("attention.head_count", f"must divide embedding_length, {hidden_size}")
        head_dim = hidden_size // num_heads
    if head_dim % 2:
        raise CheckpointError(f"{reader.origin}: heads have {head_dim} dimensions, but must have an even number")
    for key in ("attention.value_length", "rope.dimension_count"):
        if reader.integer(key, head_dim) != head_dim:
            raise UnsupportedModelError(str(reader.error(key, f"supported is the head's whole length, {head_dim}")))
    return head_dim


def _read_rope(reader: SettingsReader, head_dim: int, divisors: tuple[float, ...] | None) -> RopeConfig:
    theta = reader.number("rope.freq_base", 10_000.0)
    scaling_name = reader.text("rope.scaling.type", "linear")
    if scaling_name not in ("none", "linear"):
        raise UnsupportedModelError(str(reader.error("rope.scaling.type", "supported are 'none' and 'linear'")))
    factor = 1.0
    for key in ("rope.scale_linear", "rope.scaling.factor"):
        if scaling_name == "linear" and reader.settings.get(key) != 0:  # 0 says: not scaled
            factor = reader.number(key, factor)
    if divisors is not None:
        if len(divisors) != head_dim // 2 or not all(0 < divisor < float("inf") for divisor in divisors):
            raise CheckpointError(
                f"{reader.origin}: rope_freqs.weight must hold {head_dim // 2} finite numbers above 0, one a frequency"
            )
        return RopeConfig(theta=theta, frequency_divisors=tuple(divisor * factor for divisor in divisors))
    if factor == 1.0:
        return RopeConfig(theta=theta)
    return RopeConfig(theta=theta, scaling=RopeScaling.LINEAR, factor=factor)


def _read_end_ids(whole: SettingsReader, vocab_size: int) -> tuple[int, ...]:
    """End of sequence, and for chat models end of turn and of message, in this order."""
    ids: list[int] = []
    for key in ("eos_token_id", "eot_token_id", "eom_token_id"):
        ids.extend(whole.token_ids(f"tokenizer.ggml.{key}", vocab_size=vocab_size))
    return tuple(dict.fromkeys(ids))
