"""From a source to a model that can run, whatever its format.

Owns the choice between the lean decoder and the transformers adapter. Knows nothing of lanes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from models.causal_model import CausalModel
from models.checkpoint import Checkpoint, open_checkpoint
from models.config import ModelConfig
from models.decoder import Decoder
from models.draft_folder import DraftTarget
from models.errors import UnsupportedModelError
from models.linear import WeightKind, default_weight_kind, refuse_unless_supported
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
    thread_counts: tuple[int, ...]
    """Numbers of intra-op threads, ascending, among which a caller may change without changing a row's bits."""


@dataclass(frozen=True, kw_only=True)
class OpenModel:
    """A checked source whose weights have not been read yet, so that their memory can be estimated first."""

    config: ModelConfig | None
    """The lean decoder's shape; None where the transformers adapter will run it."""
    as_target: DraftTarget | None
    """What a distilled draft must fit; None likewise."""
    loader: Callable[[tuple[int, ...]], LoadedModel]
    """Reads the weights; takes the thread counts of `load`."""

    def load(self, *, thread_counts: Iterable[int] = ()) -> LoadedModel:
        """Read the weights and find the call widths whose rows agree.

        Args:
            thread_counts: numbers of intra-op threads that calls will be made with, beside this thread's present one.
                The loaded model's `thread_counts` says whether rows agree under them.

        Raises:
            CheckpointError: if a tensor is missing or the files are malformed.
            UnsupportedModelError: if transformers would have to run the model and cannot do so exactly.
            TypeError, ValueError: if a count is not a whole number from 1 on.
        """
        return self.loader(tuple(thread_counts))


@contextmanager
def open_model(
    source: str | os.PathLike[str], *, weights: WeightKind | None = None, device: str | torch.device = "cpu"
) -> Generator[OpenModel, None, None]:
    """Open a folder, a hub id or a GGUF file.

    A folder or hub id whose architecture the lean decoder lacks is run by transformers, if its cache can be cut back
    exactly: in bfloat16 if `weights` says so, in float32 otherwise.

    Args:
        source: what to open.
        weights: how its matrices shall be kept; None for the device's default (`linear.default_weight_kind`).
        device: where the model shall run.

    Raises:
        ValueError: if the device lacks the weight kind.
        CheckpointError: if the source is missing or malformed.
        UnsupportedModelError: if neither can run it exactly.
    """
    device = torch.device(device)
    kind = default_weight_kind(device) if weights is None else weights
    refuse_unless_supported(kind, device)
    try:
        checkpoint = open_checkpoint(source)
    except UnsupportedModelError as error:
        refusal = error
    else:
        with checkpoint:
            yield OpenModel(
                config=checkpoint.config,
                as_target=DraftTarget.of(checkpoint),
                loader=lambda thread_counts: _load_decoder(checkpoint, kind, device, thread_counts),
            )
        return
    yield OpenModel(
        config=None,
        as_target=None,
        loader=lambda thread_counts: _load_with_transformers(source, refusal, kind, device, thread_counts),
    )


def _load_decoder(
    checkpoint: Checkpoint, weights: WeightKind, device: torch.device, thread_counts: tuple[int, ...]
) -> LoadedModel:
    tokenizer = checkpoint.tokenizer()
    input_scales = cached_input_scales(checkpoint, tokenizer) if weights is WeightKind.INT8 else None
    model = Decoder.from_checkpoint(
        checkpoint, weights=weights, device=device, input_scales=input_scales, thread_counts=thread_counts
    )
    return LoadedModel(
        model=model,
        tokenizer=tokenizer,
        weights=weights,
        num_parameters=num_parameters(checkpoint.config),
        thread_counts=model.thread_counts,
    )


def _load_with_transformers(
    source: str | os.PathLike[str],
    refusal: UnsupportedModelError,
    weights: WeightKind,
    device: torch.device,
    thread_counts: tuple[int, ...],
) -> LoadedModel:
    from models.transformers_model import TransformersModel

    if Path(source).suffix.lower() == ".gguf":
        raise refusal
    folder = Path(source)
    if not folder.is_dir():
        from models.hub import fetch_snapshot

        folder = fetch_snapshot(str(source))
    kept = WeightKind.BFLOAT16 if weights is WeightKind.BFLOAT16 else WeightKind.FLOAT32
    dtype = torch.bfloat16 if kept is WeightKind.BFLOAT16 else torch.float32
    try:
        model = TransformersModel.from_pretrained(str(folder), dtype=dtype, device=device, thread_counts=thread_counts)
    except UnsupportedModelError as second_refusal:
        raise UnsupportedModelError(
            f"{refusal}; nor can transformers run it here: {second_refusal}"
        ) from second_refusal
    return LoadedModel(
        model=model,
        tokenizer=Tokenizer.from_folder(folder),
        weights=kept,
        num_parameters=None,
        thread_counts=model.thread_counts,
    )
