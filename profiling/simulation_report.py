"""What a simulated grid says, as text and as JSON.

Owns tables and totals. Knows nothing of how the grid was run.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from profiling.simulation_grid import Grid, PointResult, SimulatedPlan
from scheduler import RoundMode, expected_tokens

_LETTERS = {RoundMode.PLAIN: "-", RoundMode.SEQUENTIAL: "s", RoundMode.PIPELINED: "p"}
_AIM = 0.03


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The grid in a few figures; shares of 1."""

    num_points: int
    worst_loss: float
    """Of the speed model's choice against the fastest setting at its point."""
    median_loss: float
    num_beyond_aim: int
    """Points at which the choice loses more than 3 %."""
    worst_model_error: float
    """Of what the model promises of a setting, against what it came to; over all settings that were decoded in full."""
    median_model_error: float
    worst_noise: float
    """Standard error of the choice against the fastest setting, over the texts."""
    median_noise: float
    worst_formula_error: float
    """Of E(gamma, alpha) / (gamma c + 1) for sequential decoding, where further tokens of a verify cost nothing."""
    best_left_out: float
    """The fastest of the settings that were left out, but for a sample, as a share of the fastest of its mode."""


def summarize(results: Sequence[PointResult]) -> Summary:
    """The figures of a grid."""
    losses = [result.loss for result in results]
    errors = [_model_error(plan) for result in results for plan in {*result.by_mode.values(), result.choice}]
    noises = [_noise(result.choice, result.best) for result in results]
    return Summary(
        num_points=len(results),
        worst_loss=max(losses),
        median_loss=statistics.median(losses),
        num_beyond_aim=sum(loss > _AIM for loss in losses),
        worst_model_error=max(errors),
        median_model_error=statistics.median(errors),
        worst_noise=max(noises),
        median_noise=statistics.median(noises),
        worst_formula_error=max((_formula_error(result) for result in results), default=0.0),
        best_left_out=max(result.left_out for result in results),
    )


def formula_speed_up(gamma: int, acceptance: float, draft_ratio: float) -> float:
    """Speed-up of sequential speculation over plain decoding where a verify costs the same at every width.

    Theorem 3.8 of Leviathan et al., 2023 (https://arxiv.org/abs/2211.17192).
    """
    return expected_tokens(gamma, acceptance) / (gamma * draft_ratio + 1)


def _model_error(simulated: SimulatedPlan) -> float:
    return abs(simulated.promised_tokens_per_ms / simulated.tokens_per_ms - 1)


def _noise(one: SimulatedPlan, other: SimulatedPlan) -> float:
    """Standard error of the mean ratio, over texts that both decoded."""
    ratios = [mine / theirs for mine, theirs in zip(one.text_tokens_per_ms, other.text_tokens_per_ms, strict=True)]
    return statistics.stdev(ratios) / math.sqrt(len(ratios)) if len(ratios) > 1 else 0.0


def _formula_error(result: PointResult) -> float:
    if result.point.extra_ratio:
        return 0.0
    plan = result.by_mode[RoundMode.SEQUENTIAL].plan
    formula = formula_speed_up(plan.gamma, result.point.acceptance, result.point.draft_ratio)
    return abs(formula / result.speed_up(RoundMode.SEQUENTIAL) - 1)


def format_report(results: Sequence[PointResult]) -> str:
    """Maps of each machine, and the totals."""
    parts = []
    for extra_ratio, contention in sorted({(result.point.extra_ratio, result.point.contention) for result in results}):
        chosen = [r for r in results if (r.point.extra_ratio, r.point.contention) == (extra_ratio, contention)]
        parts.append(
            f"both lanes x{contention:g} while both run; further tokens of a verify {extra_ratio:.1%} of the first\n"
            + _side_by_side(
                _map("fastest, over plain", chosen, _fastest_cell),
                _map("pipelined over sequential", chosen, _overlap_cell),
            )
        )
    parts.append("rows: acceptance; columns: draft step over verify; - plain, s sequential, p pipelined is fastest")
    return "\n\n".join([*parts, format_summary(summarize(results))])


def format_summary(summary: Summary) -> str:
    """The totals in words."""
    return "\n".join(
        [
            f"choice of the controller against the fastest setting, {summary.num_points} points: "
            f"loses {summary.median_loss:.1%} (median), {summary.worst_loss:.1%} at worst; "
            f"more than {_AIM:.0%} at {summary.num_beyond_aim}",
            f"its promises are off by {summary.median_model_error:.1%} (median), "
            f"{summary.worst_model_error:.1%} at worst",
            f"E(gamma, alpha) / (gamma c + 1) is off by {summary.worst_formula_error:.1%} at worst for sequential "
            "rounds whose verify costs the same at every width",
            f"noise of choice against fastest: {summary.median_noise:.1%} (median), {summary.worst_noise:.1%} at worst",
            f"of the settings that the model leaves out, the best of a sample came to {summary.best_left_out:.2f} of "
            "the fastest of its mode",
        ]
    )


def _fastest_cell(result: PointResult) -> str:
    mode = result.best.plan.mode
    return f"{result.speed_up(mode):.2f}{_LETTERS[mode]}"


def _overlap_cell(result: PointResult) -> str:
    return f"{result.overlap_gain:.2f}"


def _map(title: str, results: Sequence[PointResult], cell: Callable[[PointResult], str]) -> list[str]:
    cells = {(result.point.acceptance, result.point.draft_ratio): cell(result) for result in results}
    acceptances = sorted({acceptance for acceptance, _ in cells})
    ratios = sorted({ratio for _, ratio in cells})
    lines = [title, "      " + "".join(f"{ratio:>7g}" for ratio in ratios)]
    lines += [
        f"{acceptance:>6g}" + "".join(f"{cells.get((acceptance, ratio), ''):>7}" for ratio in ratios)
        for acceptance in acceptances
    ]
    return lines


def _side_by_side(left: Sequence[str], right: Sequence[str]) -> str:
    width = max(map(len, left)) + 3
    return "\n".join(f"{one:<{width}}{other}" for one, other in zip(left, right, strict=True))


def as_json(results: Sequence[PointResult], grid: Grid) -> dict[str, Any]:
    """All that was simulated, for programs."""
    return {
        "num_misses": grid.num_misses,
        "num_texts": grid.num_texts,
        "summary": asdict(summarize(results)),
        "points": [
            {
                **asdict(result.point),
                "loss": result.loss,
                "left_out": result.left_out,
                "choice": _plan_json(result.choice),
                "fastest": {mode.value: _plan_json(simulated) for mode, simulated in result.by_mode.items()},
            }
            for result in results
        ],
    }


def _plan_json(simulated: SimulatedPlan) -> dict[str, Any]:
    return {
        **asdict(simulated.plan),
        "tokens_per_s": simulated.tokens_per_ms * 1e3,
        "promised_tokens_per_s": simulated.promised_tokens_per_ms * 1e3,
        "text_tokens_per_s": [rate * 1e3 for rate in simulated.text_tokens_per_ms],
    }
