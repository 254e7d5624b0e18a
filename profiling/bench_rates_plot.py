"""The plot of a benchmark with its peers: tokens a second of every system on every kind of prompt.

Knows nothing of how the runs were made.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from models import new_figure
from profiling.bench_run import OWN
from profiling.bench_summary import SummaryRow

_COLOURS = {OWN: "tab:blue", "transformers": "tab:orange", "llama.cpp": "tab:green", "openvino": "tab:purple"}
_INCHES_PER_BAR = 0.28


def write_rates_plot(rows: Sequence[SummaryRow], path: Path) -> None:
    """Write a panel for each number of threads and kind: a bar for the median, a line from lowest to highest.

    Raises:
        MissingDependencyError: if matplotlib is not installed.
        ValueError: if there is nothing to draw.
    """
    greedy = [row for row in rows if row.temperature == 0]
    if not greedy:
        raise ValueError("nothing ran at temperature 0, so there are no rates to draw beside each other")
    numbers_of_threads = sorted({row.threads for row in greedy})
    kinds = list(dict.fromkeys(row.kind for row in greedy))
    systems = list(dict.fromkeys(row.system for row in greedy))
    height = (1.2 + _INCHES_PER_BAR * len(systems)) * len(numbers_of_threads)
    figure = new_figure(width_inches=2.6 + 3.6 * len(kinds), height_inches=height)
    panels = figure.subplots(len(numbers_of_threads), len(kinds), sharex=True, sharey=True, squeeze=False)
    for line, threads in enumerate(numbers_of_threads):
        for column, kind in enumerate(kinds):
            axes = panels[line, column]
            for row in greedy:
                if (row.threads, row.kind) != (threads, kind):
                    continue
                place = systems.index(row.system)
                axes.barh(place, row.tokens_per_s, color=_COLOURS.get(row.owner, "grey"), height=0.7)
                axes.plot([row.lowest_tokens_per_s, row.highest_tokens_per_s], [place, place], "k-", linewidth=1)
            axes.set_yticks(range(len(systems)), systems, fontsize=7)
            axes.set_title(f"{kind}, {threads} thread(s)", fontsize=10)
            axes.grid(axis="x", alpha=0.3)
    for axes in panels[-1]:
        axes.set_xlabel("tokens a second", fontsize=8)
    panels[0, 0].invert_yaxis()
    figure.savefig(path)
