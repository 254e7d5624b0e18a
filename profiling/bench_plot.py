"""The plot of a benchmark: one dot for each prompt, how many times as fast as plain decoding it was answered.

Knows nothing of how the runs were made.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from models import new_figure
from profiling.bench_speedups import PromptSpeedup, summarise_speedups

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ALL_KINDS = "all"
_LINES = {0.95: ":", 1.0: "-", 1.15: "--"}
"""What must not be undercut, plain decoding, and what a median should reach."""
_GROUP_WIDTH = 0.8


def write_plot(speedups: Sequence[PromptSpeedup], path: Path) -> None:
    """Write a panel for each number of threads and temperature: dots for prompts, bars for their medians.

    Raises:
        MissingDependencyError: if matplotlib is not installed.
        ValueError: if there is nothing to draw.
    """
    if not speedups:
        raise ValueError("no system speculated beside plain decoding, so there is no speed-up to draw")
    numbers_of_threads = sorted({speedup.threads for speedup in speedups})
    temperatures = list(dict.fromkeys(speedup.temperature for speedup in speedups))
    figure = new_figure(width_inches=8 * len(temperatures), height_inches=5 * len(numbers_of_threads))
    panels = figure.subplots(len(numbers_of_threads), len(temperatures), sharey=True, squeeze=False)
    for row, threads in enumerate(numbers_of_threads):
        for column, temperature in enumerate(temperatures):
            axes = panels[row, column]
            shown = [
                speedup for speedup in speedups if (speedup.threads, speedup.temperature) == (threads, temperature)
            ]
            _draw_panel(axes, shown)
            axes.set_title(f"temperature {temperature:g}, {threads} thread(s)", fontsize=10)
    panels[0, 0].legend(fontsize=7)
    figure.savefig(path)


def _draw_panel(axes: Axes, speedups: Sequence[PromptSpeedup]) -> None:
    for value, style in _LINES.items():
        axes.axhline(value, color="grey", linewidth=0.8, linestyle=style)
    rows = summarise_speedups(speedups)
    kinds = list(dict.fromkeys(row.kind or ALL_KINDS for row in rows))
    systems = list(dict.fromkeys(row.system for row in rows))
    width = _GROUP_WIDTH / len(systems)
    for number, system in enumerate(systems):
        label: str | None = system
        for row in (row for row in rows if row.system == system):
            middle = kinds.index(row.kind or ALL_KINDS) + (number + 0.5) * width - _GROUP_WIDTH / 2
            half = 0.4 * width
            axes.hlines(row.median, middle - half, middle + half, color=f"C{number}", linewidth=3)
            if row.kind is not None or len(kinds) == 1:
                places = _spread(middle, half, len(row.speedups))
                axes.plot(places, row.speedups, "o", color=f"C{number}", alpha=0.6, markersize=5, label=label)
                label = None
    axes.set_xticks(range(len(kinds)), kinds)
    axes.set_ylabel("speed over plain decoding")


def _spread(middle: float, half: float, count: int) -> list[float]:
    """Places beside each other, so that no dot hides another."""
    return [middle + half * (2 * (index + 0.5) / count - 1) for index in range(count)]
