"""Whole checkpoints in a few kilobytes: a random decoder with a byte-level tokenizer and a chat template.

Every text can be a prompt, and whatever the model writes is some text.
"""

from __future__ import annotations

from pathlib import Path

from models.gguf_tokenizer import GgufTokenizerMetadata, build_gguf_backend
from models.tokenizer import Tokenizer
from tests.support.checkpoint_files import tiny_model, write_gguf
from tests.support.tiny_tokenizers import CHAT_TEMPLATE, byte_level_metadata

EOS_TOKEN_ID = 0


def tiny_tokenizer() -> Tokenizer:
    """The tokenizer of all these checkpoints."""
    return Tokenizer.from_gguf(byte_level_metadata())


def write_tiny_folder(folder: Path, family: str = "llama", *, seed: int = 7, **changes: object) -> Path:
    """Save a folder as transformers does; `changes` are fields of its config."""
    model = tiny_model(family, seed=seed, **{**_text_settings(), **changes})
    model.save_pretrained(folder)
    save_tokenizer(folder)
    return folder


def save_tokenizer(folder: Path, metadata: dict[str, object] | None = None) -> None:
    """Save a tokenizer, by default that of all these checkpoints, as transformers does."""
    from transformers import PreTrainedTokenizerFast

    backend = build_gguf_backend(GgufTokenizerMetadata(metadata or byte_level_metadata()))
    PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|end|>", chat_template=CHAT_TEMPLATE).save_pretrained(
        folder
    )


def write_tiny_gguf(path: Path, architecture: str = "llama", *, seed: int = 7, **changes: object) -> Path:
    """Write one GGUF file, as llama.cpp's converter does."""
    model = tiny_model(architecture, seed=seed, **{**_text_settings(), **changes})
    return write_gguf(
        path, model, architecture, metadata={"tokenizer.ggml.bos_token_id": None, **byte_level_metadata()}
    )


def _text_settings() -> dict[str, object]:
    """As many ids as the tokenizer has, and the end that it names."""
    return {"vocab_size": tiny_tokenizer().vocab_size, "bos_token_id": None, "eos_token_id": EOS_TOKEN_ID}
