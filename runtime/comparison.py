"""Plain decoding against speculation, on one prompt and the same loaded weights.

Owns the order of the runs and what is made of their times. Knows nothing of prompts, options or how results are shown.

Both ways run once untimed, so that caches are warm and the prompt is read; then in turn, each first in every second
pair, so that a machine that slows down slows both. What is compared is the time a token after the first round:
the time to the first token would only show which of the two found the prompt in the cache.
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

    @classmethod
    def from_metrics(cls, mode: Mode, metrics: Sequence[Metrics]) -> ModeFigures:
        """The medians of some runs."""
        tpot_ms = _median(run.tpot_ms for run in metrics)
        return cls(
            mode=mode,
            tokens_per_s=1e3 / tpot_ms if tpot_ms else None,
            tpot_ms=tpot_ms,
            ttft_ms=_median(run.ttft_ms for run in metrics),
            draft_acceptance_rate=_median(run.draft_acceptance_rate for run in metrics),
            mean_acceptance_length=_median(run.mean_acceptance_length for run in metrics),
        )

    def as_dict(self) -> dict[str, object]:
        """Every field, ready for JSON."""
        return {**asdict(self), "mode": self.mode.value}


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """How speculation did beside plain decoding."""

    plain: ModeFigures
    speculative: ModeFigures
    num_repetitions: int
    """Timed runs of each mode."""
    identical: bool
    """Whether every run gave the same tokens."""
    result: GenerationResult
    """The last run with speculation."""

    @property
    def speedup(self) -> float | None:
        """Speed of speculation over that of plain decoding; None if outputs were too short to tell."""
        if not self.plain.tpot_ms or not self.speculative.tpot_ms:
            return None
        return self.plain.tpot_ms / self.speculative.tpot_ms

    def as_dict(self) -> dict[str, object]:
        """Every figure but the result, ready for JSON."""
        return {
            "speedup": self.speedup,
            "identical": self.identical,
            "num_repetitions": self.num_repetitions,
            "plain": self.plain.as_dict(),
            "speculative": self.speculative.as_dict(),
        }


async def compare(generate: Generate, mode: Mode, *, warm_up: Generate | None = None) -> Comparison:
    """Time plain decoding and `mode` in turn.

    Args:
        generate: answers one and the same prompt with the same options in the mode it is given.
        mode: the mode to compare with plain decoding.
        warm_up: makes the two untimed runs, for a caller who wants to show them; `generate` by default.
    """
    first = [await (warm_up or generate)(each) for each in (Mode.PLAIN, mode)]
    num_repetitions = _num_repetitions(sum(result.metrics.total_ms for result in first))
    timed: dict[Mode, list[GenerationResult]] = {Mode.PLAIN: [], mode: []}
    for repetition in range(num_repetitions):
        for each in (Mode.PLAIN, mode) if repetition % 2 == 0 else (mode, Mode.PLAIN):
            timed[each].append(await generate(each))
    plain, speculative = timed[Mode.PLAIN], timed[mode]
    return Comparison(
        plain=ModeFigures.from_metrics(Mode.PLAIN, [result.metrics for result in plain]),
        speculative=ModeFigures.from_metrics(mode, [result.metrics for result in speculative]),
        num_repetitions=num_repetitions,
        identical=len({result.token_ids for result in [*first, *plain, *speculative]}) == 1,
        result=speculative[-1],
    )


def _num_repetitions(pair_ms: float) -> int:
    return int(min(MAX_REPETITIONS, max(MIN_REPETITIONS, _BUDGET_MS // max(pair_ms, 1.0))))


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
