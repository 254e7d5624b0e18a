"""The target of all runs, and drafts whose proposals are right always, never, at every other position, or by chance.

Rows depend on the last tokens and are worked out once, so that a call costs microseconds.

Shape suffixes: T tokens of a call, R logit rows, V vocabulary.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from enum import StrEnum
from functools import cache, lru_cache

import torch

from tests.support.feature_models import GivesFeatures, ReadsFeatures
from tests.support.positioned_table import PositionedTableModel
from tests.support.table_model import TableCache, TableModel

VOCAB = 5
IMPOSSIBLE_ID = 4
"""A token that the target never writes."""
UNPROPOSED_ID = 2
"""A token that the draft of the pattern `random` never proposes."""
_ORDER = 3
_TARGET_SEED = 5
_OTHER_SEED = 6


class Pattern(StrEnum):
    """When a draft's proposals are accepted."""

    ALWAYS = "always"
    NEVER = "never"
    ALTERNATING = "alternating"
    """At even positions only."""
    RANDOM = "random"


class PatternModel(TableModel):
    """The target itself (`pattern` None), or a draft."""

    def __init__(self, pattern: Pattern | None = None, *, max_block: int = 16) -> None:
        super().__init__(
            vocab_size=VOCAB, order=_ORDER, seed=_TARGET_SEED, max_block=max_block, name=str(pattern or "target")
        )
        self._pattern = pattern

    def logits_after(self, token_ids: Sequence[int]) -> torch.Tensor:
        return row_after(self._pattern, len(token_ids), tuple(token_ids[-_ORDER:]))

    def forward(self, token_ids_T: torch.Tensor, cache: TableCache, *, num_logits: int) -> torch.Tensor:
        """As any table model's, but a row may depend on its position."""
        num_tokens = len(token_ids_T)
        if not 1 <= num_tokens <= self.max_block:
            raise ValueError(f"a call takes 1 to {self.max_block} tokens, got {num_tokens}")
        self.num_calls += 1
        if self.num_calls == self.fail_at_call:
            raise PlantedError(f"planted failure in {self.name}")
        rows = []
        for index, token_id in enumerate(token_ids_T.tolist()):
            cache.append(token_id)
            if index >= num_tokens - num_logits:
                rows.append(row_after(self._pattern, cache.length, tuple(cache.context(_ORDER))))
        return torch.stack(rows) if rows else torch.empty(0, VOCAB)


class FeatureTarget(GivesFeatures, PatternModel):
    """The target itself, which gives features away."""


class FeatureDraft(ReadsFeatures, PatternModel):
    """A draft that reads them, and proposes as if it did not."""


class PositionedPatternModel(PositionedTableModel):
    """A `PatternModel`, row for row, whose calls can be enqueued on a device."""

    def __init__(self, pattern: Pattern | None = None, *, max_block: int = 16) -> None:
        super().__init__(
            vocab_size=VOCAB, order=_ORDER, seed=_TARGET_SEED, max_block=max_block, name=str(pattern or "target")
        )
        self._pattern = pattern
        self._rows = _all_rows(pattern)

    def logits_after(self, token_ids: Sequence[int]) -> torch.Tensor:
        return row_after(self._pattern, len(token_ids), tuple(token_ids[-_ORDER:]))

    def rows_after(self, rows: torch.Tensor, positions_R: torch.Tensor) -> torch.Tensor:
        """As `row_after`, looked up in a table of all contexts: a token before the first one counts as `VOCAB`."""
        index_R = (positions_R + 1) % 2
        for distance in reversed(range(_ORDER)):
            earlier_R = positions_R - distance
            token_ids_R = torch.where(earlier_R >= 0, rows.index_select(0, earlier_R.clamp(min=0)), VOCAB)
            index_R = index_R * (VOCAB + 1) + token_ids_R
        return self._rows.index_select(0, index_R)

    def failure(self) -> Exception:
        return PlantedError(f"planted failure in {self.name}")


class PlantedError(Exception):
    """What a model raises that is to fail."""


def row_after(pattern: Pattern | None, length: int, context: tuple[int, ...]) -> torch.Tensor:
    """float32, shape V: the row that predicts the token at position `length`."""
    return _row(pattern, length % 2, context)


@cache
def _row(pattern: Pattern | None, parity: int, context: tuple[int, ...]) -> torch.Tensor:
    target_V = _sum_of(_tables(_TARGET_SEED), context)
    target_V[IMPOSSIBLE_ID] = float("-inf")
    if pattern is None or pattern is Pattern.ALWAYS or (pattern is Pattern.ALTERNATING and parity == 0):
        return target_V
    if pattern is Pattern.RANDOM:
        # Half of what the target may write is never proposed, and not always the same half: about as many proposals are
        # accepted as not, and whatever is wrong with a rule moves much probability.
        other_V = target_V + 0.5 * _sum_of(_tables(_OTHER_SEED), context)
        other_V[[UNPROPOSED_ID, (0, 1, 3)[context[-1] % 3]]] = float("-inf")
        return other_V
    wrong_V = torch.full((VOCAB,), float("-inf"))
    wrong_V[IMPOSSIBLE_ID] = 0.0
    return wrong_V


@cache
def _all_rows(pattern: Pattern | None) -> torch.Tensor:
    """float32: the row of each parity and each context of three tokens; those of no context are never asked for."""
    rows = []
    for parity in range(2):
        for context in itertools.product(range(VOCAB + 1), repeat=_ORDER):
            known = tuple(itertools.dropwhile(lambda token_id: token_id == VOCAB, context))
            is_context = known and VOCAB not in known
            rows.append(_row(pattern, parity, known) if is_context else torch.full((VOCAB,), float("nan")))
    return torch.stack(rows)


@lru_cache(maxsize=2)
def _tables(seed: int) -> torch.Tensor:
    return TableModel(vocab_size=VOCAB, order=_ORDER, seed=seed, sharpness=0.3).tables


def _sum_of(tables: torch.Tensor, context: tuple[int, ...]) -> torch.Tensor:
    logits_V = torch.zeros(VOCAB)
    for distance, token_id in enumerate(reversed(context)):
        logits_V = logits_V + tables[distance, token_id]
    return logits_V
