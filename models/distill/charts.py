"""Plots of a training run and of an evaluation, as PNG files.

Owns the drawing. Knows nothing of how the figures came about.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from models.distill.evaluation import Evaluation, Figures
from models.distill.run_state import HistoryPoint
from models.figure import new_figure
from models.user_cache import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TRAINING_CHART_FILE = "training.png"
EVALUATION_CHART_FILE = "evaluation.png"

_WIDTH_INCHES, _HEIGHT_INCHES = 11.0, 4.5
_BAR_WIDTH = 0.26


def write_training_chart(history: Sequence[HistoryPoint], path: Path) -> None:
    """Held-out acceptance by tokens seen and by minutes, a curve for each of the draft's own steps.

    Raises:
        MissingDependencyError: if matplotlib is not installed.
        ValueError: if there is no point to draw.
        OSError: if the file cannot be written.
    """
    if not history:
        raise ValueError("the history is empty; draw it after the first evaluation")
    figure = new_figure(width_inches=_WIDTH_INCHES, height_inches=_HEIGHT_INCHES)
    by_tokens, by_minutes = figure.subplots(1, 2, sharey=True)
    _draw_curves(by_tokens, history, [point.num_tokens / 1e6 for point in history])
    by_tokens.set_xlabel("million tokens seen")
    by_tokens.set_ylabel("mean of sum min(p, q) on held-out text")
    _draw_curves(by_minutes, history, [point.trained_s / 60 for point in history])
    by_minutes.set_xlabel("minutes of training")
    _save(figure, path)


def write_evaluation_chart(evaluation: Evaluation, path: Path) -> None:
    """Agreement and mean tokens of a round by kind of text.

    Raises:
        MissingDependencyError: if matplotlib is not installed.
        OSError: if the file cannot be written.
    """
    figure = new_figure(width_inches=_WIDTH_INCHES, height_inches=_HEIGHT_INCHES)
    rates, lengths = figure.subplots(1, 2)
    groups = {str(kind): figures for kind, figures in evaluation.by_kind.items()} | {"all": evaluation.overall}
    _draw_bars(
        rates,
        groups,
        {
            "sum min(p, q)": [figures.acceptance for figures in groups.values()],
            "greedy agreement": [figures.greedy_agreement for figures in groups.values()],
            "agreement under shared noise": [figures.shared_noise_agreement for figures in groups.values()],
        },
    )
    rates.set_ylim(0, 1)
    rates.set_title("a round's first proposal", fontsize=10)
    _draw_bars(
        lengths,
        groups,
        {
            "rejection, temperature 1": [figures.rejection_length for figures in groups.values()],
            "greedy": [figures.greedy_length for figures in groups.values()],
            "shared noise, temperature 1": [figures.shared_noise_length for figures in groups.values()],
        },
    )
    lengths.set_ylim(1, evaluation.gamma + 1)
    lengths.set_title(f"mean tokens of a round, gamma {evaluation.gamma}", fontsize=10)
    _save(figure, path)


def _save(figure: Figure, path: Path) -> None:
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    write_atomically(path, picture.getvalue())


def _draw_curves(axes: Axes, history: Sequence[HistoryPoint], places: Sequence[float]) -> None:
    for step in range(len(history[0].held_out_acceptance)):
        label = "first proposal" if step == 0 else f"proposal {step + 1}, on its own features"
        axes.plot(places, [point.held_out_acceptance[step] for point in history], "o-", markersize=3, label=label)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)


def _draw_bars(axes: Axes, groups: dict[str, Figures], series: dict[str, list[float]]) -> None:
    for number, (label, values) in enumerate(series.items()):
        places = [index + (number - 1) * _BAR_WIDTH for index in range(len(groups))]
        bars = axes.bar(places, values, _BAR_WIDTH, label=label)
        axes.bar_label(bars, fmt="%.2f", fontsize=7)
    axes.set_xticks(range(len(groups)), list(groups))
    axes.legend(fontsize=8)
