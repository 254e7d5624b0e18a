"""The scales that int8 weights are loaded with, measured once for each checkpoint and kept on disk.

Owns the cache entries and what the model reads while it is measured. Knows nothing of how scales come about.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from models.calibration_text import ANSWER, CODE, PROSE, QUESTION
from models.checkpoint import Checkpoint
from models.int8_linear import activation_grid
from models.smoothing import EXPONENT, calibrate_input_scales, scaled_matrices
from models.tokenizer import Tokenizer
from models.user_cache import user_cache_folder, write_atomically

logger = logging.getLogger(__name__)

CACHE_FORMAT = 1
"""Raised whenever the same checkpoint and text would give other scales than before."""


def calibration_sequences(tokenizer: Tokenizer) -> list[list[int]]:
    """Prose, code and a conversation as token ids, about a thousand together; the latter through the chat template."""
    sequences = [tokenizer.encode(PROSE), tokenizer.encode(CODE)]
    messages = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": ANSWER}]
    try:
        conversation = tokenizer.encode_chat(messages, add_generation_prompt=False)
    except ValueError:  # no template, or one that wants other messages
        conversation = tokenizer.encode(f"{QUESTION}\n\n{ANSWER}")
    return [*sequences, conversation]


def cached_input_scales(checkpoint: Checkpoint, tokenizer: Tokenizer) -> dict[str, torch.Tensor]:
    """Scales for `decoder_weights.load_weights` from the user's cache, or measured and put there.

    A damaged entry, or one that does not fit the checkpoint, is measured again; a cache that cannot be used costs
    the measurement each time, and a warning.

    Raises:
        ValueError: if this machine has no int8 kernels.
        CheckpointError: if a tensor is missing.
    """
    sequences = calibration_sequences(tokenizer)
    identity = _identity(checkpoint, sequences)
    path = user_cache_folder() / "smoothing" / f"{identity}.safetensors"
    scales = _read_entry(path, identity, checkpoint)
    if scales is None:
        logger.info("measuring the activations of %s for int8 weights; kept for the next time", checkpoint.name)
        scales = calibrate_input_scales(checkpoint, sequences)
        if scales:
            _write_entry(path, identity, scales)
    return scales


def _identity(checkpoint: Checkpoint, sequences: Sequence[Sequence[int]]) -> str:
    """A name for everything that the scales depend on."""
    parts = (CACHE_FORMAT, checkpoint.fingerprint, checkpoint.config, sequences, EXPONENT, activation_grid())
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def _digest(scales: Mapping[str, torch.Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(scales):
        digest.update(name.encode() + scales[name].numpy().tobytes())
    return digest.hexdigest()


def _read_entry(path: Path, identity: str, checkpoint: Checkpoint) -> dict[str, torch.Tensor] | None:
    """The scales, or None where there is no entry that can be used."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            scales = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
    except FileNotFoundError:
        return None
    except (OSError, SafetensorError) as error:
        logger.warning("the cached scales %s cannot be read (%s); measuring them again", path, error)
        return None
    whole = metadata.get("identity") == identity and metadata.get("sha256") == _digest(scales)
    if whole and _fit(scales, checkpoint):
        return scales
    logger.warning("the cached scales %s are damaged or another model's; measuring them again", path)
    return None


def _fit(scales: Mapping[str, torch.Tensor], checkpoint: Checkpoint) -> bool:
    config = checkpoint.config
    return scales.keys() == scaled_matrices(config).keys() and all(
        scale_E.shape == (config.hidden_size,)
        and scale_E.dtype == torch.float32
        and bool(scale_E.isfinite().all() and (scale_E > 0).all())
        for scale_E in scales.values()
    )


def _write_entry(path: Path, identity: str, scales: Mapping[str, torch.Tensor]) -> None:
    from safetensors.torch import save

    content = save(dict(scales), metadata={"identity": identity, "sha256": _digest(scales)})
    try:
        write_atomically(path, content)
    except OSError as error:
        logger.warning("the measured scales cannot be kept (%s); they will be measured again next time", error)
