"""The plot of a simulated grid: where overlap pays, and how close a formula comes.

Knows nothing of how the grid was run.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from models import new_figure
from profiling.simulation_grid import PointResult
from profiling.simulation_report import formula_speed_up
from scheduler import RoundMode

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_CURVES = (0.6, 0.7, 0.8, 0.9)
_GAMMAS = range(1, 9)
_COLOUR_RANGE = (0.7, 1.3)


def write_plot(results: Sequence[PointResult], path: Path) -> None:
    """Write heat maps of pipelined over sequential, one a contention, and curves of speed-up.

    Raises:
        MissingDependencyError: if matplotlib is not installed.
    """
    figure = new_figure(width_inches=15, height_inches=9)
    halves = figure.add_gridspec(2, 1)
    extra_ratios = sorted({result.point.extra_ratio for result in results})
    shown = [result for result in results if result.point.extra_ratio == extra_ratios[-1]]
    contentions = sorted({result.point.contention for result in shown})
    maps = halves[0].subgridspec(1, len(contentions))
    for column, contention in enumerate(contentions):
        chosen = [result for result in shown if result.point.contention == contention]
        _draw_map(figure.add_subplot(maps[0, column]), chosen, contention)
    curves = halves[1].subgridspec(1, len(extra_ratios))
    for column, ratio in enumerate(extra_ratios):
        chosen = [result for result in results if result.point.extra_ratio == ratio]
        _draw_curves(figure.add_subplot(curves[0, column]), chosen, ratio)
    figure.savefig(path)


def _draw_map(axes: Axes, results: Sequence[PointResult], contention: float) -> None:
    acceptances = sorted({result.point.acceptance for result in results})
    ratios = sorted({result.point.draft_ratio for result in results})
    gains = {(result.point.acceptance, result.point.draft_ratio): result.overlap_gain for result in results}
    rows = [[gains[acceptance, ratio] for ratio in ratios] for acceptance in acceptances]
    low, high = _COLOUR_RANGE
    axes.imshow(rows, origin="lower", aspect="auto", cmap="RdYlGn", vmin=low, vmax=high)
    for row, values in enumerate(rows):
        for column, value in enumerate(values):
            axes.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=8)
    axes.set_xticks(range(len(ratios)), [f"{ratio:g}" for ratio in ratios])
    axes.set_yticks(range(len(acceptances)), [f"{acceptance:g}" for acceptance in acceptances])
    axes.set_xlabel("draft step / verify")
    axes.set_ylabel("acceptance")
    axes.set_title(f"pipelined / sequential\nboth lanes x{contention:g} while both run", fontsize=10)


def _draw_curves(axes: Axes, results: Sequence[PointResult], extra_ratio: float) -> None:
    contention = min(result.point.contention for result in results)
    for number, acceptance in enumerate(_CURVES):
        curve = sorted(
            (
                result
                for result in results
                if (result.point.acceptance, result.point.contention) == (acceptance, contention)
            ),
            key=lambda result: result.point.draft_ratio,
        )
        if not curve:
            continue
        ratios = [result.point.draft_ratio for result in curve]
        colour = f"C{number}"
        for mode, style in ((RoundMode.SEQUENTIAL, "o"), (RoundMode.PIPELINED, "^-")):
            speed_ups = [result.speed_up(mode) for result in curve]
            axes.plot(ratios, speed_ups, style, color=colour, label=f"{mode}, acceptance {acceptance:g}")
        formula = [max(formula_speed_up(gamma, acceptance, ratio) for gamma in _GAMMAS) for ratio in ratios]
        axes.plot(ratios, formula, "--", color=colour, linewidth=1)
    axes.axhline(1.0, color="grey", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_xlabel("draft step / verify")
    axes.set_ylabel("speed-up over plain decoding")
    axes.set_title(
        f"further tokens of a verify cost {extra_ratio:.1%} of the first, lanes x{contention:g}\n"
        "dashed: E(gamma, alpha) / (gamma c + 1)",
        fontsize=10,
    )
    axes.legend(fontsize=7, ncols=2)
