"""The program: a plan, an estimate or a distillation, and how each of them ends.

Owns the order of things, exit statuses and the wording of results. Knows nothing of how options are written.
"""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from models.checkpoint import open_checkpoint
from models.distill.arguments import PROGRAM, Arguments, UsageError, parse_arguments
from models.distill.console import Console, duration_text
from models.distill.distilling import Distillation, Outcome, draw_plots
from models.distill.evaluation import Evaluation
from models.distill.judging import judged_lengths
from models.distill.machine import has_bfloat16_units
from models.distill.making import Making
from models.distill.needs import JUDGED_PROMPTS, Needs, check_needs, needs_of, size_text
from models.distill.plan import Plan, begin_work, make_plan
from models.distill.speed import Speed, sample_speed
from models.distill.standing import Standing, standing_of
from models.distill.training import EVALUATED_SEQUENCES
from models.draft_folder import read_draft_description
from models.errors import CheckpointError, SlipstreamError
from models.free_memory import available_memory

DONE, FAILED, WRONG_USAGE, INTERRUPTED = 0, 1, 2, 130
"""Exit statuses; the last is that of a shell's child that SIGINT ended."""

_CHARACTERS_PER_TOKEN = 4
"""Of text that is read, for the estimate."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line, that of the process by default; returns the exit status.

    What is wrong with the usage, the input or the target becomes one line on standard error.
    """
    console = Console()
    given = sys.argv[1:] if argv is None else list(argv)
    try:
        arguments = parse_arguments(given)
        with console.warnings_shown():
            return _run(arguments, console, command=shlex.join([*PROGRAM.split(), *given]))
    except UsageError as error:
        console.error(error)
        return WRONG_USAGE
    except KeyboardInterrupt:
        console.note("interrupted")
        return INTERRUPTED
    except (SlipstreamError, TypeError, ValueError, OSError, ImportError) as error:
        console.error(error)
        return FAILED


def _run(arguments: Arguments, console: Console, *, command: str) -> int:
    plan = make_plan(arguments)
    standing = standing_of(plan)
    if standing is Standing.FINISHED:
        _show_finished(plan, arguments, console)
        return DONE
    _tell_plan(plan, console)
    if standing is Standing.DAMAGED:
        console.note(f"the weights in {plan.out} are missing or damaged: they are exported from the checkpoint again")
    needs = needs_of(
        plan.target.config,
        plan.writing,
        plan.training,
        num_read_tokens=_num_read_tokens(plan.read_files),
        num_workers=plan.num_workers,
        dtype=plan.dtype,
    )
    if arguments.estimate:
        _estimate(plan, needs, arguments, console)
        return DONE
    is_exported = standing is Standing.EXPORTED
    if is_exported:
        console.note(f"the draft lies in {plan.out} and is yet to be judged")
    if not arguments.anyway:
        _check(plan, needs.of_judging() if is_exported else needs)
    if not is_exported:
        begin_work(plan)
    distillation = Distillation(plan, console, command=command, is_exported=is_exported)
    try:
        outcome = distillation.run()
    except KeyboardInterrupt:
        console.note(
            f"interrupted while {distillation.stage}; {distillation.kept}; the same command goes on from there, and "
            f"deleting {plan.work} forgets it"
        )
        return INTERRUPTED
    _show(outcome, plan, arguments, console)
    return DONE


def _show_finished(plan: Plan, arguments: Arguments, console: Console) -> None:
    console.note(f"{plan.out} is finished: delete it, or name another --out, to make another draft")
    making = read_draft_description(plan.out).making
    try:
        draw_plots(Making.of(making), plan.out, console, only_missing=True)
    except CheckpointError as error:
        console.note(f"no plots: {error}")
    if arguments.json:
        console.result(json.dumps({"draft": str(plan.out), "finished_before": True, **making}))


def _tell_plan(plan: Plan, console: Console) -> None:
    precision = str(plan.dtype).removeprefix("torch.")
    console.note(
        f"distilling a {plan.training.design.value} draft of {plan.target.name} on {plan.device.type} in {precision}; "
        f"work files lie in {plan.work}"
    )
    for remark in plan.remarks:
        console.note(remark)
    if plan.device.type == "cpu" and plan.dtype is torch.float32 and has_bfloat16_units():
        console.note("this processor has units for bfloat16: --dtype bfloat16 is faster here")


def _check(plan: Plan, needs: Needs) -> None:
    check_needs(
        needs,
        memory=available_memory(plan.device),
        free_disk_bytes=shutil.disk_usage(_existing(plan.work)).free,
        present_disk_bytes=_size_of(plan.work),
    )


def _estimate(plan: Plan, needs: Needs, arguments: Arguments, console: Console) -> None:
    """Print what it takes, and refuse what does not fit.

    Raises:
        InsufficientMemoryError, DistillationError: as `check_needs` does; what does not fit is not timed either.
    """
    if not arguments.anyway:
        _check(plan, needs)
    console.note("writing and training for a few seconds ...")
    with open_checkpoint(plan.source) as checkpoint:
        speed = sample_speed(
            checkpoint,
            plan.writing,
            plan.training,
            num_workers=plan.num_workers,
            device=plan.device,
            dtype=plan.dtype,
        )
    writing_s = _num_written_tokens(plan) / speed.writing_tokens_per_s
    reading_s = _num_read_tokens(plan.read_files) / speed.reading_tokens_per_s
    training_s = _training_s(plan, speed)
    judging_s = 2 * JUDGED_PROMPTS * judged_lengths(plan.target.config)[1] / speed.judging_tokens_per_s
    if arguments.json:
        record = {
            **asdict(speed),
            "writing_s": writing_s,
            "reading_s": reading_s,
            "training_s": training_s,
            "judging_s": judging_s,
            **asdict(needs),
            "peak_bytes": needs.peak_bytes,
            "disk_bytes": needs.disk_bytes,
            "settings": plan.settings(),
        }
        console.result(json.dumps(record))
        return
    memory = available_memory(plan.device)
    free = "an unknown amount is free" if memory.num_bytes is None else f"{size_text(memory.num_bytes)} are free"
    console.result(
        f"writing   {_num_written_tokens(plan):,} tokens at about {speed.writing_tokens_per_s:,.0f} a second: "
        f"{duration_text(writing_s)}\n"
        f"reading   {_num_read_tokens(plan.read_files):,} tokens at about {speed.reading_tokens_per_s:,.0f} a second: "
        f"{duration_text(reading_s)}\n"
        f"training  at about {speed.training_tokens_per_s:,.0f} tokens a second, evaluations included: "
        f"{duration_text(training_s)}\n"
        f"judging   {duration_text(judging_s)}\n"
        f"memory    {size_text(needs.writing_bytes)} to write (weights {size_text(needs.weight_bytes)}, caches "
        f"{size_text(needs.cache_bytes)}), {size_text(needs.training_bytes)} to train, "
        f"{size_text(needs.judging_bytes)} to judge; {free}\n"
        f"disk      {size_text(needs.disk_bytes)} (text {size_text(needs.shard_bytes)}); "
        f"{size_text(shutil.disk_usage(_existing(plan.work)).free)} are free"
    )


def _training_s(plan: Plan, speed: Speed) -> float:
    if plan.training.minutes is not None:
        return plan.training.minutes * 60
    num_tokens = _num_written_tokens(plan) + _num_read_tokens(plan.read_files)
    evaluated_tokens = (plan.training.evaluations + 1) * EVALUATED_SEQUENCES * plan.writing.sequence_length
    return (
        plan.training.num_epochs * num_tokens / speed.training_tokens_per_s
        + evaluated_tokens / speed.evaluating_tokens_per_s
    )


def _num_written_tokens(plan: Plan) -> int:
    return plan.writing.num_waves * plan.writing.sequences_per_wave * plan.writing.sequence_length


def _num_read_tokens(files: Sequence[Path]) -> int:
    """About."""
    return sum(path.stat().st_size for path in files if path.is_file()) // _CHARACTERS_PER_TOKEN


def _existing(path: Path) -> Path:
    """The nearest folder that is there."""
    return next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.is_dir())


def _size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _show(outcome: Outcome, plan: Plan, arguments: Arguments, console: Console) -> None:
    if arguments.json:
        console.result(json.dumps({"draft": str(outcome.folder), "finished_before": False, **outcome.making}))
    elif outcome.evaluation is not None:
        console.result(_table(outcome.evaluation))
    console.note(
        f"the draft lies in {outcome.folder}: python -m runtime --target {shlex.quote(plan.source)} "
        f"--draft {shlex.quote(str(outcome.folder))}\n"
        f"text and checkpoints are kept in {plan.work}; delete it if no other draft is to be made from them"
    )


def _table(evaluation: Evaluation) -> str:
    rows = [f"{'text':8} {'sum min(p, q)':>14} {'greedy':>8} {'shared noise':>13} {'tokens a round':>15}"]
    groups = {str(kind): figures for kind, figures in evaluation.by_kind.items()} | {"all": evaluation.overall}
    rows += [
        f"{name:8} {figures.acceptance:14.3f} {figures.greedy_agreement:8.3f} {figures.shared_noise_agreement:13.3f} "
        f"{figures.rejection_length:15.2f}"
        for name, figures in groups.items()
    ]
    return "\n".join(rows)
