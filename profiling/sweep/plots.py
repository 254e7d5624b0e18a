"""The plots of a sweep: speed over gamma, acceptance by position in the block, acceptance along the output.

Owns how figures are drawn. Knows nothing of how they were measured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from models import new_figure
from profiling.sweep.acceptance import acceptance_along
from profiling.sweep.report import SweepReport
from profiling.sweep.rows import ALL_KINDS, SweepRow
from profiling.sweep.run import Cell
from runtime import Mode

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_NUM_PARTS = 8
"""Of an output."""
_DrawPanel = Callable[[SweepReport, float, Mode, "Axes"], None]


def write_plots(report: SweepReport, folder: Path, name: str) -> dict[str, Path]:
    """Write all plots as `NAME-WHAT.png`; returns their paths by what they show, in the order of a report.

    Raises:
        MissingDependencyError: if matplotlib is not installed.
    """
    draw: Mapping[str, _DrawPanel] = {
        "speedup": _draw_speedup,
        "position": _draw_positions,
        "length": _draw_length,
    }
    paths = {}
    for what, draw_panel in draw.items():
        paths[what] = folder / f"{name}-{what}.png"
        _write(report, draw_panel, paths[what])
    return paths


def _write(report: SweepReport, draw_panel: _DrawPanel, path: Path) -> None:
    """A panel for each temperature and mode."""
    temperatures, modes = report.settings.temperatures, report.settings.modes
    figure = new_figure(width_inches=6 * len(modes), height_inches=4 * len(temperatures))
    panels = figure.subplots(len(temperatures), len(modes), sharey=True, squeeze=False)
    for number, temperature in enumerate(temperatures):
        for place, mode in enumerate(modes):
            axes = panels[number, place]
            draw_panel(report, temperature, mode, axes)
            axes.set_title(f"{mode}, temperature {temperature:g}", fontsize=10)
            axes.grid(alpha=0.3)
    panels[0, 0].legend(fontsize=8)
    figure.savefig(path)


def _draw_speedup(report: SweepReport, temperature: float, mode: Mode, axes: Axes) -> None:
    """Lines are medians, dots are prompts; the runtime's own choice stands to the right of all gammas."""
    auto = _by_kind(report, temperature, Mode.AUTO)
    place = report.settings.gammas[-1] + 1
    axes.axhline(1.0, color="grey", linewidth=1, label="plain decoding")
    axes.axhspan(1 - report.noise.median, 1 + report.noise.median, color="grey", alpha=0.2, linewidth=0)
    for kind, rows in _by_kind(report, temperature, mode).items():
        gammas = [row.gamma or 0 for row in rows]
        is_all = kind == ALL_KINDS
        color = "black" if is_all else f"C{[str(known) for known in report.settings.kinds].index(kind)}"
        axes.plot(gammas, [row.median for row in rows], "--" if is_all else "-", color=color, label=kind, linewidth=2)
        axes.plot(place, [row.median for row in auto[kind]], "D", color=color, markersize=6)
        if not is_all:
            for row in rows:
                axes.plot([row.gamma or 0] * len(row.speedups), row.speedups, "o", color=color, alpha=0.4, markersize=4)
    axes.set_xticks([*report.settings.gammas, place], [*map(str, report.settings.gammas), "auto"])
    axes.set_xlabel("gamma: tokens proposed a round")
    axes.set_ylabel("speed over plain decoding")


def _draw_positions(report: SweepReport, temperature: float, mode: Mode, axes: Axes) -> None:
    """Of the largest gamma, which has all positions."""
    for kind, rows in _by_kind(report, temperature, mode).items():
        rates = rows[-1].acceptance.rate_per_position
        positions = range(1, len(rates) + 1)
        axes.plot(
            positions,
            [100 * rate for rate in rates],
            "--" if kind == ALL_KINDS else "o-",
            color="black" if kind == ALL_KINDS else None,
            label=kind,
        )
    axes.set_ylim(0, 103)
    axes.set_xticks(range(1, report.settings.gammas[-1] + 1))
    axes.set_xlabel(f"position in a block of {report.settings.gammas[-1]}")
    axes.set_ylabel("accepted with all before it, %")


def _draw_length(report: SweepReport, temperature: float, mode: Mode, axes: Axes) -> None:
    """Of the gamma that is the fastest in this mode."""
    best = next(found.best for found in report.overall if found.temperature == temperature and found.mode is mode)
    cell = Cell(mode=mode, gamma=best.gamma)
    part_tokens = report.settings.max_tokens / _NUM_PARTS
    for kind in report.settings.kinds:
        rates = acceptance_along(
            [
                run.rounds
                for run in report.runs
                if run.cell == cell and run.turn.kind is kind and run.turn.temperature == temperature
            ],
            num_tokens=report.settings.max_tokens,
            num_parts=_NUM_PARTS,
        )
        known = [((place + 0.5) * part_tokens, 100 * rate) for place, rate in enumerate(rates) if rate is not None]
        axes.plot([tokens for tokens, _ in known], [rate for _, rate in known], "o-", label=kind.value)
    axes.set_ylim(0, 103)
    axes.set_xlim(0, report.settings.max_tokens)
    axes.set_xlabel(f"tokens of the output (gamma {best.gamma})")
    axes.set_ylabel("accepted proposals, %")


def _by_kind(report: SweepReport, temperature: float, mode: Mode) -> dict[str, list[SweepRow]]:
    """Rows in the order of their gammas."""
    rows = [row for row in report.rows if (row.temperature, row.mode) == (temperature, mode)]
    return {kind: [row for row in rows if row.kind == kind] for kind in dict.fromkeys(row.kind for row in rows)}
