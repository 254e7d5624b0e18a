"""Decoding speed against transformers and against plain decoding: `python -m profiling.bench`.

Owns the systems under test, the order of the runs and the report. All systems hold the same weights in the same
process; for each prompt they run one after the other, in an order that rotates, and every comparison is a ratio of two
runs on one prompt. What counts is the time a token after the first (`tpot`), so reading the prompt does not.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path

from tqdm import tqdm

from models import WeightKind, open_checkpoint
from models.demo import demo_weights
from profiling.machine import describe_machine, new_file
from profiling.program import run_program
from profiling.prompts import BenchPrompt, PromptKind, bench_prompts
from profiling.reference import reference_model, run_reference
from profiling.round_cost import format_round_costs, measure_round_costs
from profiling.ticker import ticking
from runtime import GenerationResult, Mode, Runtime

REFERENCE = "transformers float32"
REFERENCE_LOOKUP = "transformers float32, prompt lookup"
_LOOKUP_TOKENS = 8
_LEAST_TOKENS = 10
"""The first round may bring 9, and what is timed is the rest."""
_WARM_UP = BenchPrompt(kind=PromptKind.CHAT, messages=({"role": "user", "content": "Say hello in five languages."},))


@dataclass(frozen=True, kw_only=True)
class Run:
    """One system on one prompt."""

    system: str
    threads: int
    kind: PromptKind
    prompt: int
    tpot_ms: float
    ttft_ms: float
    token_ids: tuple[int, ...]
    acceptance_rate: float | None = None
    acceptance_length: float | None = None
    worst_tick_ms: float | None = None
    """Longest wait of a task beside it that wanted to run every 10 ms."""
    decision: str = ""
    """What was decided to do, and why, in words."""


class Pair(StrEnum):
    """The demo target with a draft; the last two are there to see whether they do harm."""

    DEMO = "demo"
    """The drafts that ship."""
    WRONG = "wrong"
    """The target's first layer, which is hardly ever right."""
    SLOW = "slow"
    """The target itself, which is always right and as slow as itself."""

    def draft(self) -> str | Path:
        """As a runtime takes it."""
        match self:
            case Pair.DEMO:
                return "auto"
            case Pair.WRONG:
                return "early-exit:1"
            case Pair.SLOW:
                return demo_weights()


@dataclass(frozen=True, kw_only=True)
class System:
    """Something that can be timed."""

    name: str
    run: Callable[[BenchPrompt], Awaitable[Run]]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the command line asked for."""

    threads: tuple[int, ...]
    weights: tuple[WeightKind, ...]
    num_prompts: int
    max_tokens: int
    with_transformers: bool
    pairs: tuple[Pair, ...] = (Pair.DEMO,)
    num_rounds: int = 0
    """Rounds with models that cost nothing, by which the scheduler's own cost is measured; 0 leaves it out."""


async def measure(settings: Settings) -> list[Run]:
    """Run every system on every prompt, at each number of threads."""
    runs: list[Run] = []
    prompts = [
        (kind, index, prompt)
        for kind in PromptKind
        for index, prompt in enumerate(bench_prompts(kind)[: settings.num_prompts])
    ]
    for threads in settings.threads:
        async with AsyncExitStack() as stack:
            systems = await _systems(settings, threads, stack)
            progress = tqdm(
                total=len(systems) * len(prompts),
                desc=f"{threads} thread(s)",
                unit="run",
                disable=None,
                file=sys.stderr,
            )
            for system in systems:
                await system.run(_WARM_UP)
            for turn, (_kind, index, prompt) in enumerate(prompts):
                first = turn % len(systems)
                for system in systems[first:] + systems[:first]:
                    run = await system.run(prompt)
                    runs.append(replace(run, prompt=index))
                    progress.update()
            progress.close()
    return runs


async def _systems(settings: Settings, threads: int, stack: AsyncExitStack) -> list[System]:
    systems = []
    encode: Callable[[BenchPrompt], list[int]] | None = None
    for weights in settings.weights:
        for pair in settings.pairs:
            runtime = await stack.enter_async_context(
                # Where transformers runs, whatever else there is.
                await Runtime.load(threads=threads, weights=weights, draft=pair.draft(), device="cpu")
            )
            encode = _encoder(runtime)
            # The modes of one pair run on the same weights; of the others only the choice itself is of interest.
            for mode in runtime.modes if pair is settings.pairs[0] else (Mode.AUTO,):
                name = f"slipstream {weights.value}, {mode.value}"
                if pair is not Pair.DEMO and mode is not Mode.PLAIN:
                    name += f", {pair.value} draft"
                systems.append(System(name=name, run=_own_runner(runtime, name, mode, threads, settings)))
    if settings.with_transformers and encode is not None:
        systems += _reference_systems(settings, threads, encode)
    return systems


def _encoder(runtime: Runtime) -> Callable[[BenchPrompt], list[int]]:
    return lambda prompt: runtime.tokenizer.encode_chat(prompt.messages)


def _own_runner(
    runtime: Runtime, name: str, mode: Mode, threads: int, settings: Settings
) -> Callable[[BenchPrompt], Awaitable[Run]]:
    async def run(prompt: BenchPrompt) -> Run:
        async with ticking() as gaps_s:
            result: GenerationResult = await runtime.generate(
                prompt.messages, max_tokens=settings.max_tokens, ignore_eos=True, mode=mode
            )
        metrics = result.metrics
        return Run(
            system=name,
            threads=threads,
            kind=prompt.kind,
            prompt=0,
            tpot_ms=_known(metrics.tpot_ms, settings.max_tokens),
            ttft_ms=metrics.ttft_ms or 0.0,
            token_ids=result.token_ids,
            acceptance_rate=metrics.draft_acceptance_rate,
            acceptance_length=metrics.mean_acceptance_length,
            worst_tick_ms=max(gaps_s, default=0.0) * 1e3,
            decision=metrics.decision,
        )

    return run


def _known(tpot_ms: float | None, max_tokens: int) -> float:
    if tpot_ms is None:
        raise ValueError(f"an output of {max_tokens} tokens came in one round, which gives no time; ask for more")
    return tpot_ms


def _reference_systems(settings: Settings, threads: int, encode: Callable[[BenchPrompt], list[int]]) -> list[System]:
    with open_checkpoint(demo_weights()) as checkpoint:
        model = reference_model(checkpoint)

    def runner(name: str, lookup_tokens: int | None) -> Callable[[BenchPrompt], Awaitable[Run]]:
        async def run(prompt: BenchPrompt) -> Run:
            timed = run_reference(
                model, encode(prompt), threads=threads, max_tokens=settings.max_tokens, lookup_tokens=lookup_tokens
            )
            return Run(
                system=name,
                threads=threads,
                kind=prompt.kind,
                prompt=0,
                tpot_ms=timed.tpot_ms,
                ttft_ms=timed.ttft_ms,
                token_ids=timed.token_ids,
            )

        return run

    return [
        System(name=REFERENCE, run=runner(REFERENCE, None)),
        System(name=REFERENCE_LOOKUP, run=runner(REFERENCE_LOOKUP, _LOOKUP_TOKENS)),
    ]


@dataclass(frozen=True, kw_only=True)
class SummaryRow:
    """One system on one kind of prompt: medians, and medians of paired ratios."""

    threads: int
    kind: str
    system: str
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


def summarise(runs: Sequence[Run]) -> list[SummaryRow]:
    """One row for each number of threads, kind of prompt and system."""
    rows = []
    for threads in sorted({run.threads for run in runs}):
        for kind in PromptKind:
            by_system: dict[str, dict[int, Run]] = {}
            for run in runs:
                if run.threads == threads and run.kind is kind:
                    by_system.setdefault(run.system, {})[run.prompt] = run
            rows += [_row(system, own, by_system) for system, own in by_system.items()]
    return rows


def _row(system: str, own: dict[int, Run], by_system: dict[str, dict[int, Run]]) -> SummaryRow:
    plain = by_system.get(_plain_of(system), {})
    any_run = next(iter(own.values()))
    return SummaryRow(
        threads=any_run.threads,
        kind=any_run.kind.value,
        system=system,
        tpot_ms=statistics.median(run.tpot_ms for run in own.values()),
        ttft_ms=statistics.median(run.ttft_ms for run in own.values()),
        speedup_over_transformers=_median_ratio(by_system.get(REFERENCE, {}), own),
        speedup_over_plain=_median_ratio(plain, own),
        identical_to_plain=_identical(own, plain),
        acceptance_rate=_median(run.acceptance_rate for run in own.values()),
        mean_acceptance_length=_median(run.acceptance_length for run in own.values()),
        worst_tick_ms=max((run.worst_tick_ms for run in own.values() if run.worst_tick_ms is not None), default=None),
        lowest_speedup_over_plain=min(_ratios(plain, own), default=None),
        decision=list(own.values())[-1].decision,
    )


def _identical(own: dict[int, Run], plain: dict[int, Run]) -> bool | None:
    return all(run.token_ids == plain[prompt].token_ids for prompt, run in own.items()) if plain else None


def _plain_of(system: str) -> str:
    return REFERENCE if system.startswith(REFERENCE) else f"{system.partition(',')[0]}, plain"


def _ratios(base: dict[int, Run], other: dict[int, Run]) -> list[float]:
    return [base[prompt].tpot_ms / run.tpot_ms for prompt, run in other.items() if prompt in base]


def _median_ratio(base: dict[int, Run], other: dict[int, Run]) -> float | None:
    return _median(_ratios(base, other))


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def format_table(rows: Sequence[SummaryRow]) -> str:
    """The summary as a person reads it."""
    columns = ("threads", "prompts", "system", "ms/token", "x transf.", "x plain", "accepted", "tick ms")
    layout = "{:>7}  {:8}  {:38}  {:>8}  {:>9}  {:>7}  {:>8}  {:>7}"
    lines = [layout.format(*columns)]
    for row in rows:
        line = layout.format(
            row.threads,
            row.kind,
            row.system,
            _number(row.tpot_ms),
            _number(row.speedup_over_transformers),
            _number(row.speedup_over_plain),
            _number(row.acceptance_rate),
            "-" if row.worst_tick_ms is None else f"{row.worst_tick_ms:.1f}",
        )
        lines.append(line + ("  TOKENS DIFFER" if row.identical_to_plain is False else ""))
    return "\n".join(lines)


def format_decisions(rows: Sequence[SummaryRow]) -> str:
    """What was decided where that was left open, and why."""
    return "\n".join(
        f"{row.system} ({row.threads} thread(s), {row.kind}): {row.decision}" for row in rows if ", auto" in row.system
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _parse(arguments: Sequence[str] | None) -> tuple[Settings, Path | None]:
    parser = argparse.ArgumentParser(prog="python -m profiling.bench", description="Decoding speed, measured.")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="intra-op threads (default: 1 2)")
    parser.add_argument(
        "--weights",
        nargs="+",
        choices=[kind.value for kind in WeightKind],
        default=["float16", "int8"],
        help="weight kinds of our own systems (default: float16 int8)",
    )
    parser.add_argument(
        "--pairs",
        nargs="+",
        choices=[pair.value for pair in Pair],
        default=[Pair.DEMO.value],
        help="drafts for the demo target: those that ship, one that is never right, one as slow as the target; of all "
        "but the first only the auto mode runs (default: demo)",
    )
    parser.add_argument("--prompts", type=int, default=5, help="prompts of each kind, 1 to 6 (default: 5)")
    parser.add_argument("--max-tokens", type=int, default=96, help="tokens of each run (default: 96)")
    parser.add_argument("--no-transformers", action="store_true", help="leave transformers out")
    parser.add_argument(
        "--rounds", type=int, default=1000, help="rounds with costless models, 0 for none (default: 1000)"
    )
    parser.add_argument("--out", type=new_file, help="also write the JSON to this file")
    chosen = parser.parse_args(arguments)
    if (
        min(chosen.threads) < 1
        or not 1 <= chosen.prompts <= 6
        or chosen.max_tokens < _LEAST_TOKENS
        or chosen.rounds < 0
    ):
        parser.error(
            f"--threads must be at least 1, --prompts 1 to 6, --max-tokens at least {_LEAST_TOKENS}, --rounds 0 or more"
        )
    settings = Settings(
        threads=tuple(chosen.threads),
        weights=tuple(WeightKind(name) for name in chosen.weights),
        num_prompts=chosen.prompts,
        max_tokens=chosen.max_tokens,
        with_transformers=not chosen.no_transformers,
        pairs=tuple(dict.fromkeys(Pair(name) for name in chosen.pairs)),
        num_rounds=chosen.rounds,
    )
    return settings, chosen.out


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the table, and print one line of JSON last."""
    settings, out = _parse(arguments)
    machine = describe_machine()
    costs = measure_round_costs(num_rounds=settings.num_rounds) if settings.num_rounds else []
    rows = summarise(asyncio.run(measure(settings)))
    report = {
        "machine": machine,
        "max_tokens": settings.max_tokens,
        "num_prompts": settings.num_prompts,
        "rows": [asdict(row) for row in rows],
        "round_costs": [asdict(cost) for cost in costs],
    }
    print(format_table(rows))
    print("\nWhat was decided where it was left open:\n" + format_decisions(rows))
    if costs:
        print("\nThe scheduler's own cost, a round with models that cost nothing:\n" + format_round_costs(costs))
    if out is not None:
        out.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report))
    return 0


if __name__ == "__main__":
    run_program(main)
