"""A lane: one model, its cache and its stream.

Owns the record of which tokens the cache holds and keeps the two in step, whatever is cancelled or fails in
between. Knows nothing of proposals, verdicts or requests.

All methods but the constructor and the properties run as launches on the lane's stream.

Shape suffixes: R logit rows asked for, V vocabulary.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch

from models import Cache, CausalModel, FeatureSource, PositionedCache, PositionedModel, UnsupportedModelError
from scheduler.core_share import CoreShare
from scheduler.costs import BlockCosts, MachinePace, elapsed_ms
from scheduler.features import FeatureRecord, Features
from scheduler.streams.base import Stream
from scheduler.upload import upload_ids

_TIMED_WIDTHS = (1, 2, 3, 5, 9, 17)
_TIMED_RUNS = 3
_UNKNOWN_ID = -1
"""Held in place of a token that the host does not know; no prompt contains it, so that nobody resumes behind it."""


class Lane:
    """One model and its cache on one stream."""

    def __init__(
        self,
        name: str,
        model: CausalModel,
        stream: Stream,
        *,
        capacity: int,
        cores: CoreShare | None = None,
        pace: MachinePace | None = None,
        keeps_features: bool = False,
    ) -> None:
        """Allocate the cache, and room for features where they are to be kept.

        Args:
            name: prefix of the lane's buffer names.
            model: the model to run.
            stream: where its work is launched.
            capacity: most tokens the cache holds.
            cores: how many intra-op threads its work gets; None leaves the worker's number as it is.
            pace: what the costs of all lanes of a machine have in common.
            keeps_features: whether a draft is to have the features of what this lane reads.

        Raises:
            UnsupportedModelError: if features are to be kept and the model gives none away.
        """
        self.name = name
        self.model = model
        self.stream = stream
        self.capacity = capacity
        self.costs = BlockCosts(pace=pace)
        """Of blocks while no other lane runs."""
        self.costs_together = BlockCosts(pace=pace, beside_another=True)
        """Of blocks while another lane runs as well; empty until that was measured or happened."""
        self.pace = pace
        self._is_measuring = False
        self._cores = cores
        self._together = False
        self.price: Callable[[int, bool], float] | None = None
        """Says in place of the clock what a call of so many tokens cost, beside another lane or not, in milliseconds;
        asked after each call, where time is simulated."""
        self.reader: object | None = None
        """Whoever's prompt the cache was last prepared for; set and asked by the host, never by launches."""
        self._cache = model.new_cache(capacity)
        self._positioned_model = model if isinstance(model, PositionedModel) else None
        self._positioned_cache = self._cache if isinstance(self._cache, PositionedCache) else None
        self._held_ids: list[int] = []
        self._kept = _KeptFeatures(model, capacity) if keeps_features else None

    @property
    def cache(self) -> Cache:
        """The model's cache, for whoever wants to look at it in a launch on the lane's stream; calls belong here."""
        return self._cache

    @property
    def cache_buffer(self) -> str:
        """Name of the cache among a launch's reads and writes."""
        return f"{self.name}.cache"

    @property
    def features_buffer(self) -> str:
        """Name of the features likewise."""
        return f"{self.name}.features"

    @property
    def buffers(self) -> tuple[str, ...]:
        """Names of all that a call writes."""
        return (self.cache_buffer,) if self._kept is None else (self.cache_buffer, self.features_buffer)

    @property
    def kept_feature_size(self) -> int | None:
        """Width of the features that are kept; None where none are."""
        return None if self._kept is None else self._kept.source.feature_size

    @property
    def num_held(self) -> int:
        """Tokens whose keys and values the cache holds."""
        return len(self._held_ids)

    def share(self, *, together: bool) -> None:
        """Take all cores for the next calls, or the lane's part of them where another lane runs meanwhile."""
        self._together = together
        if self._cores is not None:
            self._cores.take(together=together)

    def resume(self, token_ids: Sequence[int]) -> int:
        """Keep the longest common prefix of what is held and `token_ids`; returns its length."""
        num_common = 0
        for held_id, token_id in zip(self._held_ids, token_ids, strict=False):
            if held_id != token_id:
                break
            num_common += 1
        self.roll_back(num_common)
        return num_common

    def roll_back(self, length: int) -> None:
        """Forget the tokens at and beyond `length`, if there are any."""
        if length < self.num_held:
            self._cache.rollback(length)
            del self._held_ids[length:]
            if self._kept is not None:
                self._kept.num_handed_out = min(self._kept.num_handed_out, length)

    def hand_out_features(self) -> Features:
        """Features of all tokens held that were not handed out before, or have been read anew since.

        Raises:
            RuntimeError: if the lane keeps none.
        """
        if self._kept is None:
            raise RuntimeError(f"the lane {self.name!r} keeps no features; make it with keeps_features=True")
        features = self._kept.record.copied(self._kept.num_handed_out, self.num_held)
        self._kept.num_handed_out = self.num_held
        return features

    def feed(self, token_ids: Sequence[int], *, num_logits: int) -> torch.Tensor:
        """Append tokens to the cache, in blocks that the model takes.

        Returns:
            logits_RV, float32, of the last `num_logits` tokens (at most one block's).
        """
        blocks = _split(token_ids, self.model.max_block)
        for block in blocks[:-1]:
            self._forward(block, num_logits=0)
        return self._forward(blocks[-1], num_logits=num_logits)

    def feed_unknown(self, token_ids_T: torch.Tensor, known_ids: Sequence[int], *, num_logits: int) -> torch.Tensor:
        """Append one block, of which the host knows only the first tokens; `reveal` says later what the others were.

        Args:
            token_ids_T: int64, on the model's device.
            known_ids: its first tokens.
            num_logits: rows wanted.

        Returns:
            logits_RV, as `feed` does.
        """
        held_ids = [*known_ids, *[_UNKNOWN_ID] * (len(token_ids_T) - len(known_ids))]
        return self._read(token_ids_T, held_ids, num_logits=num_logits)

    def reveal(self, start: int, token_ids: Sequence[int]) -> None:
        """The tokens held from `start` on are these."""
        self._held_ids[start : start + len(token_ids)] = token_ids

    def read_at(
        self, token_ids_T: torch.Tensor, positions_T: torch.Tensor, *, key_length: int, num_logits: int
    ) -> torch.Tensor:
        """Run tokens at positions that only the device knows; they are not held until they are counted in.

        See `PositionedModel.forward_at`.

        Raises:
            UnsupportedModelError: if the model takes positions as numbers only.
        """
        if self._positioned_model is None:
            raise UnsupportedModelError(
                f"{self.model.name!r} ({type(self.model).__name__}) cannot take positions as a tensor; feed it blocks"
            )
        return self._positioned_model.forward_at(
            token_ids_T, positions_T, self._cache, key_length=key_length, num_logits=num_logits
        )

    def count_in(self, token_ids: Sequence[int]) -> None:
        """Hold what was written by `read_at` directly behind what is held: these tokens."""
        if token_ids and self._positioned_cache is not None:
            self._positioned_cache.advance(len(token_ids))
            self._held_ids.extend(token_ids)

    def note_cost(self, width: int, cost_ms: float) -> None:
        """A block of that many tokens took so long, beside another lane or alone as was last said to `share`."""
        if width <= _TIMED_WIDTHS[-1]:
            (self.costs_together if self._together else self.costs).record(width, cost_ms)

    def measure_costs(
        self, *, together: bool = False, widths: Sequence[int] = _TIMED_WIDTHS, num_runs: int = _TIMED_RUNS
    ) -> None:
        """Time blocks of several widths, the median of a few runs each, and leave the cache empty.

        Args:
            together: whether another lane runs meanwhile, so that these are the costs of that.
            widths: ascending; those that model or cache cannot take are left out.
            num_runs: of each width.
        """
        self.share(together=together)
        self.roll_back(0)
        limit = min(self.model.max_block, self.capacity)
        times_ms: dict[int, list[float]] = {width: [] for width in widths if width <= limit}
        # A cold first run would be what all later ones are held against, and they would seem to speed the machine up.
        self._is_measuring = True
        try:
            # In turn, so that a moment in which the machine is slow does not make one width look dear.
            for _ in range(num_runs):
                for width, own_ms in times_ms.items():
                    started_s = time.perf_counter()
                    logits_RV = self._forward([0] * width, num_logits=width)
                    # Reading a value waits for a device that was only told what to do.
                    logits_RV[0, 0].item()
                    own_ms.append(elapsed_ms(started_s))
                    self.roll_back(0)
        finally:
            self._is_measuring = False
        measured_ms = {width: sorted(own_ms)[num_runs // 2] for width, own_ms in times_ms.items()}
        (self.costs_together if together else self.costs).calibrate(measured_ms)

    def _forward(self, token_ids: Sequence[int], *, num_logits: int) -> torch.Tensor:
        return self._read(upload_ids(token_ids, self.model.device), token_ids, num_logits=num_logits)

    def _read(self, token_ids_T: torch.Tensor, held_ids: Sequence[int], *, num_logits: int) -> torch.Tensor:
        started_s = time.perf_counter()
        try:
            logits_RV = self._run(token_ids_T, num_logits=num_logits)
        except BaseException:
            self._cache.rollback(min(self._cache.length, self.num_held))
            raise
        cost_ms = elapsed_ms(started_s) if self.price is None else self.price(len(held_ids), self._together)
        # Elsewhere the call comes back when it is enqueued, which says nothing of its cost.
        if num_logits and self.model.device.type == "cpu" and not self._is_measuring:
            self.note_cost(len(held_ids), cost_ms)
        self._held_ids.extend(held_ids)
        return logits_RV

    def _run(self, token_ids_T: torch.Tensor, *, num_logits: int) -> torch.Tensor:
        if self._kept is None:
            return self.model.forward(token_ids_T, self._cache, num_logits=num_logits)
        logits_RV, features_TE = self._kept.source.forward_with_features(
            token_ids_T, self._cache, num_logits=num_logits
        )
        self._kept.record.write(self.num_held, features_TE)
        return logits_RV


class _KeptFeatures:
    """Of all tokens that a lane holds, and how many of them were handed out."""

    def __init__(self, model: CausalModel, capacity: int) -> None:
        if not isinstance(model, FeatureSource):
            raise UnsupportedModelError(
                f"{model.name!r} ({type(model).__name__}) does not give its hidden states away, which a "
                "feature-conditioned draft reads; use a draft that reads tokens alone"
            )
        self.source = model
        self.record = FeatureRecord(capacity, model.feature_size, model.device)
        self.num_handed_out = 0


def _split(token_ids: Sequence[int], width: int) -> list[Sequence[int]]:
    return [token_ids[start : start + width] for start in range(0, len(token_ids), width)]
