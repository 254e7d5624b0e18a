"""GGUF checkpoints: every element type, llama.cpp's row order, and configs from metadata."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, quants

from models.checkpoint import Checkpoint, open_checkpoint
from models.config import Family, RopeConfig, RopeScaling
from models.errors import CheckpointError, UnsupportedModelError
from models.ggml_type import GgmlType, dequantize
from models.gguf_file import GgufFile
from tests.support.checkpoint_files import (
    finish_gguf,
    gguf_metadata,
    gguf_name,
    interleaved,
    start_gguf,
    stored_tensors,
    tiny_model,
    write_gguf,
)

QUANTISABLE = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"]
K_QUANTS = ["Q4_K", "Q5_K", "Q6_K"]
ARCHITECTURES = ["llama", "qwen2", "qwen3"]


def test_the_types_are_those_of_the_gguf_package() -> None:
    assert sorted(member.name for member in GgmlType) == sorted(QUANTISABLE + K_QUANTS)
    for member in GgmlType:
        gguf_type = GGMLQuantizationType[member.name]
        assert member.code == gguf_type
        assert (member.block_elements, member.block_bytes) == gguf.GGML_QUANT_SIZES[gguf_type]


@pytest.mark.parametrize("name", QUANTISABLE + K_QUANTS)
@pytest.mark.parametrize("num_blocks", [1, 3, 513, 4099])
def test_dequantising_equals_the_gguf_packages(name: str, num_blocks: int) -> None:
    ggml_type = GgmlType[name]
    blocks = np.random.default_rng(num_blocks).integers(0, 256, num_blocks * ggml_type.block_bytes, dtype=np.uint8)
    with np.errstate(all="ignore"):
        expected = quants.dequantize(blocks.reshape(num_blocks, -1), GGMLQuantizationType[name])
    values = dequantize(blocks, ggml_type)
    assert values.dtype == torch.float32
    np.testing.assert_array_equal(values.numpy(), expected.reshape(-1))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("tied", [False, True])
def test_tensors_come_back_in_hugging_faces_names_and_order(architecture: str, tied: bool, tmp_path: Path) -> None:
    biases = {"attention_bias": True, "mlp_bias": True} if architecture == "llama" else {}
    model = tiny_model(architecture, tie_word_embeddings=tied, head_dim=24, **biases)
    path = write_gguf(tmp_path / "tiny.gguf", model, architecture)
    with open_checkpoint(path) as checkpoint:
        assert checkpoint.weight_bytes == sum(tensor.nbytes for tensor in stored_tensors(model).values())
        config = checkpoint.config
        assert config.family is Family(architecture)
        assert (config.vocab_size, config.hidden_size, config.intermediate_size) == (48, 64, 96)
        assert (config.num_layers, config.num_heads, config.num_kv_heads, config.head_dim) == (2, 4, 2, 24)
        assert (config.context_length, config.rms_norm_eps) == (256, pytest.approx(1e-5))
        assert (config.tie_embeddings, config.qk_norm) == (tied, architecture == "qwen3")
        assert config.qkv_bias is (architecture != "qwen3")
        assert config.output_bias is config.mlp_bias is (architecture == "llama")
        assert (config.eos_token_ids, config.bos_token_id) == ((2,), 1)
        for name, tensor in model.state_dict().items():
            assert checkpoint.has(name)
            assert torch.equal(checkpoint.tensor(name), tensor), name
            assert checkpoint.tensor(name).dtype == torch.float32


@pytest.mark.parametrize("name", QUANTISABLE)
def test_quantised_matrices_are_reordered_as_well(name: str, tmp_path: Path) -> None:
    model = tiny_model("llama")
    gguf_type = GGMLQuantizationType[name]
    path = write_gguf(tmp_path / "tiny.gguf", model, "llama", matrix_type=gguf_type)
    with open_checkpoint(path) as checkpoint:
        for tensor_name, tensor in stored_tensors(model).items():
            expected = tensor.numpy()
            if expected.ndim == 2:
                expected = quants.dequantize(quants.quantize(expected, gguf_type), gguf_type)
            np.testing.assert_array_equal(checkpoint.tensor(tensor_name).numpy(), expected)


@pytest.mark.parametrize("name", K_QUANTS)
def test_matrices_of_random_k_quant_blocks(name: str, tmp_path: Path) -> None:
    # The package cannot write these types, so the blocks are random; a row needs 256 columns.
    model = tiny_model("llama", hidden_size=256, intermediate_size=256, head_dim=64)
    gguf_type = GGMLQuantizationType[name]
    chance = np.random.default_rng(5)
    path, expected = tmp_path / "tiny.gguf", {}
    writer = start_gguf(path, "llama", gguf_metadata(model, "llama"))
    for tensor_name, tensor in stored_tensors(model).items():
        shape = gguf.quant_shape_to_byte_shape(tensor.shape, gguf_type)
        stored = chance.integers(0, 256, shape, dtype=np.uint8)
        if tensor.ndim == 1:
            writer.add_tensor(gguf_name(tensor_name), tensor.numpy())
            continue
        writer.add_tensor(gguf_name(tensor_name), stored, raw_dtype=gguf_type)
        with np.errstate(all="ignore"):
            expected[tensor_name] = quants.dequantize(stored, gguf_type)
    finish_gguf(writer)
    with open_checkpoint(path) as checkpoint:
        for tensor_name, values in expected.items():
            read = checkpoint.tensor(tensor_name).numpy()
            heads = {"q_proj": 4, "k_proj": 2}.get(tensor_name.split(".")[-2])
            np.testing.assert_array_equal(interleaved(read, heads) if heads else read, values)


def open_tiny(folder: Path, architecture: str, metadata: dict[str, object], **extra_tensors: np.ndarray) -> Checkpoint:
    """A tiny model's file with some metadata changed and some tensors added, opened."""
    tensors = {f"{name}.weight": array for name, array in extra_tensors.items()}
    path = folder / "tiny.gguf"
    write_gguf(path, tiny_model(architecture), architecture, metadata=metadata, extra_tensors=tensors)
    return open_checkpoint(path)


LINEAR = RopeConfig(scaling=RopeScaling.LINEAR, factor=4.0)


@pytest.mark.parametrize(
    ("metadata", "rope"),
    [
        ({}, RopeConfig()),
        ({"llama.rope.freq_base": None}, RopeConfig()),
        ({"llama.rope.freq_base": 500_000.0}, RopeConfig(theta=500_000.0)),
        ({"llama.rope.scaling.type": "none", "llama.rope.scaling.factor": 4.0}, RopeConfig()),
        ({"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}, LINEAR),
        ({"llama.rope.scaling.factor": 4.0}, LINEAR),
        ({"llama.rope.scaling.factor": 0.0}, RopeConfig()),
        ({"llama.rope.scale_linear": 4.0}, LINEAR),
    ],
)
def test_rope_scaling(metadata: dict[str, object], rope: RopeConfig, tmp_path: Path) -> None:
    assert open_tiny(tmp_path, "llama", metadata).config.rope == rope


def test_stored_rope_divisors_are_kept(tmp_path: Path) -> None:
    divisors = np.array([1, 1, 1, 1.5, 2, 4, 8, 8], dtype=np.float32)
    config = open_tiny(tmp_path, "llama", {}, rope_freqs=divisors).config
    assert config.rope == RopeConfig(frequency_divisors=tuple(divisors.tolist()))
    both = open_tiny(tmp_path, "llama", {"llama.rope.scaling.factor": 2.0}, rope_freqs=divisors).config
    assert both.rope.frequency_divisors == tuple((divisors * 2).tolist())


@pytest.mark.parametrize("divisors", [[1.0] * 7, [1.0] * 16, [1.0] * 7 + [0.0], [1.0] * 7 + [np.nan]])
def test_senseless_rope_divisors_are_refused(divisors: list[float], tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"rope_freqs\.weight"):
        open_tiny(tmp_path, "llama", {}, rope_freqs=np.array(divisors, dtype=np.float32))


def test_an_absurd_number_of_rope_divisors_is_refused_unread(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"rope_freqs\.weight has the shape \(5000,\)"):
        open_tiny(tmp_path, "llama", {}, rope_freqs=np.ones(5000, dtype=np.float32))


@pytest.mark.parametrize(("window", "expected"), [(None, None), (0, None), (8, 8), (256, None)])
def test_sliding_window(window: int | None, expected: int | None, tmp_path: Path) -> None:
    assert open_tiny(tmp_path, "llama", {"llama.attention.sliding_window": window}).config.sliding_window == expected


def test_sizes_given_for_each_layer_must_agree(tmp_path: Path) -> None:
    assert open_tiny(tmp_path, "llama", {"llama.attention.head_count_kv": [2, 2]}).config.num_kv_heads == 2
    with pytest.raises(UnsupportedModelError, match="head_count_kv"):
        open_tiny(tmp_path, "llama", {"llama.attention.head_count_kv": [2, 4]})
    with pytest.raises(CheckpointError, match="one entry for each of the 2 layers"):
        open_tiny(tmp_path, "llama", {"llama.attention.head_count_kv": [2]})


def test_absent_sizes_take_llama_cpps_defaults(tmp_path: Path) -> None:
    absent = {
        "llama.attention.key_length": None,
        "llama.attention.value_length": None,
        "llama.rope.dimension_count": None,
    }
    assert open_tiny(tmp_path, "llama", absent).config.head_dim == 16
    model = tiny_model("llama", num_key_value_heads=4)
    path = write_gguf(tmp_path / "all.gguf", model, "llama", metadata={"llama.attention.head_count_kv": None})
    assert open_checkpoint(path).config.num_kv_heads == 4


def test_chat_models_end_at_every_kind_of_end(tmp_path: Path) -> None:
    ids = {"tokenizer.ggml.eos_token_id": 7, "tokenizer.ggml.eot_token_id": 3, "tokenizer.ggml.eom_token_id": 7}
    assert open_tiny(tmp_path, "llama", ids).config.eos_token_ids == (7, 3)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"llama.expert_count": 8}, "expert_count is 8"),
        ({"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 4.0}, r"rope\.scaling\.type is 'yarn'"),
        ({"llama.rope.dimension_count": 8}, r"rope\.dimension_count is 8"),
        ({"llama.attention.value_length": 32}, "value_length is 32"),
        ({"llama.logit_scale": 2.0}, "logit_scale"),
        ({"llama.attention.scale": 0.5}, r"attention\.scale"),
        ({"llama.attention.causal": False}, r"attention\.causal"),
        ({"split.count": 3}, "--merge"),
    ],
)
def test_what_the_decoder_would_compute_differently_is_refused(
    metadata: dict[str, object], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        open_tiny(tmp_path, "llama", metadata)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"llama.block_count": None}, "block_count is missing"),
        ({"llama.block_count": 3}, r"model\.layers\.2.* is missing"),
        ({"llama.block_count": 1 << 30}, "block_count"),
        ({"llama.block_count": "two"}, "block_count is 'two'"),
        ({"llama.embedding_length": 32}, r"embed_tokens\.weight has shape \(48, 64\).*\(48, 32\)"),
        ({"llama.vocab_size": 47}, "embed_tokens"),
        ({"llama.attention.head_count_kv": 3}, "must divide"),
        ({"llama.attention.head_count": 0}, "head_count is 0"),
        ({"llama.attention.key_length": 15}, "even"),
        ({"llama.attention.layer_norm_rms_epsilon": None}, "epsilon is missing"),
        ({"llama.rope.freq_base": -1.0}, "freq_base"),
        ({"llama.context_length": True}, "context_length is True"),
        ({"tokenizer.ggml.eos_token_id": "</s>"}, "eos_token_id"),
        ({"general.alignment": 48}, "power of two"),
        ({"general.alignment": "32"}, "power of two"),
    ],
)
def test_malformed_metadata_is_named(metadata: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=message):
        open_tiny(tmp_path, "llama", metadata)


def test_other_architectures_are_named(tmp_path: Path) -> None:
    path = tmp_path / "other.gguf"
    write_gguf(path, tiny_model("llama"), "gemma3")
    with pytest.raises(UnsupportedModelError, match="'gemma3'"):
        open_checkpoint(path)


def test_tensors_the_decoder_would_not_use_are_named(tmp_path: Path) -> None:
    extra = np.ones(64, dtype=np.float32)
    with pytest.raises(UnsupportedModelError, match="mystery"):
        open_tiny(tmp_path, "llama", {}, mystery=extra)
    with pytest.raises(UnsupportedModelError, match=r"blk\.0\.attn_mystery"):
        open_tiny(tmp_path, "llama", {}, **{"blk.0.attn_mystery": extra})
    with pytest.raises(UnsupportedModelError, match=r"blk\.00\.attn_norm"):
        open_tiny(tmp_path, "llama", {}, **{"blk.00.attn_norm": extra})


def test_other_element_types_are_named(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    writer = start_gguf(path, "llama", {})
    writer.add_tensor("blk.0.ffn_up.weight", np.zeros((4, 84), dtype=np.uint8), raw_dtype=GGMLQuantizationType.Q2_K)
    finish_gguf(writer)
    with pytest.raises(UnsupportedModelError, match=r"blk\.0\.ffn_up\.weight.*Q2_K; supported are F32"):
        open_checkpoint(path)


def test_unknown_names_and_closed_files_are_errors(tmp_path: Path) -> None:
    checkpoint = open_tiny(tmp_path, "llama", {})
    assert not checkpoint.has("blk.0.ffn_up.weight")
    with pytest.raises(CheckpointError, match=r"blk\.0"):
        checkpoint.tensor("blk.0.ffn_up.weight")
    kept = checkpoint.tensor("model.norm.weight")
    before = kept.tolist()
    checkpoint.close()
    checkpoint.close()
    assert kept.tolist() == before
    with pytest.raises(CheckpointError, match="closed"):
        checkpoint.tensor("model.norm.weight")


def test_names_and_fingerprints(tmp_path: Path) -> None:
    first = open_tiny(tmp_path, "llama", {"general.name": "Tiny"})
    again = open_tiny(tmp_path, "llama", {"general.name": "Tiny"})
    other = open_tiny(tmp_path, "llama", {"llama.rope.freq_base": 20_000.0})
    assert first.name == other.name == "tiny"
    assert first.fingerprint == again.fingerprint != other.fingerprint


@pytest.mark.weights
def test_the_demo_file_is_read_as_the_gguf_package_reads_it(demo_gguf: Path) -> None:
    file = GgufFile(demo_gguf)
    reader = gguf.GGUFReader(demo_gguf)
    fields = {key: field.contents() for key, field in reader.fields.items() if not key.startswith("GGUF.")}
    assert file.metadata == fields
    assert list(file.tensors) == [tensor.name for tensor in reader.tensors]
    for tensor in reader.tensors:
        entry = file.tensors[tensor.name]
        assert entry.shape == tuple(reversed(tensor.shape.tolist()))
        assert (entry.offset, entry.num_bytes) == (tensor.data_offset, tensor.n_bytes)
        assert entry.ggml_type.code == tensor.tensor_type


@pytest.mark.weights
@pytest.mark.slow
def test_the_demo_file_holds_what_transformers_finds_in_it(demo_gguf: Path) -> None:
    import transformers
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    with open_checkpoint(demo_gguf) as checkpoint:
        config = checkpoint.config
        with torch.device("meta"):
            model = transformers.LlamaForCausalLM(
                transformers.LlamaConfig(
                    hidden_size=config.hidden_size,
                    num_hidden_layers=config.num_layers,
                    num_attention_heads=config.num_heads,
                    num_key_value_heads=config.num_kv_heads,
                    intermediate_size=config.intermediate_size,
                    vocab_size=config.vocab_size,
                    tie_word_embeddings=config.tie_embeddings,
                )
            )
        found = load_gguf_checkpoint(str(demo_gguf), return_tensors=True, model_to_load=model)
        assert found["config"]["rope_theta"] == config.rope.theta == 100_000.0
        assert found["config"]["rms_norm_eps"] == config.rms_norm_eps
        assert found["config"]["head_dim"] == config.head_dim == 64
        assert found["config"]["max_position_embeddings"] == config.context_length == 8192
        assert found["config"]["eos_token_id"] in config.eos_token_ids
        assert len(found["tensors"]) == 272
        for name, tensor in found["tensors"].items():
            assert torch.equal(checkpoint.tensor(name), tensor), name


@pytest.mark.weights
def test_the_demo_file_brings_its_tokenizer(demo_gguf: Path) -> None:
    with open_checkpoint(demo_gguf) as checkpoint:
        tokenizer = checkpoint.tokenizer()
        assert tokenizer.decode(tokenizer.encode("A rider drafts.")) == "A rider drafts."
        assert set(checkpoint.config.eos_token_ids) <= tokenizer.eos_token_ids
