"""`ModelConfig` from a Hugging Face `config.json`, in the spelling of transformers 4 or 5.

Owns the reading of that file's fields and the refusal of what the lean decoder would compute
differently. Knows nothing of tensors and never runs code that came with a checkpoint. Absent
fields take the value that transformers' config class for the same architecture gives them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from models.config import Family, ModelConfig, RopeConfig, RopeScaling
from models.errors import CheckpointError, UnsupportedModelError
from models.json_file import read_json_object
from models.settings_reader import MAX_CONTEXT, SettingsReader

MAX_LAYERS = 4096
ARCHITECTURES = {
    "LlamaForCausalLM": Family.LLAMA,
    "MistralForCausalLM": Family.MISTRAL,
    "Qwen2ForCausalLM": Family.QWEN2,
    "Qwen3ForCausalLM": Family.QWEN3,
}
_DEFAULT_SLIDING_WINDOW = 4096
_DEFAULT_MAX_WINDOW_LAYERS = 28
_QWEN3_HEAD_DIM = 128


def read_config(folder: Path) -> ModelConfig:
    """The config of a checkpoint folder: `config.json`, and `generation_config.json` if there is one.

    Raises:
        CheckpointError: if a file cannot be read or a field has a wrong type or value.
        UnsupportedModelError: if the decoder cannot compute this model exactly.
    """
    generation_path = folder / "generation_config.json"
    generation = read_json_object(generation_path) if generation_path.exists() else None
    return parse_config(read_json_object(folder / "config.json"), generation, origin=str(folder / "config.json"))


def parse_config(
    settings: Mapping[str, object],
    generation_settings: Mapping[str, object] | None = None,
    *,
    origin: str = "config.json",
) -> ModelConfig:
    """The config that `settings` describe.

    End-of-sequence ids are those of `generation_settings` if it names any, as in transformers'
    `generate`, else those of `settings`; ids beyond the vocabulary can never be drawn and are left out.

    Raises:
        CheckpointError: if a field is missing, has a wrong type, or an impossible value.
        UnsupportedModelError: if the decoder cannot compute this model exactly; names the field.
    """
    reader = SettingsReader(settings, origin)
    family = _read_family(reader)
    _refuse_other_arithmetic(reader)
    context_length = reader.integer("max_position_embeddings", maximum=MAX_CONTEXT)
    num_heads, num_kv_heads, head_dim = _read_heads(reader, family)
    attention_bias = family in (Family.LLAMA, Family.QWEN3) and reader.flag("attention_bias", False)
    config = ModelConfig(
        family=family,
        vocab_size=reader.integer("vocab_size"),
        hidden_size=reader.integer("hidden_size"),
        intermediate_size=reader.integer("intermediate_size"),
        num_layers=reader.integer("num_hidden_layers", maximum=MAX_LAYERS),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        context_length=context_length,
        rms_norm_eps=reader.number("rms_norm_eps", 1e-6),
        rope=_read_rope(reader, context_length),
        tie_embeddings=reader.flag("tie_word_embeddings", False),
        qkv_bias=attention_bias or family is Family.QWEN2,
        output_bias=attention_bias,
        mlp_bias=family is Family.LLAMA and reader.flag("mlp_bias", False),
        qk_norm=family is Family.QWEN3,
    )
    generation = SettingsReader(generation_settings or {}, "generation_config.json")
    eos_source = generation if generation.has("eos_token_id") else reader
    bos_ids = reader.token_ids("bos_token_id", vocab_size=config.vocab_size)
    return replace(
        config,
        sliding_window=_read_sliding_window(reader, config),
        eos_token_ids=eos_source.token_ids("eos_token_id", vocab_size=config.vocab_size),
        bos_token_id=bos_ids[0] if bos_ids else None,
    )


def _read_family(reader: SettingsReader) -> Family:
    model_type = reader.text("model_type", None)
    architectures = reader.texts("architectures")
    by_type = {family.value: family for family in ARCHITECTURES.values()}
    if architectures:
        family, found = ARCHITECTURES.get(architectures[0]), f"architectures is {architectures[0][:100]!r}"
    elif model_type is not None:
        family, found = by_type.get(model_type), f"model_type is {model_type[:100]!r}"
    else:
        raise CheckpointError(f"{reader.origin}: architectures and model_type are both missing")
    if family is None:
        code = " It needs code that comes with the checkpoint (auto_map), which is never run." * reader.has("auto_map")
        raise UnsupportedModelError(f"{reader.origin}: {found}; supported are {', '.join(ARCHITECTURES)}.{code}")
    if model_type is not None and model_type != family.value:
        raise UnsupportedModelError(
            f"{reader.origin}: {found}, but model_type is {model_type[:100]!r}; expected {family.value!r}"
        )
    return family


def _refuse_other_arithmetic(reader: SettingsReader) -> None:
    if reader.has("quantization_config"):
        raise UnsupportedModelError(
            f"{reader.origin}: quantization_config is set; give the unquantised checkpoint, or a GGUF file"
        )
    activation = reader.text("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise UnsupportedModelError(f"{reader.origin}: hidden_act is {activation[:100]!r}; supported is 'silu'")


def _read_heads(reader: SettingsReader, family: Family) -> tuple[int, int, int]:
    num_heads = reader.integer("num_attention_heads")
    num_kv_heads = reader.integer("num_key_value_heads", num_heads if _null_means_all_heads(reader, family) else None)
    if num_kv_heads is None:
        raise CheckpointError(f"{reader.origin}: num_key_value_heads is missing")
    if num_heads % num_kv_heads:
        raise reader.error("num_key_value_heads", f"must divide num_attention_heads, {num_heads}")
    head_dim = reader.integer("head_dim", _QWEN3_HEAD_DIM if family is Family.QWEN3 else None)
    if head_dim is None:
        hidden_size = reader.integer("hidden_size")
        if hidden_size % num_heads:
            raise reader.error(
                "num_attention_heads", f"must divide hidden_size, {hidden_size}, as head_dim is not given"
            )
        head_dim = hidden_size // num_heads
    if head_dim % 2:
        raise CheckpointError(f"{reader.origin}: head_dim is {head_dim}, but must be even to be rotated")
    return num_heads, num_kv_heads, head_dim


def _null_means_all_heads(reader: SettingsReader, family: Family) -> bool:
    # Where the field is not even there, the other families' classes fall back to a fixed number of heads.
    return family is Family.LLAMA or "num_key_value_heads" in reader.settings


def _read_rope(reader: SettingsReader, context_length: int) -> RopeConfig:
    """Both spellings: `rope_parameters` (transformers 5), or `rope_theta` beside `rope_scaling` (4)."""
    rope, older = reader.section("rope_parameters"), reader.section("rope_scaling")
    if rope.settings and older.settings and dict(rope.settings) != dict(older.settings):
        raise UnsupportedModelError(
            f"{reader.origin}: rope_parameters and rope_scaling are both given and differ, and which one the weights "
            "were made for cannot be told; remove the wrong one"
        )
    rope = rope if rope.settings else older
    if any(isinstance(value, Mapping) for value in rope.settings.values()):
        raise UnsupportedModelError(f"{rope.origin} differs by layer type; supported is one rotation for all layers")
    for section in (reader, rope):
        if section.number("partial_rotary_factor", 1.0) != 1.0:
            raise UnsupportedModelError(
                f"{section.origin}: partial_rotary_factor is not 1; heads are rotated as a whole"
            )
    theta = rope.number("rope_theta", reader.number("rope_theta", 10_000.0))
    scaling_name = rope.text("rope_type", rope.text("type", RopeScaling.NONE.value))
    if scaling_name == RopeScaling.NONE.value:
        return RopeConfig(theta=theta)
    if scaling_name == RopeScaling.LINEAR.value:
        return RopeConfig(theta=theta, scaling=RopeScaling.LINEAR, factor=rope.number("factor"))
    if scaling_name == RopeScaling.LLAMA3.value:
        return _read_llama3_rope(reader, rope, theta, context_length)
    supported = ", ".join(repr(scaling.value) for scaling in RopeScaling)
    raise UnsupportedModelError(f"{rope.origin}: rope_type is {scaling_name[:100]!r}; supported are {supported}")


def _read_llama3_rope(reader: SettingsReader, rope: SettingsReader, theta: float, context_length: int) -> RopeConfig:
    low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
    if high <= low:
        raise rope.error("high_freq_factor", f"must be above low_freq_factor, {low:g}")
    key = "original_max_position_embeddings"
    original_context = reader.integer(key, None, maximum=MAX_CONTEXT)
    if original_context is None:
        original_context = rope.integer(key, context_length, maximum=MAX_CONTEXT)
    return RopeConfig(
        theta=theta,
        scaling=RopeScaling.LLAMA3,
        factor=rope.number("factor"),
        low_freq_factor=low,
        high_freq_factor=high,
        original_context=original_context,
    )


def _read_sliding_window(reader: SettingsReader, config: ModelConfig) -> int | None:
    """The window of all layers; None where no position could notice it."""
    kinds = _explicit_layer_kinds(reader, config.num_layers)
    window: int | None = None
    if config.family is Family.MISTRAL:
        default = None if "sliding_window" in reader.settings else _DEFAULT_SLIDING_WINDOW
        window = reader.integer("sliding_window", default, maximum=MAX_CONTEXT)
        kinds = kinds or {"full_attention" if window is None else "sliding_attention"}
        if window is not None and kinds == {"full_attention"}:
            raise UnsupportedModelError(
                f"{reader.origin}: sliding_window is {window}, but layer_types says full_attention"
            )
    elif config.family in (Family.QWEN2, Family.QWEN3):
        if reader.flag("use_sliding_window", False):
            default = None if "sliding_window" in reader.settings else _DEFAULT_SLIDING_WINDOW
            window = reader.integer("sliding_window", default, maximum=MAX_CONTEXT)
        kinds = kinds or _qwen_layer_kinds(reader, config.num_layers, window)
    if len(kinds) > 1:
        raise UnsupportedModelError(
            f"{reader.origin}: some layers slide and some do not (layer_types, max_window_layers); "
            "supported is one kind of attention for all layers"
        )
    if "sliding_attention" not in kinds:
        return None
    if window is None:
        raise UnsupportedModelError(
            f"{reader.origin}: layer_types says sliding_attention, but no sliding_window applies"
        )
    return window if window < config.context_length else None


def _explicit_layer_kinds(reader: SettingsReader, num_layers: int) -> set[str]:
    layer_types = reader.texts("layer_types")
    if layer_types and len(layer_types) != num_layers:
        raise reader.error("layer_types", f"must have one entry for each of the {num_layers} layers")
    for kind in layer_types:
        if kind not in ("full_attention", "sliding_attention"):
            raise UnsupportedModelError(f"{reader.origin}: layer_types has {kind[:100]!r}, which is not supported")
    return set(layer_types)


def _qwen_layer_kinds(reader: SettingsReader, num_layers: int, window: int | None) -> set[str]:
    if window is None:
        return {"full_attention"}
    first_sliding = reader.integer("max_window_layers", _DEFAULT_MAX_WINDOW_LAYERS, minimum=0)
    return {"full_attention" if index < first_sliding else "sliding_attention" for index in range(num_layers)}
