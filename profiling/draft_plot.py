"""The plot of a comparison of drafts: expected speed-ups by kind of text.

Knows nothing of how they were found.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from models import new_figure
from profiling.draft_comparison import ExpectedSpeed, JudgedDraft, VerifyingLaw, expected_speeds

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_GROUP_WIDTH = 0.8


def write_plot(drafts: Sequence[JudgedDraft], path: Path) -> None:
    """Write one group of bars for each law: a bar a draft and mode.

    Raises:
        MissingDependencyError: if matplotlib is not installed.
    """
    figure = new_figure(width_inches=15, height_inches=5)
    speeds = [speed for draft in drafts for speed in expected_speeds(draft)]
    laws = figure.subplots(1, len(VerifyingLaw), sharey=True)
    for axes, law in zip(laws, VerifyingLaw, strict=True):
        _draw_law(axes, [speed for speed in speeds if speed.law is law], [draft.name for draft in drafts])
        axes.set_title(law if law is VerifyingLaw.GREEDY else f"{law}, temperature 1", fontsize=10)
    handles, labels = laws[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(drafts), fontsize=8)
    figure.savefig(path)


def _draw_law(axes: Axes, speeds: Sequence[ExpectedSpeed], names: Sequence[str]) -> None:
    kinds = list(dict.fromkeys(speed.kind for speed in speeds))
    width = _GROUP_WIDTH / (2 * len(names))
    for number, name in enumerate(names):
        own = {speed.kind: speed for speed in speeds if speed.draft == name}
        chosen = [(place, own[kind]) for place, kind in enumerate(kinds) if kind in own]
        for half, mode in enumerate(("sequential", "pipelined")):
            values = [speed.sequential if mode == "sequential" else speed.pipelined or 0.0 for _, speed in chosen]
            left = (2 * number + half + 0.5) * width - _GROUP_WIDTH / 2
            axes.bar(
                [place + left for place, _ in chosen],
                values,
                width,
                color=f"C{number}",
                alpha=1.0 if half else 0.55,
                label=f"{name}, {mode}{', at most' if half else ''}",
            )
    axes.axhline(1.0, color="grey", linewidth=0.8)
    axes.set_xticks(range(len(kinds)), kinds)
    axes.set_ylabel("expected speed over plain decoding")
