"""Which call widths give bit-identical rows on this machine, and how to cover a block with them.

Owns the search for such widths and the cover. Knows nothing of what is computed: it is given
a function that computes some fixed rows at a wanted width, and compares bits.

Matrix libraries choose another kernel, with another order of summation, for one row than for
four, and another again for thirty-three. Callers therefore pad to a width out of one class of
widths that agree. A finding holds for the machine and the number of threads it was made with.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch

ROWS_THAT_DOUBLE_COST = 16
"""About as many rows cost twice what one row costs: reading the weights is the rest."""

RowsAtWidth = Callable[[int], Sequence[torch.Tensor]]
"""Computes one and the same set of rows, once or several times at other places, in calls of the given width."""


def call_cost(width: int) -> float:
    """Cost of one call in units of a call without rows; a rough model, enough to choose among covers."""
    return 1 + width / ROWS_THAT_DOUBLE_COST


@dataclass(frozen=True)
class ExactWidths:
    """Widths, ascending, at which a row's bits do not depend on the width."""

    widths: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.widths or any(width < 1 for width in self.widths) or list(self.widths) != sorted(set(self.widths)):
            raise ValueError(f"widths must be one or more ascending numbers from 1 on, got {self.widths}")

    @property
    def narrowest(self) -> int:
        """What a single row is padded to."""
        return self.widths[0]

    @property
    def widest(self) -> int:
        """Most rows of one call."""
        return self.widths[-1]

    def cover(self, num_rows: int) -> tuple[int, ...]:
        """The cheapest calls that hold `num_rows` rows together; all are full but the last, which may be padded.

        Raises:
            ValueError: if `num_rows` is below 1.
        """
        if num_rows < 1:
            raise ValueError(f"num_rows must be at least 1, got {num_rows}")
        return _cheapest_cover(self.widths, num_rows)


@functools.lru_cache(maxsize=4096)
def _cheapest_cover(widths: tuple[int, ...], num_rows: int) -> tuple[int, ...]:
    best: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    for rows in range(1, num_rows + 1):
        candidates = []
        for width in widths:
            rest_cost, rest = best[max(0, rows - width)]
            candidates.append((call_cost(width) + rest_cost, (*rest, width)))
        best.append(min(candidates))
    # Widest first, so that only the last call can hold padding.
    cover = sorted(best[num_rows][1], reverse=True)
    while len(cover) > 1 and sum(cover[:-1]) >= num_rows:
        cover.pop()
    return tuple(cover)


def places_to_probe(width: int) -> tuple[int, ...]:
    """How many rows to compute apart at first, so that a probe's runs see each row at several places in a call."""
    return tuple(sorted({0, 1, width // 2} if width > 1 else {0}))


def equal_width_classes(widths: Iterable[int], rows_at_width: RowsAtWidth) -> list[tuple[int, ...]]:
    """Group `widths` by the bits of the rows that they give.

    A width whose own runs differ among themselves (a row's place in the call shows) is in no class; width 1 has
    one place only, so it always is.
    """
    classes: dict[bytes, list[int]] = {}
    for width in widths:
        digests = {_digest(rows) for rows in rows_at_width(width)}
        if len(digests) == 1:
            classes.setdefault(digests.pop(), []).append(width)
    return [tuple(members) for members in classes.values()]


def _digest(rows: torch.Tensor) -> bytes:
    return hashlib.blake2b(rows.detach().cpu().contiguous().numpy().tobytes(), digest_size=16).digest()


def choose_widths(classes: Sequence[tuple[int, ...]], num_rows_needed: int) -> ExactWidths:
    """The class that is cheapest for single rows and for blocks of `num_rows_needed`.

    Raises:
        RuntimeError: if `classes` is empty: no width repeats its own bits on this machine.
    """
    if not classes:
        raise RuntimeError("no call width gives repeatable rows on this machine; try another number of threads")
    candidates = [ExactWidths(tuple(sorted(members))) for members in classes]

    def cost(widths: ExactWidths) -> tuple[float, int]:
        # Two single rows to a block: most calls are narrow.
        return 2 * _cover_cost(widths, 1) + _cover_cost(widths, num_rows_needed), widths.narrowest

    return min(candidates, key=cost)


def _cover_cost(widths: ExactWidths, num_rows: int) -> float:
    return sum(call_cost(width) for width in widths.cover(num_rows))


def probe_exact_widths(widths: Iterable[int], rows_at_width: RowsAtWidth, num_rows_needed: int) -> ExactWidths:
    """Compute the same rows at every width and keep the best class of widths that agree to the bit."""
    return choose_widths(equal_width_classes(widths, rows_at_width), num_rows_needed)
