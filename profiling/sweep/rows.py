"""The figures of a sweep: a row for each cell, kind of prompt and temperature, and the noise they stand in.

Owns the paired ratios and their medians. Knows nothing of how runs are made or what is to be recommended.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from profiling.sweep.acceptance import Acceptance
from profiling.sweep.run import PLAIN, PLAIN_AGAIN, Cell, SweepRun, Turn
from runtime import Mode

ALL_KINDS = "all"


@dataclass(frozen=True, kw_only=True)
class SweepRow:
    """One cell on some prompts at one temperature."""

    temperature: float
    kind: str
    """A kind of prompt, or `all`."""
    mode: Mode
    gamma: int | None
    """None where nothing is proposed, or where the runtime chooses."""
    speedups: tuple[float, ...]
    """Over plain decoding, turn by turn: rows of one kind and temperature have the same turns."""
    num_wins: int
    """Turns in which it was faster than both plain runs."""
    tpot_ms: float
    """Milliseconds a token, the median."""
    acceptance: Acceptance
    """Of all rounds together."""
    identical_to_plain: bool
    """Whether every output was."""

    @property
    def median(self) -> float:
        """Of the turns' ratios."""
        return statistics.median(self.speedups)

    @property
    def round_ms(self) -> float:
        """Milliseconds of a round."""
        return self.tpot_ms * self.acceptance.tokens_per_round

    def over(self, other: SweepRow) -> float:
        """How many times as fast as another row of the same turns, the median of the turns' ratios."""
        return statistics.median(own / others for own, others in zip(self.speedups, other.speedups, strict=True))

    def as_dict(self) -> dict[str, object]:
        """Every figure, ready for JSON."""
        acceptance = self.acceptance
        return {
            "temperature": self.temperature,
            "kind": self.kind,
            "mode": self.mode.value,
            "gamma": self.gamma,
            "draft_acceptance_rate": acceptance.rate,
            "mean_acceptance_length": acceptance.mean_length,
            "speedup": self.median,
            "lowest_speedup": min(self.speedups),
            "highest_speedup": max(self.speedups),
            "speedups": list(self.speedups),
            "num_wins": self.num_wins,
            "tpot_ms": self.tpot_ms,
            "round_ms": self.round_ms,
            "tokens_per_round": acceptance.tokens_per_round,
            "acceptance_rate_per_position": list(acceptance.rate_per_position),
            "identical_to_plain": self.identical_to_plain,
        }


@dataclass(frozen=True, kw_only=True)
class Noise:
    """How far two plain runs of one turn differ, as a share of the faster: nothing smaller can be told apart."""

    median: float
    highest: float


def noise_of(runs: Sequence[SweepRun]) -> Noise:
    """Over all turns; every turn has both plain runs."""
    differences = [
        max(plain.tpot_ms, again.tpot_ms) / min(plain.tpot_ms, again.tpot_ms) - 1
        for own in _by_turn(runs).values()
        for plain, again in ((own[PLAIN], own[PLAIN_AGAIN]),)
    ]
    return Noise(median=statistics.median(differences), highest=max(differences))


def num_different(runs: Sequence[SweepRun]) -> int:
    """Outputs that are not the first plain run's of their turn, which none may be."""
    by_turn = _by_turn(runs)
    return sum(run.token_ids != by_turn[run.turn][PLAIN].token_ids for run in runs)


def sweep_rows(runs: Sequence[SweepRun]) -> list[SweepRow]:
    """By temperature, and in it by kind, then over all kinds where there are several: plain decoding first."""
    by_turn = _by_turn(runs)
    rows = []
    for temperature in dict.fromkeys(turn.temperature for turn in by_turn):
        turns = [turn for turn in by_turn if turn.temperature == temperature]
        kinds = sorted({turn.kind for turn in turns}, key=list(type(turns[0].kind)).index)
        groups = [(kind.value, [turn for turn in turns if turn.kind is kind]) for kind in kinds]
        if len(kinds) > 1:
            groups.append((ALL_KINDS, turns))
        for kind_name, group in groups:
            cells = [cell for cell in by_turn[group[0]] if cell != PLAIN_AGAIN]
            for cell in sorted(cells, key=lambda cell: (list(Mode).index(cell.mode), cell.gamma or 0)):
                rows.append(_row(temperature, kind_name, cell, [by_turn[turn] for turn in group]))
    return rows


def _row(temperature: float, kind: str, cell: Cell, turns: Sequence[dict[Cell, SweepRun]]) -> SweepRow:
    # The second plain run is a sample of plain decoding as good as the first.
    own = [(turn[PLAIN], turn[PLAIN_AGAIN]) if cell == PLAIN else (turn[cell],) for turn in turns]
    times_ms = [statistics.fmean(run.tpot_ms for run in runs) for runs in own]
    both_ms = [(turn[PLAIN].tpot_ms, turn[PLAIN_AGAIN].tpot_ms) for turn in turns]
    return SweepRow(
        temperature=temperature,
        kind=kind,
        mode=cell.mode,
        gamma=cell.gamma,
        speedups=tuple(statistics.fmean(plain) / time for plain, time in zip(both_ms, times_ms, strict=True)),
        num_wins=sum(time < min(plain) for plain, time in zip(both_ms, times_ms, strict=True)),
        tpot_ms=statistics.median(times_ms),
        acceptance=Acceptance.of(counts for runs in own for run in runs for counts in run.rounds),
        identical_to_plain=all(
            run.token_ids == turn[PLAIN].token_ids for turn, runs in zip(turns, own, strict=True) for run in runs
        ),
    )


def _by_turn(runs: Sequence[SweepRun]) -> dict[Turn, dict[Cell, SweepRun]]:
    by_turn: dict[Turn, dict[Cell, SweepRun]] = {}
    for run in runs:
        by_turn.setdefault(run.turn, {})[run.cell] = run
    return by_turn
