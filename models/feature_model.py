"""What features ask of models: a target that gives its hidden states away, and a draft that reads them.

Owns the protocols `FeatureSource` and `FeatureReader`. Knows nothing of streams, rounds or of how a draft is made.

The *feature* of a token is the target's residual stream at its position, after the last layer and before the final
norm. A draft's row at position t reads token t and feature t - 1, and predicts token t + 1
(EAGLE, https://arxiv.org/abs/2401.15077); before position 0 the feature is zero. Where the target has not been yet, the
draft goes on from its own residual stream instead.

Shape suffixes: T tokens of this call, R logit rows asked for, E width of a feature, V vocabulary.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch

from models.causal_model import Cache, CausalModel


@runtime_checkable
class FeatureSource(CausalModel, Protocol):
    """A target whose features can be had."""

    @property
    def feature_size(self) -> int:
        """Width E of a feature."""
        ...

    def forward_with_features(
        self, token_ids_T: torch.Tensor, cache: Cache, *, num_logits: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """What `forward` does, to the bit, and the features of all T tokens.

        Returns:
            logits_RV, and features_TE, float32; both belong to the caller.

        Raises:
            ValueError: as `forward` does.
        """
        ...


@runtime_checkable
class FeatureReader(CausalModel, Protocol):
    """A draft that reads a feature beside each token; `forward` reads zeros in their place."""

    @property
    def feature_size(self) -> int:
        """Width E of a feature."""
        ...

    def forward_on_features(
        self, token_ids_T: torch.Tensor, features_TE: torch.Tensor, cache: Cache, *, num_logits: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append T tokens, each with the feature one position before it.

        Args:
            token_ids_T: as for `forward`.
            features_TE: float32; row i belongs to the position before token i. Not written to.
            cache: one that this model's `new_cache` made.
            num_logits: 0 <= num_logits <= T.

        Returns:
            logits_RV, and own_TE, float32: the draft's own features of these tokens. Both belong to the caller.

        Raises:
            ValueError: as `forward` does, or if the features have another shape.
        """
        ...
