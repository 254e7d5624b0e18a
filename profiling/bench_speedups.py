"""Speed over plain decoding, prompt by prompt: what speculation gains, and what it costs where it gains least.

Owns the paired ratios, their medians and lowest values, and their table. Knows nothing of how runs are made.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from profiling.bench_run import Run, runs_by_system


@dataclass(frozen=True, kw_only=True)
class PromptSpeedup:
    """One system on one prompt beside plain decoding with the same weights, seed and threads."""

    threads: int
    temperature: float
    kind: str
    prompt: int
    seed: int
    system: str
    plain_tpot_ms: float
    tpot_ms: float
    identical_to_plain: bool
    drafts: Mapping[str, tuple[int, int]]
    """By draft source: proposed and accepted tokens."""
    decision: str

    @property
    def speedup(self) -> float:
        """How many times as fast as plain decoding."""
        return self.plain_tpot_ms / self.tpot_ms

    def as_dict(self) -> dict[str, object]:
        """Every field and the ratio, ready for JSON."""
        return {**asdict(self), "drafts": drafts_as_dict(self.drafts), "speedup": self.speedup}


@dataclass(frozen=True, kw_only=True)
class SpeedupRow:
    """What one system gained over some prompts."""

    threads: int
    temperature: float | None
    """None: at all of them."""
    kind: str | None
    """None: of all kinds."""
    system: str
    speedups: tuple[float, ...]
    drafts: Mapping[str, tuple[int, int]]
    """By draft source: proposed and accepted tokens."""

    @property
    def median(self) -> float:
        """Of the prompts' ratios."""
        return statistics.median(self.speedups)

    @property
    def lowest(self) -> float:
        """Of any single prompt."""
        return min(self.speedups)

    def as_dict(self) -> dict[str, object]:
        """Every field and figure, ready for JSON."""
        figures = {"drafts": drafts_as_dict(self.drafts), "median": self.median, "lowest": self.lowest}
        return {**asdict(self), **figures}


def drafts_as_dict(drafts: Mapping[str, tuple[int, int]]) -> dict[str, dict[str, int]]:
    """Counts by draft source under the names that a request's metrics have for them."""
    return {
        name: {"num_draft_tokens": proposed, "num_accepted_draft_tokens": accepted}
        for name, (proposed, accepted) in drafts.items()
    }


def prompt_speedups(runs: Sequence[Run]) -> list[PromptSpeedup]:
    """Each run that speculated, our own or a peer's, beside the same runtime's plain decoding of the same prompt."""
    return [
        PromptSpeedup(
            threads=run.threads,
            temperature=run.temperature,
            kind=run.kind.value,
            prompt=run.prompt,
            seed=run.seed,
            system=system,
            plain_tpot_ms=plain[prompt].tpot_ms,
            tpot_ms=run.tpot_ms,
            identical_to_plain=run.token_ids == plain[prompt].token_ids,
            drafts=run.drafts,
            decision=run.decision,
        )
        for by_system in runs_by_system(runs)
        for system, own in by_system.items()
        for prompt, run in own.items()
        if not run.label.is_plain
        for plain in (by_system.get(run.label.plain.name, {}),)
        if prompt in plain
    ]


def summarise_speedups(speedups: Sequence[PromptSpeedup]) -> list[SpeedupRow]:
    """By temperature and kind, then over all kinds, then over all temperatures, where there are several."""
    temperatures: list[float | None] = list(dict.fromkeys(speedup.temperature for speedup in speedups))
    kinds: list[str | None] = list(dict.fromkeys(speedup.kind for speedup in speedups))
    rows = []
    for threads in sorted({speedup.threads for speedup in speedups}):
        for temperature in temperatures + [None] * (len(temperatures) > 1):
            for kind in kinds + [None] * (len(kinds) > 1):
                by_system: dict[str, list[PromptSpeedup]] = {}
                for speedup in speedups:
                    if (
                        speedup.threads == threads
                        and temperature in (None, speedup.temperature)
                        and kind in (None, speedup.kind)
                    ):
                        by_system.setdefault(speedup.system, []).append(speedup)
                rows += [_row(threads, temperature, kind, system, own) for system, own in by_system.items()]
    return rows


def _row(
    threads: int, temperature: float | None, kind: str | None, system: str, own: Sequence[PromptSpeedup]
) -> SpeedupRow:
    drafts: dict[str, tuple[int, int]] = {}
    for speedup in own:
        for name, (proposed, accepted) in speedup.drafts.items():
            proposed_before, accepted_before = drafts.get(name, (0, 0))
            drafts[name] = (proposed_before + proposed, accepted_before + accepted)
    return SpeedupRow(
        threads=threads,
        temperature=temperature,
        kind=kind,
        system=system,
        speedups=tuple(speedup.speedup for speedup in own),
        drafts=drafts,
    )


def format_speedups(rows: Sequence[SpeedupRow]) -> str:
    """The rows as a person reads them; each prompt's own ratio stands where a row is of one kind and temperature."""
    layout = "{:>7}  {:>4}  {:5}  {:52}  {:>6}  {:>6}  {:29}  {}"
    titles = ("threads", "temp", "kind", "system", "median", "lowest", "each prompt", "accepted / proposed")
    lines = [layout.format(*titles)]
    for row in rows:
        sources = (f"{name} {accepted}/{proposed}" for name, (proposed, accepted) in row.drafts.items())
        is_single = row.temperature is not None and row.kind is not None
        lines.append(
            layout.format(
                row.threads,
                "all" if row.temperature is None else f"{row.temperature:g}",
                row.kind or "all",
                row.system,
                f"{row.median:.2f}",
                f"{row.lowest:.2f}",
                " ".join(f"{speedup:.2f}" for speedup in row.speedups) if is_single else f"{len(row.speedups)} runs",
                ", ".join(sources) or "-",
            )
        )
    return "\n".join(lines)
