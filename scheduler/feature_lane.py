"""The lane of a draft that reads the target's features beside its tokens.

Owns what features it was given, and which of its cache rows were written with these. Knows nothing of proposals or
verdicts.

The row at position t reads token t and feature t - 1. Past the target, the draft goes on from features of its own; such
rows stand as long as nothing is rolled back, and then they go first, whatever length is asked for: what is read again
is read with the target's features.

Shape suffixes: T tokens of a call, R logit rows asked for, V vocabulary, E width of a feature.
"""

from __future__ import annotations

import logging

import torch

from models import FeatureReader, UnsupportedModelError
from scheduler.core_share import CoreShare
from scheduler.costs import MachinePace
from scheduler.features import FeatureRecord, Features
from scheduler.lane import Lane
from scheduler.streams.base import Stream

_logger = logging.getLogger("slipstream")


class FeatureLane(Lane):
    """A feature-conditioned model, its cache and features on one stream."""

    def __init__(
        self,
        name: str,
        model: FeatureReader,
        stream: Stream,
        *,
        capacity: int,
        cores: CoreShare | None = None,
        pace: MachinePace | None = None,
    ) -> None:
        """Allocate the cache and the features; the arguments are those of `Lane`.

        Raises:
            UnsupportedModelError: if the model reads no features.
        """
        if not isinstance(model, FeatureReader):
            raise UnsupportedModelError(f"{type(model).__name__} reads no features; run it on a Lane")
        super().__init__(name, model, stream, capacity=capacity, cores=cores, pace=pace)
        self._reader = model
        self._record = FeatureRecord(capacity, model.feature_size, model.device)
        self._num_given = 0
        self._num_sure = 0
        self._num_missing = 0

    @property
    def buffers(self) -> tuple[str, ...]:
        """The cache and the features."""
        return (self.cache_buffer, self.features_buffer)

    @property
    def feature_size(self) -> int:
        """Width E of a feature."""
        return self._reader.feature_size

    @property
    def num_readable(self) -> int:
        """Tokens that can be read with the target's features: one more than it was given."""
        return min(self._num_given + 1, self.capacity)

    @property
    def num_sure(self) -> int:
        """First rows of the cache that were written with the target's features alone."""
        return self._num_sure

    @property
    def num_missing(self) -> int:
        """Positions whose features never came, so that zeros stand in for them; 0 unless a launch failed."""
        return self._num_missing

    def receive(self, features: Features) -> None:
        """Take in features; what was known of later positions is no longer true."""
        # A draft may have a shorter context than its target.
        gap = min(features.start, self.capacity) - self._num_given
        if gap > 0:
            self._num_missing += gap
            _logger.warning("%s: the features of %d tokens never came; it proposes worse there", self.name, gap)
            self._record.write(self._num_given, torch.zeros(gap, self.feature_size))
        self._record.write(features.start, features.rows_NE[: max(0, self.capacity - features.start)])
        self._num_given = min(features.stop, self.capacity)

    def roll_back(self, length: int) -> None:
        """Forget the tokens at and beyond `length`, and those that were read with features of the draft's own."""
        super().roll_back(min(length, self._num_sure))
        self._num_sure = min(self._num_sure, self.num_held)

    def _run(self, token_ids_T: torch.Tensor, *, num_logits: int) -> torch.Tensor:
        start = self.num_held
        stop = start + len(token_ids_T)
        before_TE = self._record.before(start, stop)
        logits_RV, own_TE = self._reader.forward_on_features(token_ids_T, before_TE, self._cache, num_logits=num_logits)
        first_own = max(start, self._num_given)
        if first_own < stop:
            self._record.write(first_own, own_TE[first_own - start :])
        if start <= self._num_sure:
            self._num_sure = max(self._num_sure, min(stop, self.num_readable))
        return logits_RV
