"""From a source to a model that can run, whatever its format.

Owns the choice between the lean decoder and the transformers adapter. Knows nothing of lanes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from models.causal_model import CausalModel
from models.checkpoint import Checkpoint, open_checkpoint
from models.config import ModelConfig
from models.decoder import Decoder
from models.errors import UnsupportedModelError
from models.linear import WeightKind
from models.memory import num_parameters
from models.smoothing_cache import cached_input_scales
from models.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A model with its tokenizer."""

    model: CausalModel
    tokenizer: Tokenizer
    weights: WeightKind
    """How its matrices are kept."""
    num_parameters: int | None
    """None where the transformers adapter runs it."""


@dataclass(frozen=True, kw_only=True)
class OpenModel:
    """A checked source whose weights have not been read yet, so that their memory can be estimated first."""

    config: ModelConfig | None
    """The lean decoder's shape; None where the transformers adapter will run it."""
    load: Callable[[], LoadedModel]


@contextmanager
def open_model(source: str | os.PathLike[str], *, weights: WeightKind) -> Generator[OpenModel, None, None]:
    """Open a folder, a hub id or a GGUF file.

    A folder or hub id whose architecture the lean decoder lacks is run by transformers, in float32 whatever
    `weights` says, if its cache can be cut back exactly.

    Raises:
        CheckpointError: if the source is missing or malformed.
        UnsupportedModelError: if neither can run it exactly.
    """
    try:
        checkpoint = open_checkpoint(source)
    except UnsupportedModelError as error:
        refusal = error
    else:
        with checkpoint:
            yield OpenModel(config=checkpoint.config, load=lambda: _load_decoder(checkpoint, weights))
        return
    yield OpenModel(config=None, load=lambda: _load_with_transformers(source, refusal))


def _load_decoder(checkpoint: Checkpoint, weights: WeightKind) -> LoadedModel:
    tokenizer = checkpoint.tokenizer()
    input_scales = cached_input_scales(checkpoint, tokenizer) if weights is WeightKind.INT8 else None
    return LoadedModel(
        model=Decoder.from_checkpoint(checkpoint, weights=weights, input_scales=input_scales),
        tokenizer=tokenizer,
        weights=weights,
        num_parameters=num_parameters(checkpoint.config),
    )


def _load_with_transformers(source: str | os.PathLike[str], refusal: UnsupportedModelError) -> LoadedModel:
    from models.transformers_model import TransformersModel

    if Path(source).suffix.lower() == ".gguf":
        raise refusal
    folder = Path(source)
    if not folder.is_dir():
        from models.hub import fetch_snapshot

        folder = fetch_snapshot(str(source))
    try:
        model = TransformersModel.from_pretrained(str(folder))
    except UnsupportedModelError as second_refusal:
        raise UnsupportedModelError(
            f"{refusal}; nor can transformers run it here: {second_refusal}"
        ) from second_refusal
    return LoadedModel(
        model=model, tokenizer=Tokenizer.from_folder(folder), weights=WeightKind.FLOAT32, num_parameters=None
    )
