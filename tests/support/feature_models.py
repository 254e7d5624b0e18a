"""Table models that give features away and that read them, and tell a wrong feature from a right one.

A feature names the position that it belongs to, the text up to there and who made it, so that a reader can hold it
against what its cache holds.

Shape suffixes: T tokens of a call, R logit rows, E width of a feature, V vocabulary.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import torch

from scheduler import FeatureLane, FeatureProposer, FixedGamma, GammaPolicy, Proposal, SamplingLaw, Stream, TokenHistory
from tests.support.loops import NewProposer
from tests.support.table_model import TableCache, TableModel

FEATURE_SIZE = 3
TARGETS, OWN = 1.0, 2.0
"""Who made a feature."""


def feature_of(token_ids: Sequence[int], maker: float) -> list[float]:
    """Of the last of these tokens, the first ones of a text; all numbers are exact in float32."""
    checksum = zlib.crc32(bytes(token_ids)) % (1 << 20)
    return [float(len(token_ids)), float(checksum), maker]


def _features(cache: TableCache, start: int, maker: float) -> torch.Tensor:
    rows = [feature_of(cache.token_ids[: position + 1], maker) for position in range(start, cache.length)]
    return torch.tensor(rows).reshape(-1, FEATURE_SIZE)


class GivesFeatures(TableModel):
    """A target."""

    feature_size = FEATURE_SIZE

    def forward_with_features(
        self, token_ids_T: torch.Tensor, cache: TableCache, *, num_logits: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        start = cache.length
        logits_RV = self.forward(token_ids_T, cache, num_logits=num_logits)
        return logits_RV, _features(cache, start, TARGETS)


class ReadsFeatures(TableModel):
    """A draft."""

    feature_size = FEATURE_SIZE

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.wrong: list[str] = []
        """What was read that belongs elsewhere."""
        self.makers: dict[int, float] = {0: TARGETS}
        """Whose feature each row of the cache was last written with."""
        self.widths: list[int] = []
        self.num_own = 0
        """Rows that were written with features of the draft's own."""

    def forward_on_features(
        self, token_ids_T: torch.Tensor, features_TE: torch.Tensor, cache: TableCache, *, num_logits: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        assert features_TE.shape == (len(token_ids_T), FEATURE_SIZE)
        start = cache.length
        given = features_TE.tolist()
        logits_RV = self.forward(token_ids_T, cache, num_logits=num_logits)
        self.widths.append(len(token_ids_T))
        for position, feature in enumerate(given, start=start):
            self._check(feature, position, cache.token_ids[:position])
        return logits_RV, _features(cache, start, OWN)

    def _check(self, feature: list[float], position: int, before: list[int]) -> None:
        if position == 0:
            if any(feature):
                self.wrong.append(f"{feature} before the first token")
            return
        self.makers[position] = feature[2]
        self.num_own += feature[2] == OWN
        if feature not in (feature_of(before, TARGETS), feature_of(before, OWN)):
            self.wrong.append(f"{feature} at position {position} after {before}")


class CheckedProposer(FeatureProposer):
    """Refuses to begin a chain on rows that were not written with the target's features."""

    def extend(self, law: SamplingLaw, history: TokenHistory, chain_ids: Sequence[int], max_tokens: int) -> Proposal:
        proposal = super().extend(law, history, chain_ids, max_tokens)
        if proposal and not chain_ids:
            check_rows(self, history.length)
        return proposal


def check_rows(proposer: FeatureProposer, length: int) -> None:
    """The first `length` rows of its cache rest on the target's features alone."""
    model = proposer.lane.model
    assert isinstance(model, ReadsFeatures)
    others = [position for position in range(length) if model.makers[position] != TARGETS]
    assert not others, f"rows {others} of {length} rest on features that are not the target's"


def feature_proposer(model: ReadsFeatures, gamma: int | GammaPolicy = 4, *, capacity: int = 512) -> NewProposer:
    policy = FixedGamma(gamma) if isinstance(gamma, int) else gamma
    return lambda stream: CheckedProposer(_lane(model, stream, capacity), policy)


def _lane(model: ReadsFeatures, stream: Stream, capacity: int) -> FeatureLane:
    return FeatureLane("draft", model, stream, capacity=capacity)
