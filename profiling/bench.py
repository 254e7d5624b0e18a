"""Decoding speed against transformers and against plain decoding: `python -m profiling.bench`.

Owns the systems under test, the order of the runs and the report. All systems hold the same weights in the same
process; for each prompt, at each temperature, they run one after the other, in an order that rotates, and every
comparison is a ratio of two runs on one prompt with one seed. What counts is the time a token after the first
(`tpot`), so reading the prompt does not.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path

from tqdm import tqdm

from models import MissingDependencyError, WeightKind, new_figure, open_checkpoint
from models.demo import demo_weights
from profiling.bench_plot import write_plot
from profiling.bench_run import REFERENCE, REFERENCE_LOOKUP, Run
from profiling.bench_speedups import format_speedups, prompt_speedups, summarise_speedups
from profiling.bench_summary import format_decisions, format_table, summarise
from profiling.machine import dated_name, describe_machine, new_file, new_folder
from profiling.program import run_program
from profiling.prompts import BenchPrompt, PromptKind, bench_prompts
from profiling.reference import reference_model, run_reference
from profiling.round_cost import format_round_costs, measure_round_costs
from profiling.ticker import ticking
from runtime import GenerationOptions, GenerationResult, LoadSettings, Mode, Runtime

_LOOKUP_TOKENS = 8
_LEAST_TOKENS = 10
"""The first round may bring 9, and what is timed is the rest."""
_WARM_UP = BenchPrompt(kind=PromptKind.CHAT, messages=({"role": "user", "content": "Say hello in five languages."},))


class Pair(StrEnum):
    """The target with a draft; the last two are there to see whether they do harm."""

    DEMO = "demo"
    """The drafts that ship."""
    WRONG = "wrong"
    """The target's first layer, which is hardly ever right."""
    SLOW = "slow"
    """The target itself, which is always right and as slow as itself."""


@dataclass(frozen=True, kw_only=True)
class DraftChoice:
    """Draft sources that are measured together, on a runtime of their own."""

    label: str
    sources: tuple[str, ...]
    """As a runtime takes them."""

    @property
    def suffix(self) -> str:
        """What it adds to the name of a system; nothing for the drafts that ship."""
        return "" if self.label == Pair.DEMO else f", {self.label} draft"

    @classmethod
    def of_pair(cls, pair: Pair, target: str | None) -> DraftChoice:
        """The drafts of a pair."""
        match pair:
            case Pair.DEMO:
                return SHIPPED_DRAFTS
            case Pair.WRONG:
                return cls(label=pair.value, sources=("early-exit:1",))
            case Pair.SLOW:
                return cls(label=pair.value, sources=(target or str(demo_weights()),))

    @classmethod
    def read(cls, text: str) -> DraftChoice:
        """One or several sources with commas between them.

        Raises:
            ValueError: if a runtime would not take them, or they come to none.
        """
        sources = tuple(text.split(","))
        if sources == SHIPPED_DRAFTS.sources:
            return SHIPPED_DRAFTS
        if not LoadSettings(draft=sources).draft_specs():
            raise ValueError(f"--drafts {text} names no draft; plain decoding is measured in any case")
        return cls(label="+".join(Path(source).name or source for source in sources), sources=sources)


SHIPPED_DRAFTS = DraftChoice(label=Pair.DEMO.value, sources=("auto",))


@dataclass(frozen=True, kw_only=True)
class Turn:
    """What all systems answer before the next is asked."""

    prompt: BenchPrompt
    index: int
    """Of the prompt among those of its kind."""
    temperature: float
    seed: int


@dataclass(frozen=True, kw_only=True)
class System:
    """Something that can be timed."""

    name: str
    run: Callable[[Turn], Awaitable[Run]]
    greedy_only: bool = False
    """Whether it is left out where tokens are drawn."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the command line asked for."""

    threads: tuple[int, ...]
    weights: tuple[WeightKind, ...]
    num_prompts: int
    max_tokens: int
    with_transformers: bool
    target: str | None = None
    """A folder, a hub id or a GGUF file; None is the demo model."""
    temperatures: tuple[float, ...] = (0.0,)
    drafts: tuple[DraftChoice, ...] = (SHIPPED_DRAFTS,)
    num_rounds: int = 0
    """Rounds with models that cost nothing, by which the scheduler's own cost is measured; 0 leaves it out."""


async def measure(settings: Settings) -> list[Run]:
    """Run every system on every prompt, at each number of threads and each temperature."""
    runs: list[Run] = []
    for threads in settings.threads:
        async with AsyncExitStack() as stack:
            systems = await _systems(settings, threads, stack)
            for system in systems:
                await system.run(Turn(prompt=_WARM_UP, index=0, temperature=settings.temperatures[0], seed=0))
            turns = list(_turns(settings, systems))
            progress = tqdm(
                total=sum(len(called) for _, called in turns),
                desc=f"{threads} thread(s)",
                unit="run",
                disable=None,
                file=sys.stderr,
            )
            for turn, called in turns:
                for system in called:
                    runs.append(await system.run(turn))
                    progress.update()
            progress.close()
    return runs


def _turns(settings: Settings, systems: Sequence[System]) -> Iterator[tuple[Turn, list[System]]]:
    """What is asked, and of whom in which order: at each temperature the systems take turns at being first."""
    prompts = [
        (index, prompt)
        for kind in PromptKind
        for index, prompt in enumerate(bench_prompts(kind)[: settings.num_prompts])
    ]
    for seed, (index, prompt) in enumerate(prompts):
        for number, temperature in enumerate(settings.temperatures):
            called = [system for system in systems if temperature == 0 or not system.greedy_only]
            first = (seed + number) % len(called)
            turn = Turn(prompt=prompt, index=index, temperature=temperature, seed=seed)
            yield turn, called[first:] + called[:first]


async def _systems(settings: Settings, threads: int, stack: AsyncExitStack) -> list[System]:
    systems = []
    encode: Callable[[BenchPrompt], list[int]] | None = None
    for weights in settings.weights:
        for choice in settings.drafts:
            draft = choice.sources if len(choice.sources) > 1 else choice.sources[0]
            runtime = await stack.enter_async_context(
                # Where transformers runs, whatever else there is.
                await Runtime.load(settings.target, threads=threads, weights=weights, draft=draft, device="cpu")
            )
            encode = _encoder(runtime)
            # The modes of one choice run on the same weights; of the others only the choice itself is of interest.
            for mode in runtime.modes if choice is settings.drafts[0] else (Mode.AUTO,):
                name = f"slipstream {weights.value}, {mode.value}"
                if mode is not Mode.PLAIN:
                    name += choice.suffix
                systems.append(System(name=name, run=_own_runner(runtime, name, mode, threads, settings)))
    if settings.with_transformers and encode is not None:
        systems += _reference_systems(settings, threads, encode)
    return systems


def _encoder(runtime: Runtime) -> Callable[[BenchPrompt], list[int]]:
    return lambda prompt: runtime.tokenizer.encode_chat(prompt.messages)


def _own_runner(
    runtime: Runtime, name: str, mode: Mode, threads: int, settings: Settings
) -> Callable[[Turn], Awaitable[Run]]:
    async def run(turn: Turn) -> Run:
        async with ticking() as gaps_s:
            result: GenerationResult = await runtime.generate(
                turn.prompt.messages,
                max_tokens=settings.max_tokens,
                ignore_eos=True,
                mode=mode,
                temperature=turn.temperature,
                seed=turn.seed,
            )
        metrics = result.metrics
        return Run(
            system=name,
            threads=threads,
            temperature=turn.temperature,
            kind=turn.prompt.kind,
            prompt=turn.index,
            seed=turn.seed,
            tpot_ms=_known(metrics.tpot_ms, settings.max_tokens),
            ttft_ms=metrics.ttft_ms or 0.0,
            token_ids=result.token_ids,
            acceptance_rate=metrics.draft_acceptance_rate,
            acceptance_length=metrics.mean_acceptance_length,
            drafts=metrics.drafts,
            worst_tick_ms=max(gaps_s, default=0.0) * 1e3,
            decision=metrics.decision,
        )

    return run


def _known(tpot_ms: float | None, max_tokens: int) -> float:
    if tpot_ms is None:
        raise ValueError(f"an output of {max_tokens} tokens came in one round, which gives no time; ask for more")
    return tpot_ms


def _reference_systems(settings: Settings, threads: int, encode: Callable[[BenchPrompt], list[int]]) -> list[System]:
    with open_checkpoint(settings.target or demo_weights()) as checkpoint:
        model = reference_model(checkpoint)

    def runner(name: str, lookup_tokens: int | None) -> Callable[[Turn], Awaitable[Run]]:
        async def run(turn: Turn) -> Run:
            timed = run_reference(
                model,
                encode(turn.prompt),
                threads=threads,
                max_tokens=settings.max_tokens,
                lookup_tokens=lookup_tokens,
            )
            return Run(
                system=name,
                threads=threads,
                kind=turn.prompt.kind,
                prompt=turn.index,
                tpot_ms=timed.tpot_ms,
                ttft_ms=timed.ttft_ms,
                token_ids=timed.token_ids,
            )

        return run

    return [
        System(name=REFERENCE, run=runner(REFERENCE, None), greedy_only=True),
        System(name=REFERENCE_LOOKUP, run=runner(REFERENCE_LOOKUP, _LOOKUP_TOKENS), greedy_only=True),
    ]


@dataclass(frozen=True, kw_only=True)
class Output:
    """Where the report goes, beside the screen."""

    file: Path | None
    folder: Path | None

    def write(self, report: str, draw: Callable[[Path], None]) -> None:
        """Write the report, and a plot beside it where a folder was named."""
        if self.file is not None:
            self.file.write_text(report + "\n", encoding="utf-8")
        if self.folder is not None:
            name = dated_name(self.folder, "bench")
            (self.folder / f"{name}.json").write_text(report + "\n", encoding="utf-8")
            draw(self.folder / f"{name}.png")


def _parse(arguments: Sequence[str] | None) -> tuple[Settings, Output]:
    parser = _parser()
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
    if 0 not in chosen.temperatures and not chosen.no_transformers:
        parser.error("transformers runs at temperature 0 only: add 0 to --temperatures, or give --no-transformers")
    pairs = chosen.pairs or ([] if chosen.drafts else [Pair.DEMO])
    try:
        for temperature in chosen.temperatures:
            GenerationOptions(temperature=temperature)
        drafts = [DraftChoice.of_pair(Pair(name), chosen.target) for name in pairs]
        drafts += [DraftChoice.read(text) for text in chosen.drafts]
    except ValueError as error:
        parser.error(str(error))
    drafts = list(dict.fromkeys(drafts))
    labels = [choice.label for choice in drafts]
    settings = Settings(
        threads=tuple(chosen.threads),
        weights=tuple(WeightKind(name) for name in chosen.weights),
        num_prompts=chosen.prompts,
        max_tokens=chosen.max_tokens,
        with_transformers=not chosen.no_transformers,
        target=chosen.target,
        temperatures=tuple(dict.fromkeys(chosen.temperatures)),
        drafts=tuple(
            choice if labels.count(choice.label) == 1 else replace(choice, label="+".join(choice.sources))
            for choice in drafts
        ),
        num_rounds=chosen.rounds,
    )
    return settings, Output(file=chosen.out, folder=chosen.out_dir)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m profiling.bench", description="Decoding speed, measured.")
    parser.add_argument("--target", help="folder, .gguf file or hub id (default: the demo weights)")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="intra-op threads (default: 1 2)")
    parser.add_argument(
        "--weights",
        nargs="+",
        choices=[kind.value for kind in WeightKind],
        default=["float16", "int8"],
        help="weight kinds of our own systems (default: float16 int8)",
    )
    parser.add_argument(
        "--temperatures",
        nargs="+",
        type=float,
        default=[0.0],
        metavar="T",
        help="every prompt is answered at each, with a seed of its own; transformers only at 0 (default: 0)",
    )
    parser.add_argument(
        "--pairs",
        nargs="+",
        choices=[pair.value for pair in Pair],
        help="drafts for the target: those that ship, one that is never right, one as slow as the target; of all but "
        "the first only the auto mode runs (default: demo, unless there are --drafts)",
    )
    parser.add_argument(
        "--drafts",
        nargs="+",
        default=[],
        metavar="DRAFT",
        help="further drafts, as runtime's --draft names them, with commas between those that work together, as in: "
        "auto ngram DIR ngram,DIR",
    )
    parser.add_argument("--prompts", type=int, default=5, help="prompts of each kind, 1 to 6 (default: 5)")
    parser.add_argument("--max-tokens", type=int, default=96, help="tokens of each run (default: 96)")
    parser.add_argument("--no-transformers", action="store_true", help="leave transformers out")
    parser.add_argument(
        "--rounds", type=int, default=1000, help="rounds with costless models, 0 for none (default: 1000)"
    )
    parser.add_argument("--out", type=new_file, help="also write the JSON to this file")
    parser.add_argument(
        "--out-dir",
        type=new_folder,
        metavar="DIR",
        help="write the JSON and a plot of every prompt's speed-up there, named by the date",
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the tables, and print one line of JSON last.

    Raises:
        SlipstreamError: if a model cannot be loaded, or a plot is wanted that cannot be drawn.
    """
    settings, output = _parse(arguments)
    if output.folder is not None:
        _check_plots()
    machine = describe_machine()
    costs = measure_round_costs(num_rounds=settings.num_rounds) if settings.num_rounds else []
    runs = asyncio.run(measure(settings))
    rows = summarise(runs)
    speedups = prompt_speedups(runs)
    speedup_rows = summarise_speedups(speedups)
    report = {
        "machine": machine,
        "max_tokens": settings.max_tokens,
        "num_prompts": settings.num_prompts,
        "temperatures": settings.temperatures,
        "drafts": {choice.label: choice.sources for choice in settings.drafts},
        "rows": [asdict(row) for row in rows],
        "speedups": [row.as_dict() for row in speedup_rows],
        "prompts": [speedup.as_dict() for speedup in speedups],
        "round_costs": [asdict(cost) for cost in costs],
    }
    print(format_table(rows))
    print("\nSpeed over plain decoding, prompt by prompt:\n" + format_speedups(speedup_rows))
    print("\nWhat was decided where it was left open:\n" + format_decisions(rows))
    if costs:
        print("\nThe scheduler's own cost, a round with models that cost nothing:\n" + format_round_costs(costs))
    output.write(json.dumps(report, indent=1), lambda path: write_plot(speedups, path))
    print(json.dumps(report))
    return 0


def _check_plots() -> None:
    """Find out beforehand, not after an hour of measuring.

    Raises:
        MissingDependencyError: if there is nothing to draw plots with.
    """
    try:
        new_figure()
    except MissingDependencyError as error:
        raise MissingDependencyError(f"{error}, or leave out --out-dir") from error


if __name__ == "__main__":
    run_program(main)
