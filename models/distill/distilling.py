"""From a plan to a draft's folder: write, train, export, judge, draw.

Owns the stages' order and what each is told. A stage that is done already takes no time when it comes again, so that
going on after an interruption is doing all of it once more. Knows nothing of command lines.
"""

from __future__ import annotations

import dataclasses
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from models.checkpoint import open_checkpoint
from models.distill.batched_target import BatchedTarget
from models.distill.card import CardFacts, draft_card
from models.distill.charts import (
    EVALUATION_CHART_FILE,
    TRAINING_CHART_FILE,
    write_evaluation_chart,
    write_training_chart,
)
from models.distill.console import Console
from models.distill.corpus import Corpus
from models.distill.draft_model import DraftModel, frequent_token_ids
from models.distill.evaluation import Evaluation
from models.distill.judging import judge_exported
from models.distill.machine import machine_text
from models.distill.making import Making
from models.distill.plan import Plan
from models.distill.reading import read_shard_paths, read_text
from models.distill.run_state import RunState
from models.distill.shard import shard_path
from models.distill.text_kind import TextKind
from models.distill.training import TrainingProgress, train
from models.distill.writing import WritingProgress, write_text, written_s
from models.draft_folder import HEAD_TOKEN_IDS, open_draft, write_draft
from models.errors import CheckpointError, MissingDependencyError


@dataclass(frozen=True, kw_only=True)
class Trained:
    """The draft after training."""

    draft: DraftModel
    state: RunState
    head_token_ids_C: torch.Tensor | None
    num_text_tokens: int
    """To learn from, without copies and the held-out part."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of it."""

    folder: Path
    making: Mapping[str, object]
    """As `draft.json` has it."""
    evaluation: Evaluation | None
    """None where there was nothing to judge by."""


class Distillation:
    """One run of all stages."""

    def __init__(self, plan: Plan, console: Console, *, command: str, is_exported: bool = False) -> None:
        """Bind the plan.

        Args:
            plan: what to do.
            console: who is told.
            command: that makes the draft, for its card.
            is_exported: whether the draft lies in `out` and only has to be judged.
        """
        self._plan = plan
        self._console = console
        self._command = command
        self._is_exported = is_exported
        self.stage = "beginning"
        """What is being done, to follow "while"."""
        self.kept = "nothing was begun"
        """What an interruption leaves."""

    def run(self) -> Outcome:
        """Do what is not done yet.

        Raises:
            SlipstreamError: CheckpointError, DistillationError and others of the tree; what was done stays.
            ValueError: if the work folder holds something that does not go with the plan.
            OSError: if the draft's folder cannot be written.
        """
        num_threads = torch.get_num_threads()
        try:
            if not self._is_exported:
                self._write()
                self._export(self._train())
            return self._judge()
        finally:
            # Each stage takes what it needs.
            torch.set_num_threads(num_threads)

    def _write(self) -> None:
        plan = self._plan
        self.stage = "writing"
        with self._console.progress("writing", "tokens") as bar:

            def tell(progress: WritingProgress) -> None:
                self.kept = f"{progress.num_kept:,} written tokens are kept in {plan.text_folder}"
                bar.tell(progress.num_done, progress.num_wanted, f"{progress.num_kept:,} kept")

            write_text(
                plan.text_folder,
                plan.source,
                plan.writing,
                device=plan.device,
                dtype=plan.dtype,
                num_workers=plan.num_workers,
                report=tell,
            )
        if plan.read_files:
            self._read()

    def _read(self) -> None:
        plan = self._plan
        self.stage = "reading"
        torch.set_num_threads(plan.num_workers)
        with self._console.progress("reading", "tokens") as bar:
            read_text(
                plan.text_folder,
                plan.source,
                plan.read_files,
                sequence_length=plan.writing.sequence_length,
                device=plan.device,
                dtype=plan.dtype,
                report=bar.tell,
            )

    def _train(self) -> Trained:
        plan = self._plan
        self.stage = "training"
        self.kept = f"all text and the last checkpoint are kept in {plan.work}"
        # Sums over whole tensors depend on how many threads share them; the workers do the work.
        torch.set_num_threads(1)
        corpus = Corpus.of(_shards(plan))
        with open_checkpoint(plan.source) as checkpoint:
            config = checkpoint.config
            target = BatchedTarget(
                checkpoint,
                dtype=plan.dtype,
                device=plan.device,
                num_positions=corpus.sequence_length,
                with_layers=False,
            )
            draft = DraftModel(config, design=plan.training.design, num_layers=plan.training.num_layers)
            draft.initialise(checkpoint)
        head_token_ids_C = None
        if 0 < plan.training.num_head_tokens < config.vocab_size:
            counts_V = corpus.token_counts(config.vocab_size)
            head_token_ids_C = frequent_token_ids(counts_V, plan.training.num_head_tokens)
        with self._console.progress("training", "steps") as bar:

            def tell(progress: TrainingProgress) -> None:
                words = f"{progress.tokens_per_s:,.0f} tokens/s, loss {progress.loss:.3f}"
                if progress.held_out_acceptance is not None:
                    words += f", held-out acceptance {progress.held_out_acceptance:.3f}"
                bar.tell(progress.step, progress.num_steps, words)

            state = train(
                plan.training_folder,
                draft.to(plan.device),
                target,
                corpus,
                head_token_ids_C,
                plan.training,
                dtype=plan.dtype,
                num_workers=plan.num_workers,
                report=tell,
            )
        return Trained(
            draft=draft,
            state=state,
            head_token_ids_C=head_token_ids_C,
            num_text_tokens=corpus.num_training_tokens,
        )

    def _export(self, trained: Trained) -> None:
        """First of all the draft, so that whatever happens to its judging, it is there."""
        plan, state = self._plan, trained.state
        self.stage = "exporting"
        self.kept = f"the trained draft is kept in {plan.training_folder}"
        making = Making(
            settings=plan.settings(),
            num_text_tokens=trained.num_text_tokens,
            num_seen_tokens=state.history[-1].num_tokens,
            trained_s=round(state.trained_s, 1),
            written_s=written_s(plan.text_folder, plan.writing.num_waves),
            best_step=state.best_step,
            num_steps=state.step,
            history=tuple(state.history),
            machine=machine_text(plan.device, plan.num_workers),
            python=platform.python_version(),
            figures=None,
            finished=False,
        )
        self._publish(making, trained.draft.export(trained.head_token_ids_C, dtype=torch.float16))

    def _judge(self) -> Outcome:
        plan = self._plan
        self.stage = "judging"
        self.kept = f"the draft lies in {plan.out} and can be used, without figures"
        torch.set_num_threads(plan.num_workers)
        exported = open_draft(plan.out, plan.target)
        evaluation = judge_exported(plan, exported, self._console)
        making = dataclasses.replace(Making.of(exported.description.making), figures=evaluation, finished=True)
        self.stage = "finishing"
        self._publish(making, exported.tensors())
        return Outcome(folder=plan.out, making=making.as_json(), evaluation=evaluation)

    def _publish(self, making: Making, tensors: Mapping[str, torch.Tensor]) -> None:
        plan = self._plan
        try:
            write_draft(
                plan.out,
                design=plan.training.design,
                num_layers=plan.training.num_layers,
                target=plan.target,
                tensors=tensors,
                making=making.as_json(),
                card=draft_card(_card_facts(plan, making, tensors, command=self._command)),
            )
        except OSError as error:
            raise CheckpointError(
                f"cannot write the draft to {plan.out}: {error.strerror or error}; {self.kept}: make room and run the "
                "same command again"
            ) from error
        draw_plots(making, plan.out, self._console)


def draw_plots(making: Making, folder: Path, console: Console, *, only_missing: bool = False) -> None:
    """Draw what is known of a draft; what hinders it is told, and nothing more."""
    drawn = {TRAINING_CHART_FILE: partial(write_training_chart, making.history)}
    if making.figures is not None:
        drawn[EVALUATION_CHART_FILE] = partial(write_evaluation_chart, making.figures)
    try:
        for name, draw in drawn.items():
            if not (only_missing and (folder / name).exists()):
                draw(folder / name)
    except (MissingDependencyError, OSError) as error:
        console.note(f"no plots: {error}")


def _card_facts(plan: Plan, making: Making, tensors: Mapping[str, torch.Tensor], *, command: str) -> CardFacts:
    head_token_ids_C = tensors.get(HEAD_TOKEN_IDS)
    return CardFacts(
        name=plan.out.resolve().name,
        target_name=plan.target.name,
        is_demo_target=plan.is_demo_target,
        design=plan.training.design,
        num_layers=plan.training.num_layers,
        num_head_tokens=None if head_token_ids_C is None else len(head_token_ids_C),
        num_bytes=sum(tensor.nbytes for tensor in tensors.values()),
        command=command,
        machine=making.machine,
        num_written_tokens=plan.writing.num_waves * plan.writing.sequences_per_wave * plan.writing.sequence_length,
        num_seen_tokens=making.num_seen_tokens,
        quoted=_quoted(plan),
        read_files=tuple(path.name for path in plan.read_files),
        best_step=making.best_step,
        num_steps=making.num_steps,
        training_minutes=making.trained_s / 60,
        writing_minutes=None if making.written_s is None else making.written_s / 60,
        settings=plan.settings(),
        precision=str(plan.dtype).removeprefix("torch."),
        evaluation=making.figures,
    )


def _quoted(plan: Plan) -> str | None:
    """What prompts and beginnings quote, in words; None where nothing is quoted."""
    kinds = set(plan.writing.kinds)
    if plan.writing.text_files:
        names = ", ".join(path.name for path in plan.writing.text_files)
        return f"passages of {names}" if kinds & {TextKind.COPY, TextKind.TEXT} else None
    if kinds & {TextKind.COPY, TextKind.CODE, TextKind.TEXT}:
        return "docstrings and function heads of Python's standard library"
    return None


def _shards(plan: Plan) -> list[Path]:
    """Of the plan's own text: the folder may hold more, from another draft that asked for more."""
    written = [shard_path(plan.text_folder, wave) for wave in range(plan.writing.num_waves)]
    return [*written, *(read_shard_paths(plan.text_folder) if plan.read_files else ())]
