"""A picture of a few rounds: what ran on either lane, and what became of it.

Owns the drawing: a row for each lane with a bar a launch, a row for the rounds as the host saw them. Knows nothing of
how rounds are chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from models import new_figure
from profiling.trace.shown_rounds import chosen_rounds, rounds_between
from profiling.trace.traced_round import (
    DRAFT,
    TARGET,
    RoundKind,
    Stretch,
    TracedRound,
    discarded,
    of_lane,
    rollbacks,
    shown_stage,
)
from scheduler import LaunchSpan, Recording, Stage

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

STAGE_COLOURS = {
    Stage.PREFILL: "#cc79a7",
    Stage.DRAFT: "#e69f00",
    Stage.VERIFY: "#0072b2",
    Stage.SETTLE: "#f0e442",
    Stage.ROLLBACK: "#d55e00",
    Stage.COMMIT: "#009e73",
    Stage.OTHER: "#999999",
}
"""After Okabe and Ito, "Color universal design" (2008): told apart by all kinds of eyes."""
_ROWS = {"rounds": 2.0, TARGET: 1.0, DRAFT: 0.0}
"""Heights at which the rows are centred."""
_BAR_HEIGHT = 0.56
_LEAST_SHARE = 0.002
"""Least width of a bar, of the picture's: a rollback takes microseconds."""
_HATCH = "////"
_NAMES = {Stage.SETTLE: "settle, nothing rolled back"}
_ARROW_NAME = "verdict to rollback"


def check_picture(path: Path) -> None:
    """Refuse what could not be drawn, before there is a recording.

    Raises:
        MissingDependencyError: if matplotlib is not installed.
        ValueError: if matplotlib knows no such format.
    """
    known = new_figure().canvas.get_supported_filetypes()
    if path.suffix.removeprefix(".").lower() not in known:
        raise ValueError(f"{path} must end in a format that matplotlib can write: .{', .'.join(sorted(known))}")


def draw_recording(
    recording: Recording, path: Path, *, rounds: tuple[int, int] | None = None, title: str | None = None
) -> tuple[int, int]:
    """Write a picture of some rounds, in the format that the name of the file ends in.

    Args:
        recording: what was recorded.
        path: the file.
        rounds: numbers of the first and the last round; None takes some that show a hit, a miss and a rollback.
        title: above it.

    Returns:
        The numbers of the first and the last round that are shown.

    Raises:
        MissingDependencyError: if matplotlib is not installed.
        ValueError: if there is no such round, or matplotlib knows no such format.
        OSError: if the file cannot be written.
    """
    chosen = chosen_rounds(recording) if rounds is None else rounds_between(recording, *rounds)
    stretch = _stretch(chosen)
    figure = new_figure(width_inches=12, height_inches=4)
    axes = figure.subplots()
    thrown_away, rolled_back = discarded(recording), rollbacks(recording)
    for lane in (TARGET, DRAFT):
        for launch in of_lane(recording.launches, lane):
            stage = shown_stage(launch, rolled_back)
            _draw_launch(axes, launch, stretch, stage, is_discarded=launch.number in thrown_away)
    for traced in chosen:
        _draw_round(axes, traced, stretch)
    arrows = [_draw_arrow(axes, traced, stretch) for traced in chosen]
    _label(axes, stretch, title)
    figure.legend(
        handles=_legend(axes, has_arrows=any(arrows)), loc="outside lower center", ncols=8, fontsize=8, frameon=False
    )
    figure.savefig(path)
    return chosen[0].span.number, chosen[-1].span.number


def _stretch(rounds: Sequence[TracedRound]) -> Stretch:
    """From the first of them to where the last one's verdict was taken in on both lanes."""
    ends_ms = [rounds[-1].span.verdict_ms]
    ends_ms += [launch.end_ms for launch in (rounds[-1].settle,) if launch is not None and launch.end_ms is not None]
    start_ms = rounds[0].span.start_ms
    # Hand-made or damaged recordings may have rounds without any length.
    return Stretch(start_ms=start_ms, end_ms=max(*ends_ms, start_ms + 1e-3))


def _draw_launch(axes: Axes, launch: LaunchSpan, stretch: Stretch, stage: Stage, *, is_discarded: bool) -> None:
    if launch.start_ms is None or launch.end_ms is None:
        return
    if launch.end_ms <= stretch.start_ms or launch.start_ms > stretch.end_ms:
        return
    start_ms = max(launch.start_ms, stretch.start_ms)
    width_ms = max(min(launch.end_ms, stretch.end_ms) - start_ms, _LEAST_SHARE * stretch.span_ms)
    axes.broken_barh(
        [(start_ms - stretch.start_ms, width_ms)],
        (_ROWS[launch.lane] - _BAR_HEIGHT / 2, _BAR_HEIGHT),
        facecolor=STAGE_COLOURS[stage],
        edgecolor="white",
        # A bar that is as narrow as its edge would be nothing but edge.
        linewidth=0.6 if width_ms > 2 * _LEAST_SHARE * stretch.span_ms else 0.0,
        hatch=_HATCH if is_discarded else None,
        # What is short comes last, lest it be hidden.
        zorder=3 if stage in (Stage.SETTLE, Stage.ROLLBACK, Stage.COMMIT) else 2,
    )


def _draw_round(axes: Axes, traced: TracedRound, stretch: Stretch) -> None:
    span = traced.span
    start_ms, verdict_ms = span.start_ms - stretch.start_ms, span.verdict_ms - stretch.start_ms
    axes.axvline(verdict_ms, color="#555555", linewidth=0.7, linestyle=":", zorder=1)
    axes.broken_barh(
        [(start_ms, verdict_ms - start_ms)],
        (_ROWS["rounds"] - _BAR_HEIGHT / 2, _BAR_HEIGHT),
        facecolor="#f2f2f2",
        edgecolor="#555555",
        linewidth=0.6,
    )
    axes.annotate(
        f"round {span.number}: {_outcome(traced)}",
        ((start_ms + verdict_ms) / 2, _ROWS["rounds"]),
        ha="center",
        va="center",
        fontsize=8,
    )


def _draw_arrow(axes: Axes, traced: TracedRound, stretch: Stretch) -> bool:
    """From a miss's verdict to the rollback; whether there is one."""
    settle, judged_ms = traced.settle, traced.judged_ms
    if traced.kind is not RoundKind.MISS or settle is None or settle.start_ms is None or judged_ms is None:
        return False
    axes.annotate(
        "",
        xytext=(judged_ms - stretch.start_ms, _ROWS[TARGET] - _BAR_HEIGHT / 2),
        xy=(settle.start_ms - stretch.start_ms, _ROWS[DRAFT] + _BAR_HEIGHT / 2),
        arrowprops={"arrowstyle": "-|>", "color": STAGE_COLOURS[Stage.ROLLBACK], "linewidth": 1.4},
    )
    return True


def _outcome(traced: TracedRound) -> str:
    span = traced.span
    if traced.kind is RoundKind.PLAIN:
        return "plain"
    accepted = f"{span.num_accepted} of {span.num_proposed} accepted"
    if traced.kind is RoundKind.NO_GUESS:
        return accepted
    return f"{accepted},\n{'hit' if traced.kind is RoundKind.HIT else 'miss, rollback'}"


def _label(axes: Axes, stretch: Stretch, title: str | None) -> None:
    axes.set_xlim(-0.005 * stretch.span_ms, 1.005 * stretch.span_ms)
    axes.set_ylim(min(_ROWS.values()) - 0.5, max(_ROWS.values()) + 0.5)
    axes.set_yticks(list(_ROWS.values()), list(_ROWS))
    axes.set_xlabel("ms from the first round's start")
    axes.spines[["top", "right"]].set_visible(False)
    if title is not None:
        axes.set_title(title, fontsize=10)


def _legend(axes: Axes, *, has_arrows: bool) -> list[Artist]:
    """What is there, and no more."""
    from matplotlib.colors import to_hex
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    drawn = {to_hex(tuple(colour)) for bars in axes.collections for colour in np.atleast_2d(bars.get_facecolor())}
    handles: list[Artist] = [
        Patch(facecolor=colour, label=_NAMES.get(stage, stage.value))
        for stage, colour in STAGE_COLOURS.items()
        if colour in drawn
    ]
    if any(bars.get_hatch() for bars in axes.collections):
        handles.append(
            Patch(facecolor=STAGE_COLOURS[Stage.DRAFT], edgecolor="white", hatch=_HATCH, label="discarded lookahead")
        )
    handles.append(Line2D([], [], color="#555555", linewidth=0.7, linestyle=":", label="verdict at the host"))
    if has_arrows:
        handles.append(Line2D([], [], color=STAGE_COLOURS[Stage.ROLLBACK], linewidth=1.4, label=_ARROW_NAME))
    return handles
