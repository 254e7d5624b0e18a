"""Made-up runs of a gamma sweep: a pair that takes as long as it is told."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from profiling.prompts import PromptKind
from profiling.sweep.run import AUTO, Cell, Round, SweepRun, Turn
from profiling.sweep.settings import SweepSettings
from profiling.sweep.turns import sweep_cells, sweep_turns

PLAIN_MS = 20.0
TokenMs = Callable[[Turn, Cell], float]


def run_of(turn: Turn, cell: Cell, tpot_ms: float, *, num_tokens: int = 24, num_accepted: int = 1) -> SweepRun:
    """An output in rounds that each accept so many tokens of their gamma."""
    gamma = cell.gamma or 0
    accepted = min(num_accepted, gamma)
    return SweepRun(
        turn=turn,
        cell=cell,
        tpot_ms=tpot_ms,
        ttft_ms=5.0,
        token_ids=tuple(turn.seed + token for token in range(num_tokens)),
        rounds=(Round(accepted + 1, gamma, accepted),) * (num_tokens // (accepted + 1)),
    )


def planted_runs(
    settings: SweepSettings,
    speedups: dict[int, float] | TokenMs,
    *,
    noise: float = 0.01,
    num_accepted: int = 1,
    auto: float = 1.0,
) -> list[SweepRun]:
    """All runs of a sweep.

    Args:
        settings: which.
        speedups: over plain decoding by gamma, in both modes and for all prompts; or milliseconds a token of any cell.
        noise: by how much the second plain run is slower than the first, as a share.
        num_accepted: of each round.
        auto: speed of mode auto over plain decoding, where `speedups` are by gamma.
    """

    def tpot_ms(turn: Turn, cell: Cell) -> float:
        if callable(speedups):
            return speedups(turn, cell)
        if cell == AUTO:
            return PLAIN_MS * (1 + noise / 2) / auto
        if cell.gamma is None:
            return PLAIN_MS * (1 + noise) if cell.again else PLAIN_MS
        # Over the mean of both plain runs.
        return PLAIN_MS * (1 + noise / 2) / speedups[cell.gamma]

    return [
        run_of(turn, cell, tpot_ms(turn, cell), num_accepted=num_accepted)
        for turn in sweep_turns(settings)
        for cell in sweep_cells(settings)
    ]


def settings_of(
    gammas: Sequence[int] = (2, 4, 6), *, kinds: Sequence[PromptKind] = tuple(PromptKind), num_prompts: int = 2
) -> SweepSettings:
    return SweepSettings(gammas=tuple(gammas), kinds=tuple(kinds), num_prompts=num_prompts, max_tokens=24)
