"""Sequential and pipelined speculation on a CPU, at an acceptance that is planted: `python -m profiling.planted`.

Owns the order of the runs, the choice of gamma and lead, and the report. The target is real; the draft does the work of
a small distilled one and then says what a plan tells it, so the acceptance is known and the text is the target's own.
All systems run in one process, taking turns on each prompt, from empty caches; what is timed is what comes after the
first round.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

import torch
from tqdm import tqdm

from models import Decoder, SlipstreamError, Tokenizer, WeightKind, open_checkpoint, open_model
from models.demo import demo_weights
from profiling.contention import (
    DEFAULT_INTERVALS_MS,
    ContentionRow,
    DraftSource,
    format_contention,
    measure_contention,
    num_ticks,
)
from profiling.machine import describe_machine, new_file
from profiling.planted_draft import planted_ids, shallow_decoder
from profiling.planted_lanes import Choice, PlantedLanes, PlantedPrompt, PlantedRun, PlantedSystem
from profiling.planted_report import Case, PlantedRow, Trial, format_planted, summarise
from profiling.program import run_program
from profiling.prompts import BenchPrompt, PromptKind, bench_prompts

GAMMAS = (2, 4, 6, 8)
LEADS = (4, 8, 12)
_LEAST_TOKENS = 2 * (max(GAMMAS) + 1)
"""A first round and another one, whatever is accepted."""
_NUM_CALIBRATION_PROMPTS = 2
_CALLS_OF_A_TURN = 20


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the command line asked for."""

    target: str
    acceptances: tuple[float, ...]
    weights: tuple[WeightKind, ...]
    threads: int
    """Intra-op threads in all: the lane that runs has them, or the draft has one and the target the others."""
    num_prompts: int
    num_tokens: int
    gammas: tuple[int, ...] = GAMMAS
    leads: tuple[int, ...] = LEADS
    num_contention_turns: int = 5
    """Turns of the contention measurement; 0 leaves it out."""


@dataclass(kw_only=True)
class Measured:
    """All that was measured so far."""

    rows: list[PlantedRow]
    trials: list[Trial]
    contention: list[ContentionRow]
    same_on_all_threads: dict[str, bool]
    """By weight kind, whether the target alone gives the same tokens on all threads and on those of the split."""


class _WeightsBench:
    """One kind of weights on both arrangements of threads."""

    def __init__(self, settings: Settings, weights: WeightKind, stack: ExitStack, progress: tqdm[NoReturn]) -> None:
        self._settings = settings
        self._weights = weights
        self._progress = progress
        with open_model(settings.target, weights=weights) as opened:
            loaded = opened.load()
        if not isinstance(loaded.model, Decoder):
            raise ValueError(f"--target must be a model that the lean decoder runs, not {loaded.model.name}")
        self.target = loaded.model
        with open_checkpoint(settings.target) as checkpoint:
            self.draft = shallow_decoder(checkpoint, weights=weights)
        prompts = _prompts(loaded.tokenizer, settings.num_prompts + _NUM_CALIBRATION_PROMPTS)
        self._prompts = dict(enumerate(prompts))
        longest = max(len(prompt) for prompt in prompts)
        capacity = min(longest + settings.num_tokens + 1, self.target.context_length)
        shared = {"target_threads": settings.threads, "draft_threads": None}
        split = {"target_threads": settings.threads - 1, "draft_threads": 1}
        self._lanes = {
            is_split: PlantedLanes(self.target, self.draft, capacity=capacity, **threads)
            for is_split, threads in ((False, shared), (True, split))
        }
        for lanes in self._lanes.values():
            stack.callback(lanes.close)
        self._own_ids: dict[tuple[bool, int], tuple[int, ...]] = {}

    @property
    def _calibration_prompts(self) -> list[int]:
        return list(self._prompts)[: -self._settings.num_prompts]

    @property
    def _timed_prompts(self) -> list[int]:
        return list(self._prompts)[-self._settings.num_prompts :]

    async def run_plain(self) -> bool:
        """Let the target write alone on both arrangements, which warms them up; whether it writes the same."""
        for prompt, token_ids in self._prompts.items():
            for is_split, lanes in self._lanes.items():
                run = await lanes.run(
                    PlantedSystem.PLAIN,
                    Choice(),
                    PlantedPrompt(token_ids=token_ids),
                    num_tokens=self._settings.num_tokens,
                )
                self._own_ids[is_split, prompt] = run.token_ids
                self._progress.update()
        return all(self._own_ids[False, prompt] == self._own_ids[True, prompt] for prompt in self._prompts)

    async def calibrate(self, acceptance: float) -> list[Trial]:
        """Try every gamma and lead on prompts that are not timed."""
        trials = []
        for system in PlantedSystem:
            speeds = {}
            for choice in _choices(self._settings, system):
                runs = [await self._run(system, choice, prompt, acceptance) for prompt in self._calibration_prompts]
                speeds[choice] = statistics.fmean(run.tokens_per_s for run in runs)
            best = max(speeds, key=lambda choice: speeds[choice])
            trials += [
                Trial(
                    weights=self._weights.value,
                    acceptance=acceptance,
                    system=system,
                    choice=choice,
                    tokens_per_s=speed,
                    chosen=choice == best,
                )
                for choice, speed in speeds.items()
            ]
        return trials

    async def measure(self, acceptance: float, choices: dict[PlantedSystem, Choice]) -> list[PlantedRow]:
        """Run every system on every prompt, in an order that rotates."""
        runs: dict[Case, dict[int, PlantedRun]] = {}
        systems = list(PlantedSystem)
        for turn, prompt in enumerate(self._timed_prompts):
            first = turn % len(systems)
            for system in systems[first:] + systems[:first]:
                run = await self._run(system, choices[system], prompt, acceptance)
                runs.setdefault((self._weights.value, acceptance, system), {})[prompt] = run
        ordered = {(self._weights.value, acceptance, system): choices[system] for system in systems}
        expected = {
            case: {prompt: self._own_ids[case[2].is_split, prompt] for prompt in self._timed_prompts}
            for case in ordered
        }
        return summarise({case: runs[case] for case in ordered}, ordered, expected)

    async def _run(self, system: PlantedSystem, choice: Choice, prompt: int, acceptance: float) -> PlantedRun:
        token_ids = self._prompts[prompt]
        planted = planted_ids(
            self._own_ids[system.is_split, prompt],
            first_position=len(token_ids),
            prompt=prompt,
            acceptance=acceptance,
            vocab_size=self.target.vocab_size,
        )
        run = await self._lanes[system.is_split].run(
            system,
            choice,
            PlantedPrompt(token_ids=token_ids, planted_ids=tuple(planted)),
            num_tokens=self._settings.num_tokens,
        )
        self._progress.update()
        return run


def _choices(settings: Settings, system: PlantedSystem) -> list[Choice]:
    if system is PlantedSystem.PLAIN:
        return [Choice()]
    if system is PlantedSystem.PIPELINED:
        return [Choice(gamma=gamma, max_lead=lead) for gamma in settings.gammas for lead in settings.leads]
    return [Choice(gamma=gamma) for gamma in settings.gammas]


def _prompts(tokenizer: Tokenizer, num_prompts: int) -> list[tuple[int, ...]]:
    """Prompts of all kinds in turn, no two alike."""
    by_kind: list[Sequence[BenchPrompt]] = [bench_prompts(kind) for kind in PromptKind]
    mixed = [prompt for turn in zip(*by_kind, strict=True) for prompt in turn]
    return [tuple(tokenizer.encode_chat(prompt.messages)) for prompt in mixed[:num_prompts]]


def _most_prompts() -> int:
    return sum(len(bench_prompts(kind)) for kind in PromptKind) - _NUM_CALIBRATION_PROMPTS


def _num_runs(settings: Settings) -> int:
    """Runs and contention turns of one kind of weights."""
    num_choices = sum(len(_choices(settings, system)) for system in PlantedSystem)
    num_plain = 2 * (settings.num_prompts + _NUM_CALIBRATION_PROMPTS)
    for_each_acceptance = num_choices * _NUM_CALIBRATION_PROMPTS + len(PlantedSystem) * settings.num_prompts
    num_contention = num_ticks(settings.num_contention_turns, len(DEFAULT_INTERVALS_MS))
    return num_plain + len(settings.acceptances) * for_each_acceptance + num_contention


async def measure(settings: Settings) -> Measured:
    """Everything, one kind of weights after the other."""
    measured = Measured(rows=[], trials=[], contention=[], same_on_all_threads={})
    for weights in settings.weights:
        progress: tqdm[NoReturn] = tqdm(
            total=_num_runs(settings), desc=weights.value, unit="run", disable=None, file=sys.stderr
        )
        with ExitStack() as stack:
            bench = await asyncio.to_thread(_WeightsBench, settings, weights, stack, progress)
            measured.same_on_all_threads[weights.value] = await bench.run_plain()
            for acceptance in settings.acceptances:
                trials = await bench.calibrate(acceptance)
                measured.trials += trials
                choices = {trial.system: trial.choice for trial in trials if trial.chosen}
                measured.rows += await bench.measure(acceptance, choices)
            if settings.num_contention_turns:
                # The event loop has nothing else to do, and sleeps beside the two threads as it does in a round.
                measured.contention += await asyncio.to_thread(_contention, settings, weights, bench, progress)
        progress.close()
    return measured


def _contention(
    settings: Settings, weights: WeightKind, bench: _WeightsBench, progress: tqdm[NoReturn]
) -> list[ContentionRow]:
    return measure_contention(
        bench.target,
        bench.draft,
        DraftSource(checkpoint=settings.target, weights=weights),
        num_calls=_CALLS_OF_A_TURN,
        num_turns=settings.num_contention_turns,
        tick=lambda: _tick(progress),
    )


def _tick(progress: tqdm[NoReturn]) -> None:
    progress.update()


def _parse(arguments: Sequence[str] | None) -> tuple[Settings, Path | None]:
    parser = argparse.ArgumentParser(
        prog="python -m profiling.planted",
        description="Plain, sequential and pipelined decoding at an acceptance that is planted.",
    )
    parser.add_argument("--target", help="folder, .gguf file or hub id (default: the demo weights)")
    parser.add_argument(
        "--acceptance",
        type=float,
        nargs="+",
        default=[0.6, 0.7, 0.8, 0.9],
        help="probabilities that a drafted token is right (default: 0.6 0.7 0.8 0.9)",
    )
    parser.add_argument(
        "--weights",
        nargs="+",
        choices=[kind.value for kind in WeightKind],
        default=["float16", "int8"],
        help="weight kinds (default: float16 int8)",
    )
    num_threads = max(2, torch.get_num_threads())
    parser.add_argument(
        "--threads", type=int, default=num_threads, help=f"intra-op threads in all, 2 or more (default: {num_threads})"
    )
    most_prompts = _most_prompts()
    parser.add_argument("--prompts", type=int, default=9, help=f"timed prompts, 1 to {most_prompts} (default: 9)")
    parser.add_argument("--tokens", type=int, default=96, help="tokens of each run (default: 96)")
    parser.add_argument("--gammas", type=int, nargs="+", default=GAMMAS, help="gammas to try (default: 2 4 6 8)")
    parser.add_argument("--leads", type=int, nargs="+", default=LEADS, help="leads to try (default: 4 8 12)")
    parser.add_argument(
        "--contention",
        type=int,
        default=5,
        help="turns of the measurement of what two threads cost each other, 0 for none (default: 5)",
    )
    parser.add_argument("--out", type=new_file, help="also write the JSON to this file")
    chosen = parser.parse_args(arguments)
    if not all(0 <= acceptance <= 1 for acceptance in chosen.acceptance):
        parser.error(f"--acceptance must be probabilities, from 0 to 1, got {chosen.acceptance}")
    if chosen.threads < 2 or not 1 <= chosen.prompts <= most_prompts:
        parser.error(f"--threads must be at least 2, --prompts 1 to {most_prompts}")
    if not all(1 <= gamma <= max(GAMMAS) for gamma in chosen.gammas) or not all(1 <= n <= 64 for n in chosen.leads):
        parser.error(f"--gammas must be within 1 and {max(GAMMAS)}, --leads within 1 and 64")
    if chosen.tokens < _LEAST_TOKENS or chosen.contention < 0:
        parser.error(f"--tokens must be at least {_LEAST_TOKENS}, --contention at least 0")
    try:
        target = str(demo_weights()) if chosen.target is None else chosen.target
    except SlipstreamError as error:
        parser.error(str(error))
    settings = Settings(
        target=target,
        acceptances=tuple(dict.fromkeys(chosen.acceptance)),
        weights=tuple(WeightKind(name) for name in dict.fromkeys(chosen.weights)),
        threads=chosen.threads,
        num_prompts=chosen.prompts,
        num_tokens=chosen.tokens,
        gammas=tuple(dict.fromkeys(chosen.gammas)),
        leads=tuple(dict.fromkeys(chosen.leads)),
        num_contention_turns=chosen.contention,
    )
    return settings, chosen.out


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the tables, and print one line of JSON last."""
    settings, out = _parse(arguments)
    machine = describe_machine()
    measured = asyncio.run(measure(settings))
    report = {
        "machine": machine,
        "threads": settings.threads,
        "num_prompts": settings.num_prompts,
        "num_tokens": settings.num_tokens,
        "gammas": settings.gammas,
        "leads": settings.leads,
        **asdict(measured),
    }
    print(format_planted(measured.rows))
    if measured.contention:
        print("\nOne verify and one draft step, a thread each:\n" + format_contention(measured.contention))
    if out is not None:
        out.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report))
    return 0


if __name__ == "__main__":
    run_program(main)
