"""Medians and spread of a benchmark: a row for each system on each kind of prompt, and for each peer that is absent.

Owns the rows and their table. Knows nothing of how runs are made.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from models import WeightKind
from profiling.bench_run import OWN, PeerRecord, PeerState, Run, runs_by_system
from profiling.peers.label import PLAIN, SystemLabel
from profiling.peers.plans import REFERENCE
from runtime import Mode

_TEXT = SystemLabel(owner=OWN, weights=WeightKind.FLOAT16.value, mode=PLAIN)
TEXT_NOTE = (
    "int8 and 4-bit weights are other weights than float16 ones, and their text is another text: '= f16' is the share "
    "of prompts on which a greedy text equals that of our plain decoding with float16 weights."
)


@dataclass(frozen=True, kw_only=True)
class SummaryRow:
    """One system on one kind of prompt at one temperature: medians, and medians of paired ratios."""

    threads: int
    temperature: float
    kind: str
    system: str
    owner: str
    weights: str
    mode: str
    draft: str
    tpot_ms: float
    ttft_ms: float
    speedup_over_transformers: float | None
    speedup_over_plain: float | None
    identical_to_plain: bool | None
    acceptance_rate: float | None
    mean_acceptance_length: float | None
    worst_tick_ms: float | None = None
    lowest_speedup_over_plain: float | None = None
    """Of any single prompt."""
    decision: str = ""
    """What was decided on the last prompt, and why."""
    tokens_per_s: float = 0.0
    lowest_tokens_per_s: float = 0.0
    highest_tokens_per_s: float = 0.0
    highest_ttft_ms: float = 0.0
    peak_memory_bytes: int | None = None
    num_runs: int = 0
    share_float16_text: float | None = None
    """Greedy: of the prompts, those with the text that our plain decoding wrote with float16 weights."""


def summarise(runs: Sequence[Run]) -> list[SummaryRow]:
    """One row for each number of threads, temperature, kind of prompt and system."""
    return [_row(system, own, by_system) for by_system in runs_by_system(runs) for system, own in by_system.items()]


def _row(system: str, own: dict[int, Run], by_system: dict[str, dict[int, Run]]) -> SummaryRow:
    any_run = next(iter(own.values()))
    plain = by_system.get(any_run.label.plain.name, {})
    rates = [run.tokens_per_s for run in own.values()]
    return SummaryRow(
        threads=any_run.threads,
        temperature=any_run.temperature,
        kind=any_run.kind.value,
        system=system,
        owner=any_run.label.owner,
        weights=any_run.label.weights,
        mode=any_run.label.mode,
        draft=any_run.label.draft,
        tpot_ms=statistics.median(run.tpot_ms for run in own.values()),
        ttft_ms=statistics.median(run.ttft_ms for run in own.values()),
        speedup_over_transformers=_median_ratio(by_system.get(REFERENCE.name, {}), own),
        speedup_over_plain=_median_ratio(plain, own),
        identical_to_plain=None if (share := _share_identical(own, plain)) is None else share == 1,
        share_float16_text=_share_identical(own, by_system.get(_TEXT.name, {})) if any_run.temperature == 0 else None,
        acceptance_rate=_median(run.acceptance_rate for run in own.values()),
        mean_acceptance_length=_median(run.acceptance_length for run in own.values()),
        worst_tick_ms=max((run.worst_tick_ms for run in own.values() if run.worst_tick_ms is not None), default=None),
        lowest_speedup_over_plain=min(_ratios(plain, own), default=None),
        decision=list(own.values())[-1].decision,
        tokens_per_s=statistics.median(rates),
        lowest_tokens_per_s=min(rates),
        highest_tokens_per_s=max(rates),
        highest_ttft_ms=max(run.ttft_ms for run in own.values()),
        peak_memory_bytes=max(
            (run.peak_memory_bytes for run in own.values() if run.peak_memory_bytes is not None), default=None
        ),
        num_runs=len(own),
    )


def _share_identical(own: dict[int, Run], other: dict[int, Run]) -> float | None:
    paired = [run.token_ids == other[prompt].token_ids for prompt, run in own.items() if prompt in other]
    return sum(paired) / len(paired) if paired else None


def _ratios(base: dict[int, Run], other: dict[int, Run]) -> list[float]:
    return [base[prompt].tpot_ms / run.tpot_ms for prompt, run in other.items() if prompt in base]


def _median_ratio(base: dict[int, Run], other: dict[int, Run]) -> float | None:
    return _median(_ratios(base, other))


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def format_table(rows: Sequence[SummaryRow], records: Sequence[PeerRecord] = ()) -> str:
    """The summary as a person reads it; peers that were not measured, or not to the end, have a row that says why."""
    places, speeds = ("threads", "temp", "prompts", "system"), ("tokens/s", "lowest..highest", "ms/token", "first ms")
    columns = (*places, *speeds, "peak MB", "x transf.", "x plain", "accepted", "tick ms", "= f16")
    layout = "{:>7}  {:>4}  {:8}  {:52}  {:>8}  {:>15}  {:>8}  {:>8}  {:>7}  {:>9}  {:>7}  {:>8}  {:>7}  {:>5}"
    lines = [layout.format(*columns)]
    for row in rows:
        line = layout.format(
            row.threads,
            f"{row.temperature:g}",
            row.kind,
            row.system,
            f"{row.tokens_per_s:.1f}",
            f"{row.lowest_tokens_per_s:.1f}..{row.highest_tokens_per_s:.1f}",
            _number(row.tpot_ms),
            f"{row.ttft_ms:.0f}",
            "-" if row.peak_memory_bytes is None else f"{row.peak_memory_bytes / 1e6:.0f}",
            _number(row.speedup_over_transformers),
            _number(row.speedup_over_plain),
            _number(row.acceptance_rate),
            "-" if row.worst_tick_ms is None else f"{row.worst_tick_ms:.1f}",
            "-" if row.share_float16_text is None else f"{row.share_float16_text:.0%}",
        )
        lines.append(line + ("  TOKENS DIFFER" if row.identical_to_plain is False else ""))
    for record in records:
        if record.state is not PeerState.MEASURED:
            lines.append(f"{record.threads:>7}  {'-':>4}  {'-':8}  {record.system:52}  {record.state}: {record.reason}")
    return "\n".join(lines)


def format_peers(records: Sequence[PeerRecord]) -> str:
    """With what settings each peer's system ran."""
    return "\n".join(
        f"{record.system} ({record.threads} thread(s)): version {record.version}; {record.settled}"
        for record in records
        if record.version
    )


def format_decisions(rows: Sequence[SummaryRow]) -> str:
    """What was decided where that was left open, and why."""
    return "\n".join(
        f"{row.system} ({row.threads} thread(s), temperature {row.temperature:g}, {row.kind}): {row.decision}"
        for row in rows
        if row.owner == OWN and row.mode == Mode.AUTO
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
