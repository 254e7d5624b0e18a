"""A distilled draft on its loaded target: a few layers between the target's own embedding, final norm and head.

Owns the binding and the fusion of tokens with features. Knows nothing of how the draft was trained or who steps it.

Embedding, final norm and an uncut head are the target's objects, not copies. A cut head packs its rows out of the
target's, whatever scale that has taken up (`models.smoothing`). What a draft does not share is kept in int8 beside
float16 or int8, else as the target's is (`models.linear.draft_weight_kind`).

A draft's bits decide what is proposed and never what is written, so its calls are as narrow as they can be.

Shape suffixes: T tokens of this call, R logit rows asked for, E hidden width, V vocabulary, C tokens of a cut head.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from models.block_width import ExactWidths
from models.call_widths import VERIFY_BLOCK, WIDE_WIDTHS, CallWidths
from models.causal_model import Cache, check_call
from models.config import ModelConfig
from models.cut_head import CutHead
from models.decoder import Decoder
from models.decoder_weights import DecoderWeights, LayerWeights, load_layers
from models.draft_folder import (
    FUSION,
    FUSION_EMBEDDING_NORM,
    FUSION_FEATURE_NORM,
    DraftDesign,
    DraftFolder,
)
from models.elementwise import rms_norm
from models.errors import CheckpointError
from models.linear import MatrixKinds, PackedLinear, WeightKind, draft_weight_kind, kind_of, pack_linear, unpacked
from models.wrapped_decoder import WrappedDecoder

_NARROW = tuple(range(1, VERIFY_BLOCK + 1))


def bind_draft(draft: DraftFolder, target: Decoder, *, weights: WeightKind | None = None) -> Decoder | FeatureDraft:
    """A draft model that shares `target`'s embedding, final norm and, where it is not cut, head.

    Args:
        draft: opened on the checkpoint that `target` was loaded from (`draft_folder.open_draft`).
        target: loaded.
        weights: how what the draft does not share is kept; None is what `models.linear.draft_weight_kind` says.

    Returns:
        A decoder for a draft that reads tokens alone, else a `FeatureDraft`; with caches of its own, on `target`'s
        device.

    Raises:
        CheckpointError: if the weights cannot be read, are not finite, or beyond what their kind can hold.
        ValueError: if `target` is of another shape than the draft was opened for.
    """
    if dataclasses.replace(target.config, num_layers=draft.config.num_layers) != draft.config:
        raise ValueError(f"open the draft {draft.name!r} on the checkpoint that {target.name!r} was loaded from")
    tensors = draft.tensors()
    kinds = MatrixKinds.of(weights or draft_weight_kind(kind_of(target.packed_weights.layers[0].qkv), target.device))
    try:
        layers = load_layers(_LayerTensors(draft.config, tensors, draft.name), kinds, target.device)
        head = _head(draft, target, weights)
        decoder = _decoder(draft, target, layers, head)
        if draft.design is DraftDesign.TOKEN:
            return decoder
        fusion = Fusion(tensors, kinds.qkv, config=draft.config, device=target.device)
    except ValueError as error:
        raise CheckpointError(f"the draft {draft.folder} cannot be run here: {error}") from error
    return FeatureDraft(decoder, fusion)


@dataclass(frozen=True)
class _LayerTensors:
    """The draft's layers by the names of a checkpoint; a `models.decoder_weights.TensorSource`."""

    config: ModelConfig
    tensors: Mapping[str, torch.Tensor]
    name: str

    def tensor(self, name: str) -> torch.Tensor:
        """The tensor of that name."""
        return self.tensors[name.removeprefix("model.")]

    def has(self, name: str) -> bool:
        """Whether there is one of that name."""
        return name.removeprefix("model.") in self.tensors


def _head(draft: DraftFolder, target: Decoder, weights: WeightKind | None) -> PackedLinear:
    whole = target.packed_weights.head
    if draft.head_token_ids_C is None:
        return whole
    token_ids_C = draft.head_token_ids_C.to(target.device, torch.int64)
    rows_CE = unpacked(whole)[token_ids_C]
    kind = weights or draft_weight_kind(kind_of(whole), target.device)
    return CutHead(pack_linear(rows_CE, None, kind), token_ids_C, vocab_size=target.vocab_size)


def _decoder(draft: DraftFolder, target: Decoder, layers: tuple[LayerWeights, ...], head: PackedLinear) -> Decoder:
    widths = ExactWidths((*_NARROW, *(width for width in WIDE_WIDTHS if width <= target.max_block)))
    return Decoder(
        draft.config,
        dataclasses.replace(target.packed_weights, layers=layers, head=head),
        name=f"{draft.name} (distilled)",
        device=target.device,
        max_block=target.max_block,
        widths=CallWidths(
            layers=widths,
            attention=ExactWidths(_NARROW),
            head=ExactWidths(_NARROW),
            exact=False,
            thread_counts=target.thread_counts,
        ),
        scripted=target.runs_scripted,
    )


class Fusion:
    """From a token's embedding and the feature before it to what the draft's first layer reads."""

    def __init__(
        self, tensors: Mapping[str, torch.Tensor], kind: WeightKind, *, config: ModelConfig, device: torch.device
    ) -> None:
        """Pack the matrix; the tensors are those of `models.draft_folder`."""
        root = float(config.hidden_size**0.5)
        self._embedding_norm_E = tensors[FUSION_EMBEDDING_NORM].to(device, torch.float32) * root
        self._feature_norm_E = tensors[FUSION_FEATURE_NORM].to(device, torch.float32) * root
        self._matrix = pack_linear(tensors[FUSION].to(device), None, kind)
        self._eps = torch.tensor(config.rms_norm_eps * config.hidden_size, device=device)

    @property
    def num_bytes(self) -> int:
        """Bytes of the matrix and both norms."""
        return self._matrix.num_bytes + self._embedding_norm_E.nbytes + self._feature_norm_E.nbytes

    def __call__(self, embedding_TE: torch.Tensor, features_TE: torch.Tensor) -> torch.Tensor:
        """hidden_TE, float32."""
        parts = (
            rms_norm(embedding_TE, self._embedding_norm_E, self._eps),
            rms_norm(features_TE, self._feature_norm_E, self._eps),
        )
        return self._matrix(torch.cat(parts, dim=-1))


class FeatureDraft(WrappedDecoder):
    """A `models.feature_model.FeatureReader` on the target's device, with the target's limits."""

    def __init__(self, decoder: Decoder, fusion: Fusion) -> None:
        """Bind the draft's layers to what comes before them; use `bind_draft`."""
        super().__init__(decoder)
        self._fusion = fusion

    @property
    def config(self) -> ModelConfig:
        """The shape of its layers."""
        return self._decoder.config

    @property
    def packed_weights(self) -> DecoderWeights:
        """The layers' weights, and what they share with the target."""
        return self._decoder.packed_weights

    @property
    def feature_size(self) -> int:
        """Width E of a feature."""
        return self._decoder.feature_size

    def forward(self, token_ids_T: torch.Tensor, cache: Cache, *, num_logits: int) -> torch.Tensor:
        """Append T tokens of whose features nothing is known; logits_RV as `models.causal_model.CausalModel` says."""
        features_TE = torch.zeros(token_ids_T.shape[0], self.feature_size, device=self.device)
        return self.forward_on_features(token_ids_T, features_TE, cache, num_logits=num_logits)[0]

    @torch.inference_mode()
    def forward_on_features(
        self, token_ids_T: torch.Tensor, features_TE: torch.Tensor, cache: Cache, *, num_logits: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append T tokens, each with the feature one position before it.

        See `models.feature_model.FeatureReader`.

        Raises:
            ValueError: if T is 0, above `max_block`, does not fit into the cache, or the features have another shape.
        """
        check_call(token_ids_T, cache, num_logits, max_block=self.max_block)
        expected = (token_ids_T.shape[0], self.feature_size)
        if features_TE.shape != expected:
            raise ValueError(f"features_TE must have shape {expected}, got {tuple(features_TE.shape)}")
        fused_TE = self._fusion(self._decoder.embed(token_ids_T), features_TE)
        return self._decoder.forward_embedded(fused_TE, cache, num_logits=num_logits)
