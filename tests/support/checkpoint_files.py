"""Tiny random checkpoints on disk: folders through transformers, GGUF files through the gguf package.

Shape suffixes: H query heads, K key/value heads.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np
import torch
import transformers
from gguf import GGMLQuantizationType, quants

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
GGUF_PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
GGUF_GLOBALS = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


def tiny_settings(family: str, **changes: object) -> transformers.PretrainedConfig:
    """A config of 2 layers, 4 query and 2 key/value heads of 16 dimensions, 48 tokens."""
    settings: dict[str, object] = {
        "vocab_size": 48,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 256,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    return transformers.AutoConfig.for_model(family, **{**settings, **changes})


def tiny_model(family: str, *, seed: int = 7, **changes: object) -> transformers.PreTrainedModel:
    """A random model with every parameter, biases and norms too, away from its starting value."""
    model = transformers.AutoModelForCausalLM.from_config(tiny_settings(family, **changes))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return model.eval()


def stored_tensors(model: transformers.PreTrainedModel) -> dict[str, torch.Tensor]:
    """The tensors that a checkpoint of `model` holds: without the head where it is the embedding."""
    tensors = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        del tensors["lm_head.weight"]
    return tensors


def gguf_name(name: str) -> str:
    """What llama.cpp calls the tensor that Hugging Face calls `name`."""
    if name in GGUF_GLOBALS:
        return GGUF_GLOBALS[name]
    index, part = name.removeprefix("model.layers.").split(".", 1)
    part, kind = part.rsplit(".", 1)
    return f"blk.{index}.{GGUF_PARTS[part]}.{kind}"


def interleaved(rows: np.ndarray, num_heads: int) -> np.ndarray:
    """Row order of llama.cpp's converter: row j of a head's first half, then row j of its second half."""
    heads = np.split(rows, num_heads)
    pairs = [half[j : j + 1] for head in heads for j in range(len(head) // 2) for half in np.split(head, 2)]
    return np.concatenate(pairs)


def gguf_metadata(model: transformers.PreTrainedModel, architecture: str) -> dict[str, object]:
    """Metadata that describes `model`, by key."""
    config = model.config
    return {
        f"{architecture}.block_count": config.num_hidden_layers,
        f"{architecture}.context_length": config.max_position_embeddings,
        f"{architecture}.embedding_length": config.hidden_size,
        f"{architecture}.feed_forward_length": config.intermediate_size,
        f"{architecture}.attention.head_count": config.num_attention_heads,
        f"{architecture}.attention.head_count_kv": config.num_key_value_heads,
        f"{architecture}.attention.key_length": config.head_dim,
        f"{architecture}.attention.value_length": config.head_dim,
        f"{architecture}.rope.dimension_count": config.head_dim,
        f"{architecture}.attention.layer_norm_rms_epsilon": 1e-5,
        f"{architecture}.rope.freq_base": 10_000.0,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.bos_token_id": 1,
    }


def write_gguf(
    path: Path,
    model: transformers.PreTrainedModel,
    architecture: str,
    *,
    matrix_type: GGMLQuantizationType = GGMLQuantizationType.F32,
    metadata: Mapping[str, object] | None = None,
    extra_tensors: Mapping[str, np.ndarray] | None = None,
) -> Path:
    """Write `model` as llama.cpp's converter would, matrices in `matrix_type`.

    A metadata value of None leaves that key out.
    """
    writer = start_gguf(path, architecture, {**gguf_metadata(model, architecture), **(metadata or {})})
    heads = {"q_proj": model.config.num_attention_heads, "k_proj": model.config.num_key_value_heads}
    for name, tensor in stored_tensors(model).items():
        array = tensor.float().numpy()
        part = name.split(".")[-2]
        if architecture == "llama" and part in heads:
            array = interleaved(array, heads[part])
        if array.ndim == 1:
            writer.add_tensor(gguf_name(name), array)
        else:
            writer.add_tensor(gguf_name(name), quants.quantize(array, matrix_type), raw_dtype=matrix_type)
    for name, array in (extra_tensors or {}).items():
        writer.add_tensor(name, array)
    finish_gguf(writer)
    return path


def start_gguf(path: Path, architecture: str, metadata: Mapping[str, object]) -> gguf.GGUFWriter:
    """A writer that has its metadata and still takes tensors."""
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in metadata.items():
        _add_metadata(writer, key, value)
    return writer


def finish_gguf(writer: gguf.GGUFWriter) -> None:
    """Write the file of a writer that has all of its tensors."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_metadata(writer: gguf.GGUFWriter, key: str, value: object) -> None:
    """Add a key with the type that llama.cpp gives such a value."""
    match value:
        case None:
            return
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_string(key, value)
        case list():
            writer.add_array(key, value)
        case _:
            raise TypeError(f"{key}: no GGUF type for {type(value).__name__}")
