"""Timelines as text: one row a stream, one column a slice of time.

Owns the drawing. Knows nothing of where the entries come from.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from scheduler import TimelineEntry

_RUNNING = "━"
_SKIPPED = "×"
_IDLE = "·"
_LEAST_TICK_COLUMNS = 12


def draw_timeline(
    entries: Iterable[TimelineEntry], *, width: int, start_ms: float = 0.0, end_ms: float | None = None
) -> str:
    """Draw what ran between two times.

    A launch begins with the first letter of its label and goes on as a line; one without duration leaves no trace,
    unless it was skipped (×) where nothing else ran.

    Args:
        entries: in any order; streams are drawn in the order of their names.
        width: columns of the time axis.
        start_ms: left edge.
        end_ms: right edge; None ends with the last launch.

    Raises:
        ValueError: if there is no column or no time to draw.
    """
    known = sorted(entries, key=lambda entry: (entry.start_ms, entry.end_ms))
    if end_ms is None:
        end_ms = max((entry.end_ms for entry in known), default=start_ms)
    if width < 1:
        raise ValueError(f"width must be at least 1 column, got {width}; a terminal has 80 or more")
    if end_ms <= start_ms:
        raise ValueError(f"end_ms must lie behind start_ms = {start_ms}, got {end_ms}; there is nothing to draw")
    names = sorted({entry.stream for entry in known})
    margin = max(map(len, names), default=0)
    columns_per_ms = width / (end_ms - start_ms)
    rows = [
        f"{name:>{margin}} {_row([entry for entry in known if entry.stream == name], width, start_ms, columns_per_ms)}"
        for name in names
    ]
    return "\n".join([*rows, f"{'ms':>{margin}} {_axis(width, start_ms, columns_per_ms)}".rstrip()])


def _row(entries: Sequence[TimelineEntry], width: int, start_ms: float, columns_per_ms: float) -> str:
    cells = [_IDLE] * width
    for entry in entries:
        first = (entry.start_ms - start_ms) * columns_per_ms
        end = (entry.end_ms - start_ms) * columns_per_ms
        if end < 0 or first >= width:
            continue
        column = int(max(first, 0.0))
        if entry.skipped:
            if cells[column] == _IDLE:
                cells[column] = _SKIPPED
        elif end > first:
            for index in range(column, min(max(round(end), column + 1), width)):
                cells[index] = _RUNNING
            if first >= 0:
                cells[column] = entry.label[:1] or _RUNNING
    return "".join(cells)


def _axis(width: int, start_ms: float, columns_per_ms: float) -> str:
    """Round numbers of milliseconds, each at its column."""
    step_ms = _step_ms(_LEAST_TICK_COLUMNS / columns_per_ms)
    axis = ""
    index = math.ceil(start_ms / step_ms)
    while (column := round((index * step_ms - start_ms) * columns_per_ms)) < width:
        axis = axis.ljust(column) + f"{index * step_ms:g}"
        index += 1
    return axis


def _step_ms(least_ms: float) -> float:
    """The smallest of 1, 2, 5, 10, ... and their parts and multiples by ten that is at least `least_ms`."""
    power = 1e-6
    while True:
        for factor in (1, 2, 5):
            if factor * power >= least_ms:
                return factor * power
        power *= 10
