"""From a source to a model that can run, whatever its format.

Owns the choice between the lean decoder and the transformers adapter. Knows nothing of lanes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from models.checkpoint import open_checkpoint
from models.decoder import Decoder
from models.linear import WeightKind
from models.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A model with its tokenizer."""

    model: Decoder
    tokenizer: Tokenizer
    weights: WeightKind


def load_model(source: str | Path, *, weights: WeightKind = WeightKind.FLOAT16, max_block: int = 256) -> LoadedModel:
    """Open a checkpoint, pack its weights and build its tokenizer.

    Args:
        source: a folder, a hub id or a GGUF file.
        weights: how matrices are kept.
        max_block: most tokens of one forward call.

    Raises:
        CheckpointError, UnsupportedModelError: as `open_checkpoint`.
    """
    with open_checkpoint(source) as checkpoint:
        model = Decoder.from_checkpoint(checkpoint, weights=weights, max_block=max_block)
        return LoadedModel(model=model, tokenizer=checkpoint.tokenizer(), weights=weights)
