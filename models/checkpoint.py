"""A checkpoint, whatever file format it is in.

Owns `Checkpoint`, the interface of all formats, and `open_checkpoint`, which finds out the
format. Knows nothing of decoders. Only safetensors and GGUF files are ever opened: pickled weights can
run code when they are loaded, and code beside the weights is never run.
"""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import torch

from models.config import ModelConfig
from models.errors import CheckpointError

if TYPE_CHECKING:
    from models.tokenizer import Tokenizer

PICKLE_SUFFIXES = frozenset({".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle"})
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)


class Checkpoint(ABC):
    """Weights, config and tokenizer of one model; also a context manager that closes it.

    Tensors go by their Hugging Face names (`model.layers.0.self_attn.q_proj.weight`), and all that
    the config calls for are known to be there, with the right shapes, once a checkpoint is open.
    """

    name: str
    """For messages and metrics."""
    config: ModelConfig
    fingerprint: str
    """Tells these weights from others; the same wherever the files lie."""
    weight_bytes: int
    """Size of the tensors as stored."""

    @abstractmethod
    def has(self, name: str) -> bool:
        """Whether `tensor(name)` would succeed."""

    @abstractmethod
    def tensor(self, name: str) -> torch.Tensor:
        """Read one tensor, on the CPU; matrices are `(out, in)`.

        Returns:
            The stored floating-point type from safetensors, float32 from GGUF. Not to be written to.

        Raises:
            CheckpointError: if there is none of this name, or the checkpoint was closed.
        """

    @abstractmethod
    def tokenizer(self) -> Tokenizer:
        """Build the tokenizer that belongs to the weights.

        Raises:
            CheckpointError: if it is missing or malformed.
            UnsupportedModelError: if it is of an unknown kind; names it.
        """

    @abstractmethod
    def close(self) -> None:
        """Let go of the files; tensors already read stay valid. Idempotent."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def open_checkpoint(source: str | os.PathLike[str]) -> Checkpoint:
    """Open a checkpoint and check all of it but the numbers.

    Args:
        source: a folder with `config.json` and `*.safetensors`, a `.gguf` file, or the id of such a
            folder on the Hugging Face hub, "organisation/name", which is fetched into its cache.

    Raises:
        TypeError: if `source` is neither text nor a path.
        CheckpointError: if it is missing, truncated, malformed or pickled.
        UnsupportedModelError: if the model cannot be run exactly; names what stands in the way.
    """
    if not isinstance(source, str | os.PathLike):
        raise TypeError(f"source must be a str or a path, not {type(source).__name__}")
    path = Path(source)
    try:
        is_folder, is_file = path.is_dir(), path.is_file()
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{str(source)[:200]!r} is not a usable path: {error}") from error
    if is_folder:
        return _open_folder(path, name=path.resolve().name)
    if is_file:
        return _open_file(path)
    if isinstance(source, str) and _HUB_ID.fullmatch(source) and path.suffix.lower() != ".gguf":
        from models.hub import fetch_snapshot

        return _open_folder(fetch_snapshot(source), name=source)
    raise CheckpointError(
        f"{str(source)[:200]!r} does not exist; give a folder with config.json and *.safetensors, a .gguf file, "
        "or a hub id such as 'HuggingFaceTB/SmolLM2-135M-Instruct'"
    )


def _open_folder(folder: Path, *, name: str) -> Checkpoint:
    from models.safetensors_checkpoint import SafetensorsCheckpoint

    return SafetensorsCheckpoint(folder, name=name)


def _open_file(path: Path) -> Checkpoint:
    suffix = path.suffix.lower()
    if suffix == ".gguf":
        from models.gguf_checkpoint import GgufCheckpoint

        return GgufCheckpoint(path)
    if suffix in PICKLE_SUFFIXES:
        raise CheckpointError(pickle_message(path))
    if suffix == ".safetensors":
        raise CheckpointError(f"{path} is one file of a checkpoint; give its folder, {path.parent}, with config.json")
    raise CheckpointError(f"{path} is not a .gguf file; give one, or a folder with config.json and *.safetensors")


def pickle_message(path: Path) -> str:
    """Why `path` stays closed, and what to do instead."""
    return (
        f"{path} holds pickled weights, which can run any code when they are loaded, so it is never opened; "
        "if you trust it, convert it once with transformers: "
        "AutoModelForCausalLM.from_pretrained(FOLDER).save_pretrained(NEW_FOLDER), which writes safetensors"
    )
