"""Ways of decoding beside each other, on one prompt and the same loaded weights.

Owns the order of the runs and what is made of their times. Knows nothing of prompts, options or how results are shown.

All modes run once untimed, so that caches are warm and the prompt is read; then in turn, each first as often as the
others, so that a machine that slows down slows all. What is compared is the time a token after the first round:
the time to the first token would only show which of them found the prompt in the cache.
"""

from __future__ import annotations

import statistics
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import asdict, dataclass

from runtime.load_settings import Mode
from runtime.metrics import Metrics
from runtime.result import GenerationResult

Generate = Callable[[Mode], Awaitable[GenerationResult]]

MIN_REPETITIONS = 3
MAX_REPETITIONS = 9
_BUDGET_MS = 15_000.0
"""Time that the timed runs may take; long outputs need fewer repetitions."""


@dataclass(frozen=True, kw_only=True)
class ModeFigures:
    """Medians over the timed runs of one mode; None where no run had the figure."""

    mode: Mode
    tokens_per_s: float | None
    tpot_ms: float | None
    ttft_ms: float | None
    """With the prompt in the cache."""
    draft_acceptance_rate: float | None
    mean_acceptance_length: float | None
    hit_rate: float | None
    num_discarded_draft_tokens: float | None
    """None where the mode writes nothing past a block."""

    @classmethod
    def from_metrics(cls, mode: Mode, metrics: Sequence[Metrics]) -> ModeFigures:
        """The medians of some runs."""
        tpot_ms = _median(run.tpot_ms for run in metrics)
        looks_ahead = mode.overlaps
        return cls(
            mode=mode,
            tokens_per_s=1e3 / tpot_ms if tpot_ms else None,
            tpot_ms=tpot_ms,
            ttft_ms=_median(run.ttft_ms for run in metrics),
            draft_acceptance_rate=_median(run.draft_acceptance_rate for run in metrics),
            mean_acceptance_length=_median(run.mean_acceptance_length for run in metrics),
            hit_rate=_median(run.hit_rate for run in metrics),
            num_discarded_draft_tokens=_median(
                run.num_discarded_draft_tokens if looks_ahead else None for run in metrics
            ),
        )

    def as_dict(self) -> dict[str, object]:
        """Every field, ready for JSON."""
        return {**asdict(self), "mode": self.mode.value}


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """How the modes did beside the first of them."""

    modes: tuple[ModeFigures, ...]
    num_repetitions: int
    """Timed runs of each mode."""
    identical: bool
    """Whether every run of every mode gave the same tokens."""
    result: GenerationResult
    """The last run of the last mode."""

    def speedup(self, figures: ModeFigures) -> float | None:
        """Speed of a mode over that of the first; None if outputs were too short to tell."""
        first_ms = self.modes[0].tpot_ms
        return first_ms / figures.tpot_ms if first_ms and figures.tpot_ms else None

    def as_dict(self) -> dict[str, object]:
        """Every figure but the result, ready for JSON; `speedup` is over the first mode."""
        return {
            "identical": self.identical,
            "num_repetitions": self.num_repetitions,
            "modes": {
                figures.mode.value: {**figures.as_dict(), "speedup": self.speedup(figures)} for figures in self.modes
            },
        }


async def compare(generate: Generate, modes: Sequence[Mode], *, warm_up: Generate | None = None) -> Comparison:
    """Time some modes in turn.

    Args:
        generate: answers one and the same prompt with the same options in the mode it is given.
        modes: what to compare; the others' speeds are told over the first one's.
        warm_up: makes the untimed runs, one a mode, for a caller who wants to show them; `generate` by default.
    """
    untimed = [await (warm_up or generate)(mode) for mode in modes]
    num_repetitions = _num_repetitions(sum(result.metrics.total_ms for result in untimed))
    timed: dict[Mode, list[GenerationResult]] = {mode: [] for mode in modes}
    for repetition in range(num_repetitions):
        first = repetition % len(modes)
        for mode in (*modes[first:], *modes[:first]):
            timed[mode].append(await generate(mode))
    outputs = {result.token_ids for results in (untimed, *timed.values()) for result in results}
    return Comparison(
        modes=tuple(
            ModeFigures.from_metrics(mode, [result.metrics for result in results]) for mode, results in timed.items()
        ),
        num_repetitions=num_repetitions,
        identical=len(outputs) == 1,
        result=timed[modes[-1]][-1],
    )


def _num_repetitions(turn_ms: float) -> int:
    return int(min(MAX_REPETITIONS, max(MIN_REPETITIONS, _BUDGET_MS // max(turn_ms, 1.0))))


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
