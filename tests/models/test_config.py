"""Configs: both spellings of transformers, every refusal, and nothing else on any input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from models.config import Family, ModelConfig, RopeConfig, RopeScaling
from models.errors import CheckpointError, UnsupportedModelError
from models.hf_config import parse_config, read_config
from tests.support.checkpoint_files import FAMILIES, tiny_settings

LLAMA_3_2_1B = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "bos_token_id": 128000,
    "eos_token_id": [128001, 128008, 128009],
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 16,
    "num_key_value_heads": 8,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 32.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
    "vocab_size": 128256,
}
"""In the spelling of transformers 4, as published."""

SMALL = {
    "model_type": "llama",
    "vocab_size": 48,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
}
QWEN = {**SMALL, "model_type": "qwen2", "num_key_value_heads": 2, "num_hidden_layers": 4}
MISTRAL = {**SMALL, "model_type": "mistral", "num_key_value_heads": 2}
YARN = {"rope_type": "yarn", "factor": 4.0}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


def test_a_published_config_is_read_whole() -> None:
    assert parse_config(LLAMA_3_2_1B) == ModelConfig(
        family=Family.LLAMA,
        vocab_size=128256,
        hidden_size=2048,
        intermediate_size=8192,
        num_layers=16,
        num_heads=32,
        num_kv_heads=8,
        head_dim=64,
        context_length=131072,
        rms_norm_eps=1e-5,
        rope=RopeConfig(
            theta=500000.0,
            scaling=RopeScaling.LLAMA3,
            factor=32.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_context=8192,
        ),
        tie_embeddings=True,
        eos_token_ids=(128001, 128008, 128009),
        bos_token_id=128000,
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_what_transformers_writes_is_read_back(family: str, tmp_path: Path) -> None:
    changes: dict[str, object] = {"head_dim": 24, "rms_norm_eps": 3e-5, "tie_word_embeddings": True}
    if family == "mistral":
        changes["sliding_window"] = 100
    settings = tiny_settings(family, **changes, rope_parameters={"rope_type": "default", "rope_theta": 12345.0})
    settings.architectures = [f"{family.capitalize()}ForCausalLM"]
    settings.save_pretrained(tmp_path)
    assert read_config(tmp_path) == ModelConfig(
        family=Family(family),
        vocab_size=48,
        hidden_size=64,
        intermediate_size=96,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=24,
        context_length=256,
        rms_norm_eps=3e-5,
        rope=RopeConfig(theta=12345.0),
        tie_embeddings=True,
        qkv_bias=family == "qwen2",
        qk_norm=family == "qwen3",
        sliding_window=100 if family == "mistral" else None,
        eos_token_ids=(2,),
        bos_token_id=1,
    )


@pytest.mark.parametrize(
    ("rope_type", "extra"),
    [("default", {}), ("linear", {"factor": 2.5}), ("llama3", {**LLAMA3, "original_max_position_embeddings": 64})],
)
def test_both_spellings_of_rope_agree(rope_type: str, extra: dict[str, object]) -> None:
    scaling = {**extra, "rope_type": rope_type}
    version_5 = parse_config({**SMALL, "rope_parameters": {**scaling, "rope_theta": 5000.0}})
    version_4 = parse_config({**SMALL, "rope_theta": 5000.0, "rope_scaling": scaling})
    older = parse_config({**SMALL, "rope_theta": 5000.0, "rope_scaling": {**extra, "type": rope_type}})
    assert version_5 == version_4
    if rope_type != "llama3":
        assert older == version_4
    assert version_5.rope.scaling.value == rope_type
    assert version_5.rope.theta == 5000.0
    assert version_5.rope.factor == extra.get("factor", 1.0)


def test_two_spellings_of_rope_that_differ_are_refused() -> None:
    plain, stretched = {"rope_type": "default", "rope_theta": 5000.0}, {"rope_type": "yarn", "factor": 2.0}
    with pytest.raises(UnsupportedModelError, match=r"rope_parameters and rope_scaling.*differ"):
        parse_config({**SMALL, "rope_parameters": plain, "rope_scaling": stretched})
    both = parse_config({**SMALL, "rope_parameters": plain, "rope_scaling": plain})
    assert both == parse_config({**SMALL, "rope_parameters": plain, "rope_scaling": None})


def test_original_context_falls_back_as_in_transformers() -> None:
    assert parse_config({**SMALL, "rope_scaling": LLAMA3}).rope.original_context == 256
    inside = {**LLAMA3, "original_max_position_embeddings": 64}
    assert parse_config({**SMALL, "rope_scaling": inside}).rope.original_context == 64
    both = {**SMALL, "rope_scaling": inside, "original_max_position_embeddings": 32}
    assert parse_config(both).rope.original_context == 32


@pytest.mark.parametrize(
    ("settings", "window"),
    [
        ({**SMALL, "sliding_window": 8}, None),  # llama has none
        ({**MISTRAL, "sliding_window": 8}, 8),
        ({**MISTRAL, "sliding_window": None}, None),
        ({**MISTRAL, "max_position_embeddings": 32768}, 4096),  # the class's default
        ({**MISTRAL, "sliding_window": 256}, None),  # no position could notice
        ({**MISTRAL, "sliding_window": 255}, 255),
        ({**QWEN, "sliding_window": 8, "max_window_layers": 0}, None),  # use_sliding_window is off
        ({**QWEN, "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 0}, 8),
        ({**QWEN, "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 4}, None),
        ({**QWEN, "use_sliding_window": True, "sliding_window": 8}, None),  # by default the first 28 see all
        ({**QWEN, "use_sliding_window": True, "sliding_window": 8, "layer_types": ["sliding_attention"] * 4}, 8),
        ({**QWEN, "use_sliding_window": True, "sliding_window": 8, "layer_types": ["full_attention"] * 4}, None),
        ({**QWEN, "model_type": "qwen3", "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 0}, 8),
    ],
)
def test_sliding_window(settings: dict[str, object], window: int | None) -> None:
    assert parse_config(settings).sliding_window == window


@pytest.mark.parametrize(
    ("config_ids", "generation_ids", "expected"),
    [
        (2, None, (2,)),
        ([2, 3], None, (2, 3)),
        (2, 5, (5,)),
        (2, [5, 7, 5], (5, 7)),
        (None, None, ()),
        (None, [5], (5,)),
        ([2, 48, 100_000], None, (2,)),  # ids that no logit row has
    ],
)
def test_end_ids_are_those_of_generation_if_it_has_any(
    config_ids: object, generation_ids: object, expected: tuple[int, ...]
) -> None:
    config = parse_config({**SMALL, "eos_token_id": config_ids}, {"eos_token_id": generation_ids})
    assert config.eos_token_ids == expected


def test_biases_follow_the_family() -> None:
    biased = {"attention_bias": True, "mlp_bias": True}
    llama, qwen3 = parse_config({**SMALL, **biased}), parse_config({**QWEN, **biased, "model_type": "qwen3"})
    mistral, qwen2 = parse_config({**MISTRAL, **biased}), parse_config({**QWEN, **biased})
    configs = [llama, qwen3, mistral, qwen2]
    assert [config.qkv_bias for config in configs] == [True, True, False, True]
    assert [config.output_bias for config in configs] == [True, True, False, False]
    assert [config.mlp_bias for config in configs] == [True, False, False, False]


def test_head_sizes_fall_back_as_in_transformers() -> None:
    assert parse_config(SMALL).head_dim == 16
    assert parse_config(SMALL).num_kv_heads == 4
    assert parse_config({**QWEN, "num_key_value_heads": None}).num_kv_heads == 4
    assert parse_config({**QWEN, "model_type": "qwen3"}).head_dim == 128


UNSUPPORTED = [
    ({"architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel"),
    ({"architectures": ["LlamaModel"]}, "LlamaModel"),
    ({"architectures": ["MysteryForCausalLM"], "auto_map": {"AutoModel": "code.Mystery"}}, "never run"),
    ({"model_type": "mamba"}, "mamba"),
    ({"architectures": ["LlamaForCausalLM"], "model_type": "mistral"}, "mistral"),
    ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
    ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
    ({"rope_scaling": YARN}, "rope_type is 'yarn'"),
    ({"rope_parameters": YARN}, "rope_type is 'yarn'"),
    ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_type is 'dynamic'"),
    ({"rope_parameters": {"full_attention": {"rope_theta": 1.0}}}, "differs by layer"),
    ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
    ({"layer_types": ["chunked_attention"] * 2}, "chunked_attention"),
    ({"layer_types": ["full_attention", "sliding_attention"]}, "some layers slide"),
    ({"layer_types": ["sliding_attention"] * 2}, "no sliding_window applies"),
    ({**MISTRAL, "sliding_window": 8, "layer_types": ["full_attention"] * 2}, "layer_types"),
    ({**QWEN, "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2}, "max_window_layers"),
]
MALFORMED = [
    ({"model_type": None}, "model_type"),
    ({"architectures": "LlamaForCausalLM"}, "architectures"),
    ({"architectures": [3]}, "architectures"),
    ({"vocab_size": None}, "vocab_size is missing"),
    ({"vocab_size": -1}, "vocab_size is -1"),
    ({"vocab_size": 0}, "vocab_size is 0"),
    ({"vocab_size": 48.0}, "vocab_size is 48.0"),
    ({"vocab_size": "48"}, "vocab_size is '48'"),
    ({"hidden_size": True}, "hidden_size is True"),
    ({"hidden_size": 10**30}, "hidden_size"),
    ({"num_hidden_layers": 10**6}, "num_hidden_layers is 1000000"),
    ({"num_attention_heads": 3, "num_key_value_heads": 3}, "must divide hidden_size"),
    ({"num_key_value_heads": 3}, "must divide num_attention_heads"),
    ({**QWEN, "num_key_value_heads": 2, "head_dim": 15}, "head_dim is 15"),
    ({"rms_norm_eps": 0}, "rms_norm_eps"),
    ({"rms_norm_eps": float("nan")}, "rms_norm_eps"),
    ({"rms_norm_eps": "small"}, "rms_norm_eps"),
    ({"rope_theta": 10**400}, "rope_theta"),
    ({"rope_theta": -1.0}, "rope_theta is -1.0"),
    ({"rope_scaling": "linear"}, "rope_scaling is 'linear'"),
    ({"rope_scaling": {"rope_type": "linear"}}, "factor is missing"),
    ({"rope_scaling": {"rope_type": "linear", "factor": 0}}, "factor is 0"),
    ({"rope_scaling": {**LLAMA3, "high_freq_factor": 1.0}}, "high_freq_factor"),
    ({"rope_scaling": {"rope_type": 3}}, "rope_type is 3"),
    ({"tie_word_embeddings": "yes"}, "tie_word_embeddings is 'yes'"),
    ({"eos_token_id": "</s>"}, "eos_token_id"),
    ({"eos_token_id": [2, -1]}, "eos_token_id"),
    ({"bos_token_id": 1.5}, "bos_token_id"),
    ({"layer_types": ["full_attention"]}, "layer_types"),
    ({**QWEN, "use_sliding_window": 1}, "use_sliding_window is 1"),
    ({**MISTRAL, "sliding_window": 0}, "sliding_window is 0"),
    ({**MISTRAL, "num_key_value_heads": None, "num_attention_heads": None}, "num_attention_heads is missing"),
]


@pytest.mark.parametrize(("changes", "message"), UNSUPPORTED)
def test_what_the_decoder_would_compute_differently_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        parse_config({**SMALL, **changes})


@pytest.mark.parametrize(("changes", "message"), MALFORMED)
def test_malformed_fields_are_named(changes: dict[str, object], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        parse_config({**SMALL, **changes})


def test_a_missing_number_of_kv_heads_is_not_guessed() -> None:
    with pytest.raises(CheckpointError, match="num_key_value_heads is missing"):
        parse_config({key: value for key, value in QWEN.items() if key != "num_key_value_heads"})


def test_code_beside_a_known_architecture_is_passed_over() -> None:
    assert parse_config({**SMALL, "auto_map": {"AutoModelForCausalLM": "modeling.Mine"}}) == parse_config(SMALL)


def test_the_file_must_be_a_json_object(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    nested, digits = b"[" * 200_000, b'{"a": ' + b"9" * 9999 + b"}"
    for text in (b"", b"[1]", b"{", b"\xff{}", nested, digits, b'{"vocab_size": 1, "vocab_size": 2}'):
        path.write_bytes(text)
        with pytest.raises(CheckpointError, match=r"config\.json"):
            read_config(tmp_path)
    path.write_text(json.dumps(SMALL)[:-1] + ', "vocab_size": 48}')
    with pytest.raises(CheckpointError, match="'vocab_size' appears twice"):
        read_config(tmp_path)
    path.write_bytes(b" " * (16 << 20) + b" {}")
    with pytest.raises(CheckpointError, match="larger than"):
        read_config(tmp_path)
    path.write_text(json.dumps(SMALL))
    (tmp_path / "generation_config.json").write_text("nonsense")
    with pytest.raises(CheckpointError, match=r"generation_config\.json"):
        read_config(tmp_path)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text("aé\0 ", max_size=5),
    lambda children: (
        st.lists(children, max_size=3)
        | st.dictionaries(st.sampled_from(["rope_type", "factor", "a"]), children, max_size=3)
    ),
    max_leaves=6,
)
FIELDS = sorted({*LLAMA_3_2_1B, "rope_parameters", "layer_types", "sliding_window", "use_sliding_window", "auto_map"})


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    family=st.sampled_from(FAMILIES),
    changes=st.dictionaries(st.sampled_from(FIELDS), json_values, max_size=4),
    rope=st.dictionaries(st.sampled_from(["rope_type", "type", "factor", "rope_theta"]), json_values, max_size=3),
    generation=st.dictionaries(st.just("eos_token_id"), json_values, max_size=1),
)
def test_any_json_is_read_or_refused(
    family: str, changes: dict[str, object], rope: dict[str, object], generation: dict[str, object]
) -> None:
    fields = {**QWEN, "model_type": family, "rope_parameters": rope, **changes}
    try:
        config = parse_config(fields, generation)
    except (CheckpointError, UnsupportedModelError):
        return
    assert config.num_heads % config.num_kv_heads == 0
    assert config.head_dim % 2 == 0
    assert all(0 <= token_id < config.vocab_size for token_id in config.eos_token_ids)
