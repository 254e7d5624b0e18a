"""What the runs with planted acceptance come to: medians, paired ratios, and a table.

Owns the summary. Knows nothing of how runs are made.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from profiling.planted_lanes import Choice, PlantedRun, PlantedSystem
from profiling.trace.lane_times import BusyShares

Case = tuple[str, float, PlantedSystem]
"""Weight kind, acceptance and system."""


@dataclass(frozen=True, kw_only=True)
class PlantedRow:
    """One system at one acceptance: medians over the prompts, and medians of ratios that were paired by prompt."""

    weights: str
    acceptance: float
    system: PlantedSystem
    choice: Choice
    tokens_per_s: float
    speedup_over_plain: float
    speedup_over_sequential: float | None
    speedup_over_split: float | None
    """Over the sequential loop on the same threads."""
    shares: BusyShares
    realised_acceptance: float | None
    """Of the planted tokens that were compared with the target's own, those that were equal to it."""
    accepted_share: float | None
    """Of the proposed tokens, those that were accepted; a token behind a wrong one counts as proposed."""
    hit_rate: float | None
    """Of the rounds with a guess, those whose block and guess were right."""
    num_discarded: int
    """Lookahead tokens thrown away in all runs."""
    num_tokens: int
    num_rounds: int
    draft_step_ms: float | None
    verify_ms: float
    verify_width: float
    identical_to_plain: bool
    """Whether every run gave the tokens that its target alone gives on the same number of threads."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One choice that was tried before the timed runs."""

    weights: str
    acceptance: float
    system: PlantedSystem
    choice: Choice
    tokens_per_s: float
    chosen: bool


def summarise(
    runs: Mapping[Case, Mapping[int, PlantedRun]],
    choices: Mapping[Case, Choice],
    expected_ids: Mapping[Case, Mapping[int, tuple[int, ...]]],
) -> list[PlantedRow]:
    """A row for each case.

    Args:
        runs: by case and prompt; every system of one acceptance ran on the same prompts.
        choices: what each case drafted.
        expected_ids: what plain decoding gave on the same threads, by case and prompt.
    """
    return [_row(case, runs, choices[case], expected_ids[case]) for case in runs]


def _row(
    case: Case,
    runs: Mapping[Case, Mapping[int, PlantedRun]],
    choice: Choice,
    expected_ids: Mapping[int, tuple[int, ...]],
) -> PlantedRow:
    weights, acceptance, system = case
    own = runs[case]
    every = list(own.values())

    def speedup_over(other: PlantedSystem) -> float:
        base = runs[weights, acceptance, other]
        return statistics.median(run.tokens_per_s / base[prompt].tokens_per_s for prompt, run in own.items())

    speculates = system is not PlantedSystem.PLAIN
    return PlantedRow(
        weights=weights,
        acceptance=acceptance,
        system=system,
        choice=choice,
        tokens_per_s=statistics.median(run.tokens_per_s for run in every),
        speedup_over_plain=speedup_over(PlantedSystem.PLAIN),
        speedup_over_sequential=speedup_over(PlantedSystem.SEQUENTIAL) if speculates else None,
        speedup_over_split=speedup_over(PlantedSystem.SEQUENTIAL_SPLIT) if speculates else None,
        shares=_mean_shares([run.shares for run in every]),
        realised_acceptance=_ratio((run.num_right for run in every), (run.num_judged for run in every)),
        accepted_share=_ratio((run.num_accepted for run in every), (run.num_proposed for run in every)),
        hit_rate=_ratio((run.num_hits for run in every), (run.num_guessed for run in every)),
        num_discarded=sum(run.num_discarded for run in every),
        num_tokens=sum(len(run.token_ids) for run in every),
        num_rounds=sum(run.num_rounds for run in every),
        draft_step_ms=_median(run.draft_step_ms for run in every),
        verify_ms=statistics.median(run.verify_ms for run in every),
        verify_width=statistics.mean(run.verify_width for run in every),
        identical_to_plain=all(run.token_ids == expected_ids[prompt] for prompt, run in own.items()),
    )


def _mean_shares(shares: Sequence[BusyShares]) -> BusyShares:
    """Means, so that they still add up to 1."""
    return BusyShares(
        both=statistics.fmean(share.both for share in shares),
        target_only=statistics.fmean(share.target_only for share in shares),
        draft_only=statistics.fmean(share.draft_only for share in shares),
        neither=statistics.fmean(share.neither for share in shares),
    )


def _ratio(parts: Iterable[int], wholes: Iterable[int]) -> float | None:
    whole = sum(wholes)
    return sum(parts) / whole if whole else None


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


_COLUMNS = ("weights", "planted", "system", "gamma", "lead", "tok/s", "x plain", "x seq.", "x split", "both", "target")
_MORE_COLUMNS = ("draft", "neither", "right", "hits", "step ms", "verify ms", "width")
_LAYOUT = "{:8} {:>7}  {:17} {:>5} {:>4} {:>7} {:>7} {:>6} {:>7}" + " {:>6}" * 6 + " {:>7} {:>9} {:>5}"


def format_planted(rows: Sequence[PlantedRow]) -> str:
    """The summary as a person reads it: speeds, ratios, shares of time, what the draft got right, times of calls."""
    lines = [_LAYOUT.format(*_COLUMNS, *_MORE_COLUMNS)]
    for row in rows:
        shares = row.shares
        line = _LAYOUT.format(
            row.weights,
            f"{row.acceptance:g}",
            row.system,
            row.choice.gamma or "-",
            row.choice.max_lead or "-",
            f"{row.tokens_per_s:.1f}",
            *(_number(x) for x in (row.speedup_over_plain, row.speedup_over_sequential, row.speedup_over_split)),
            *(f"{share:.0%}" for share in (shares.both, shares.target_only, shares.draft_only, shares.neither)),
            *(_number(x) for x in (row.realised_acceptance, row.hit_rate, row.draft_step_ms, row.verify_ms)),
            f"{row.verify_width:.1f}",
        )
        lines.append(line + ("" if row.identical_to_plain else "  TOKENS DIFFER"))
    return "\n".join(lines)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
