"""Which call widths give bit-identical rows on this machine, and how to cover a block with them.

Owns the search for such widths and the cover. Knows nothing of what is computed: it is given
a function that computes some fixed rows at a wanted width, and compares bits.

Matrix libraries choose another kernel, with another order of summation, for one row than for
four, and another again for thirty-three. Callers therefore pad to a width out of one class of
widths that agree. A finding holds for the machine and the numbers of threads it was made with.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch

from models.thread_counts import intra_op_threads

ROWS_THAT_DOUBLE_COST = 16
"""About as many rows cost twice what one row costs: reading the weights is the rest."""

DEAREST_COMMON_CLASS = 1.1
"""What widths that agree under several thread counts may cost, in units of the best that agree under one."""

DEAREST_EXACT_CLASS = 2.0
"""Where rows need not agree: what agreeing widths may cost, in units of always padding to one width."""

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


@dataclass(frozen=True, kw_only=True)
class WidthDigests:
    """The bits of the same rows at many widths, under one or more numbers of threads."""

    by_width: dict[int, dict[int, frozenset[bytes]]]
    """For each width and thread count, the digests of all runs."""

    @classmethod
    def compute(cls, widths: Iterable[int], rows_at_width: RowsAtWidth, thread_counts: Sequence[int]) -> WidthDigests:
        """Run everything once under each count, which is switched in the calling thread."""
        by_width: dict[int, dict[int, frozenset[bytes]]] = {width: {} for width in widths}
        for count in thread_counts:
            with intra_op_threads(count):
                for width, by_count in by_width.items():
                    by_count[count] = frozenset(_digest(rows) for rows in rows_at_width(width))
        return cls(by_width=by_width)

    def classes(self, thread_counts: Iterable[int]) -> list[tuple[int, ...]]:
        """Group the widths by the bits of their rows.

        A width whose own runs differ among themselves (a row's place in the call shows, or a number of threads) is in
        no class; under one count width 1, which has one place only, always is.
        """
        classes: dict[bytes, list[int]] = {}
        counts = tuple(thread_counts)
        for width, by_count in self.by_width.items():
            digests = frozenset().union(*(by_count[count] for count in counts))
            if len(digests) == 1:
                classes.setdefault(next(iter(digests)), []).append(width)
        return [tuple(members) for members in classes.values()]


def _digest(rows: torch.Tensor) -> bytes:
    # As bytes: numpy has no bfloat16.
    bits = rows.detach().cpu().contiguous().view(torch.uint8)
    return hashlib.blake2b(bits.numpy().tobytes(), digest_size=16).digest()


class NoExactWidthsError(RuntimeError):
    """No candidate width gives the same bits twice."""


def choose_widths(classes: Sequence[tuple[int, ...]], num_rows_needed: int) -> ExactWidths:
    """The class that is cheapest for single rows and for blocks of `num_rows_needed`.

    Raises:
        NoExactWidthsError: if `classes` is empty: no width repeats its own bits on this machine.
    """
    if not classes:
        raise NoExactWidthsError("no call width gives repeatable rows on this machine; try another number of threads")
    candidates = [ExactWidths(tuple(sorted(members))) for members in classes]
    return min(candidates, key=lambda widths: (_usual_cost(widths, num_rows_needed), widths.narrowest))


def _usual_cost(widths: ExactWidths, num_rows_needed: int) -> float:
    """Two single rows to a block: most calls are narrow."""
    return 2 * _cover_cost(widths, 1) + _cover_cost(widths, num_rows_needed)


def _cover_cost(widths: ExactWidths, num_rows: int) -> float:
    return sum(call_cost(width) for width in widths.cover(num_rows))


@dataclass(frozen=True, kw_only=True)
class ProbedWidths:
    """What a probe found."""

    widths: ExactWidths
    thread_counts: tuple[int, ...]
    """The numbers of threads under which rows at `widths` have the same bits."""
    exact: bool
    """Whether a row's bits depend neither on the width nor on its place in the call."""


def probe_exact_widths(
    widths: Iterable[int],
    rows_at_width: RowsAtWidth,
    num_rows_needed: int,
    *,
    must_agree: bool = True,
    thread_counts: Sequence[int] = (),
) -> ProbedWidths:
    """Compute the same rows at every width, and keep the best class of widths that agree to the bit.

    Args:
        widths: candidates.
        rows_at_width: what to compute.
        num_rows_needed: rows of a usual block.
        must_agree: if not, and no class costs less than `DEAREST_EXACT_CLASS` times as much as padding every call to
            one width, the widest candidate up to `num_rows_needed`, that one is taken, although a row's place in the
            call may show in its last bits. A CUDA device's kernels owe nobody a class.
        thread_counts: numbers of threads, this thread's present one among them, under which the rows shall agree as
            well; none stands for the present one alone. Where no class does, or only one that costs more than
            `DEAREST_COMMON_CLASS` times the best one of the present count, that one is taken.

    Raises:
        NoExactWidthsError: if rows must agree and no width repeats its own bits.
    """
    present = (torch.get_num_threads(),)
    counts = tuple(thread_counts) or present
    digests = WidthDigests.compute(widths, rows_at_width, counts)
    classes = digests.classes(present)
    if not must_agree:
        padded = ExactWidths((max(width for width in digests.by_width if width <= num_rows_needed),))
        limit = DEAREST_EXACT_CLASS * _usual_cost(padded, num_rows_needed)
        if all(_usual_cost(ExactWidths(members), num_rows_needed) > limit for members in classes):
            return ProbedWidths(widths=padded, thread_counts=counts, exact=False)
    alone = choose_widths(classes, num_rows_needed)
    common_classes = digests.classes(counts)
    if common_classes:
        common = choose_widths(common_classes, num_rows_needed)
        limit = DEAREST_COMMON_CLASS * _usual_cost(alone, num_rows_needed)
        if _usual_cost(common, num_rows_needed) <= limit:
            return ProbedWidths(widths=common, thread_counts=counts, exact=True)
    return ProbedWidths(widths=alone, thread_counts=present, exact=True)
