"""A GGUF file as a checkpoint.

Owns the way from GGUF's tensor names and row order to Hugging Face's. Knows nothing of bytes: the
header is `gguf_file`'s, the numbers are `ggml_type`'s.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from models.checkpoint import Checkpoint
from models.config import Family
from models.decoder_tensors import EMBEDDING, HEAD, check_tensors
from models.errors import CheckpointError
from models.fingerprint import WeightFile, fingerprint_files
from models.ggml_type import dequantize
from models.gguf_config import parse_gguf_config
from models.gguf_file import GgufFile, GgufTensor

if TYPE_CHECKING:
    from models.tokenizer import Tokenizer

Scalar = TypeVar("Scalar", bound=np.generic)

MAX_ROPE_DIVISORS = 1 << 12
"""Most numbers of `rope_freqs.weight` that are looked at; a head has one for each two of its dimensions."""

_ROPE_DIVISORS = "rope_freqs.weight"
_GLOBAL_NAMES = {
    "token_embd.weight": EMBEDDING,
    "output_norm.weight": "model.norm.weight",
    "output.weight": HEAD,
}
_LAYER_PARTS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER_TENSOR = re.compile(r"blk\.(0|[1-9][0-9]*)\.([a-z_]+)\.(weight|bias)", re.ASCII)


class GgufCheckpoint(Checkpoint):
    """One `.gguf` file; tensors are dequantised to float32 when they are asked for."""

    def __init__(self, path: Path) -> None:
        """Open and check a file.

        Raises:
            CheckpointError: if it is truncated or malformed, or tensors are missing.
            UnsupportedModelError: if the model cannot be run exactly.
        """
        self._file = GgufFile(path)
        self.metadata = self._file.metadata
        """All of the file's metadata, by key."""
        tensors = dict(self._file.tensors)
        embedding, divisors = tensors.get("token_embd.weight"), tensors.pop(_ROPE_DIVISORS, None)
        if embedding is None:
            raise CheckpointError(f"{path}: the tensor token_embd.weight is missing")
        self.config = parse_gguf_config(
            self.metadata,
            tensor_names=tensors.keys(),
            vocab_size=embedding.shape[0],
            rope_divisors=None if divisors is None else self._read_divisors(divisors),
            origin=str(path),
        )
        self._tensors = {_hugging_face_name(name): tensor for name, tensor in tensors.items()}
        check_tensors(self.config, {name: tensor.shape for name, tensor in self._tensors.items()}, str(path))
        # The file is named after the model; its `general.name` is often that of a training run.
        self.name = path.stem
        self.weight_bytes = sum(tensor.num_bytes for tensor in self._file.tensors.values())
        self.fingerprint = fingerprint_files([WeightFile(path, self._file.data_start)])

    def has(self, name: str) -> bool:
        return self._stored_name(name) in self._tensors

    def tensor(self, name: str) -> torch.Tensor:
        tensor = self._tensors.get(self._stored_name(name))
        if tensor is None:
            raise CheckpointError(f"{self.name} has no tensor {name}")
        return self._read(tensor, heads=self._interleaved_heads(name))

    def tokenizer(self) -> Tokenizer:
        from models.tokenizer import Tokenizer

        return Tokenizer.from_gguf(self.metadata, cache_key=self.fingerprint)

    def close(self) -> None:
        self._file.close()

    def _stored_name(self, name: str) -> str:
        return EMBEDDING if name == HEAD and self.config.tie_embeddings else name

    def _interleaved_heads(self, name: str) -> int | None:
        """Heads whose rows llama.cpp's converter interleaved: queries' and keys', in `llama` files only."""
        if self.config.family is Family.LLAMA and ".self_attn.q_proj." in name:
            return self.config.num_heads
        if self.config.family is Family.LLAMA and ".self_attn.k_proj." in name:
            return self.config.num_kv_heads
        return None

    def _read_divisors(self, tensor: GgufTensor) -> tuple[float, ...]:
        if math.prod(tensor.shape) > MAX_ROPE_DIVISORS:
            raise CheckpointError(f"{self._file.path}: the tensor {tensor.name} has the shape {tensor.shape}")
        return tuple(self._read(tensor).flatten().tolist())

    def _read(self, tensor: GgufTensor, *, heads: int | None = None) -> torch.Tensor:
        rows = self._file.rows(tensor)
        if heads is not None and len(tensor.shape) > 1:
            rows = _uninterleave(rows, heads)
        values = dequantize(rows.reshape(-1), tensor.ggml_type)
        if heads is not None and len(tensor.shape) == 1:
            values = torch.from_numpy(_uninterleave(values.numpy(), heads))
        return values.reshape(tensor.shape)


def _uninterleave(rows: npt.NDArray[Scalar], heads: int) -> npt.NDArray[Scalar]:
    """Undo the converter's row order.

    Rotary pairs are rows i and i + D/2 of a head in Hugging Face's order and rows 2i and 2i + 1
    in llama.cpp's, D being the head's length.
    """
    shape = rows.shape
    return rows.reshape(heads, shape[0] // heads // 2, 2, -1).swapaxes(1, 2).reshape(shape)


def _hugging_face_name(name: str) -> str:
    """The Hugging Face name, or the same name if it is none of a decoder's."""
    if name in _GLOBAL_NAMES:
        return _GLOBAL_NAMES[name]
    match = _LAYER_TENSOR.fullmatch(name)
    if match is None or match[2] not in _LAYER_PARTS:
        return name
    return f"model.layers.{match[1]}.{_LAYER_PARTS[match[2]]}.{match[3]}"
