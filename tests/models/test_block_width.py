"""Classes of call widths that agree to the bit, and how blocks are covered with them."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from models.block_width import (
    ExactWidths,
    RowsAtWidth,
    WidthDigests,
    call_cost,
    choose_widths,
    places_to_probe,
    probe_exact_widths,
)

ROWS = torch.arange(12.0)


def kernel_that_differs(width: int) -> list[torch.Tensor]:
    """A machine with one kernel for single rows, one for widths to 7, one beyond, and a last row astray at 5."""
    rows = ROWS + (0.0 if width == 1 else 1e-6 if width <= 7 else 2e-6) * ROWS
    straight = rows.clone()
    if width == 5:
        straight[4::5] += 1e-3
    return [straight, straight.clone()]


def equal_width_classes(widths: Iterable[int], rows_at_width: RowsAtWidth) -> list[tuple[int, ...]]:
    present = (torch.get_num_threads(),)
    return WidthDigests.compute(widths, rows_at_width, present).classes(present)


def test_widths_with_equal_bits_form_a_class() -> None:
    classes = equal_width_classes(range(1, 11), kernel_that_differs)
    assert classes == [(1,), (2, 3, 4, 6, 7), (5,), (8, 9, 10)]


def test_a_width_whose_rows_depend_on_their_place_is_left_out() -> None:
    def rows(width: int) -> list[torch.Tensor]:
        return [ROWS, ROWS + (width == 2)]

    assert equal_width_classes([1, 2, 3], rows) == [(1, 3)]


def test_places_to_probe_shift_rows_within_calls() -> None:
    assert places_to_probe(1) == (0,)
    assert places_to_probe(2) == (0, 1)
    assert places_to_probe(9) == (0, 1, 4)


def test_no_repeatable_width_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="number of threads"):
        probe_exact_widths([1, 2], lambda width: [ROWS, ROWS + 1], 4)


def test_signed_zeros_and_nans_count_as_bits() -> None:
    def rows(width: int) -> list[torch.Tensor]:
        return [torch.tensor([0.0 if width == 1 else -0.0, float("nan")])]

    assert equal_width_classes([1, 2, 3], rows) == [(1,), (2, 3)]


@pytest.mark.parametrize(
    ("classes", "chosen"),
    [
        ([tuple(range(1, 18))], tuple(range(1, 18))),
        # FBGEMM float16 on AVX2: three to six rows, eight to thirteen, fifteen, sixteen.
        (
            [(1,), (2,), (3, 4, 5, 6, 8, 9, 10, 11, 12, 13, 15, 16), (7,), (14,)],
            (3, 4, 5, 6, 8, 9, 10, 11, 12, 13, 15, 16),
        ),
        # MKL float32: padding single rows to four is cheaper than to sixteen, or than seventeen single calls a block.
        ([(1,), (2, 3), tuple(range(4, 16)), (16, 17)], tuple(range(4, 16))),
        # Nothing agrees with anything: one width for all.
        ([(1,), (2,), (17,)], (17,)),
        ([(1,), (8,)], (8,)),
    ],
)
def test_the_class_that_is_cheapest_for_rows_and_blocks(
    classes: list[tuple[int, ...]], chosen: tuple[int, ...]
) -> None:
    assert choose_widths(classes, 17).widths == chosen


@pytest.mark.parametrize(
    ("widths", "num_rows", "cover"),
    [
        ((1, 2, 4), 1, (1,)),
        ((1, 2, 4), 3, (4,)),
        ((1, 2, 4), 5, (4, 1)),
        ((4, 15), 17, (15, 4)),
        ((3, 16), 17, (16, 3)),
        ((16,), 1, (16,)),
        ((16,), 33, (16, 16, 16)),
    ],
)
def test_cover(widths: tuple[int, ...], num_rows: int, cover: tuple[int, ...]) -> None:
    assert ExactWidths(widths).cover(num_rows) == cover


@given(st.sets(st.integers(1, 40), min_size=1, max_size=6), st.integers(1, 90))
def test_a_cover_holds_the_rows_and_pads_its_last_call_only(members: set[int], num_rows: int) -> None:
    widths = ExactWidths(tuple(sorted(members)))
    cover = widths.cover(num_rows)
    assert set(cover) <= members
    assert sum(cover[:-1]) < num_rows <= sum(cover)
    widest_only = -(-num_rows // widths.widest)
    assert sum(map(call_cost, cover)) <= widest_only * call_cost(widths.widest) + 1e-9


@pytest.mark.parametrize("widths", [(), (0, 1), (2, 1), (1, 1)])
def test_widths_must_ascend_from_one(widths: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="ascending"):
        ExactWidths(widths)


def test_limits() -> None:
    widths = ExactWidths((2, 5, 9))
    assert (widths.narrowest, widths.widest) == (2, 9)
    with pytest.raises(ValueError, match="num_rows"):
        widths.cover(0)


def test_where_rows_need_not_agree_every_call_is_padded_to_one_width() -> None:
    def rows(width: int) -> list[torch.Tensor]:
        return [ROWS, ROWS + (width > 1)]

    probed = probe_exact_widths(range(1, 20), rows, 17, must_agree=False)
    assert probed.widths == ExactWidths((17,))
    assert not probed.exact
    # On a CPU the class of single rows is kept, however slow.
    assert probe_exact_widths(range(1, 20), rows, 17).widths == ExactWidths((1,))


def test_where_rows_need_not_agree_a_class_is_still_taken_if_it_is_cheap() -> None:
    for must_agree in (True, False):
        probed = probe_exact_widths(range(1, 11), kernel_that_differs, 8, must_agree=must_agree)
        assert probed.exact
        assert probed.widths == choose_widths([(2, 3, 4, 6, 7), (8, 9, 10)], 8)


def test_bfloat16_rows_are_compared_by_their_bits() -> None:
    def rows(width: int) -> list[torch.Tensor]:
        return [torch.tensor([1.0, 2.0 if width < 3 else 2.015625], dtype=torch.bfloat16)]

    assert equal_width_classes([1, 2, 3, 4], rows) == [(1, 2), (3, 4)]
