"""From a plan to a draft's folder: write, train, judge, export, draw.

Owns the stages' order and what each is told. A stage that is done already takes no time when it comes again, so that
going on after an interruption is doing all of it once more. Knows nothing of command lines.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from models.checkpoint import open_checkpoint
from models.distill.batched_target import BatchedTarget
from models.distill.card import CardFacts, draft_card
from models.distill.charts import write_evaluation_chart, write_training_chart
from models.distill.console import Console
from models.distill.corpus import Corpus
from models.distill.draft_model import DraftModel, frequent_token_ids
from models.distill.evaluation import Evaluation, evaluate
from models.distill.held_out_prompts import HELD_OUT_KINDS, HeldOutPrompt, held_out_prompts
from models.distill.machine import machine_text
from models.distill.plan import EVALUATION_CHART_FILE, TRAINING_CHART_FILE, Plan
from models.distill.reading import read_shard_paths, read_text
from models.distill.run_state import RunState
from models.distill.shard import shard_path
from models.distill.training import TrainingProgress, train
from models.distill.writing import WritingProgress, write_text
from models.draft_folder import write_draft
from models.errors import CheckpointError, DistillationError, MissingDependencyError
from models.tokenizer import Tokenizer

_JUDGED_POSITIONS = 768
_ANSWER_TOKENS = 128


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

    def __init__(self, plan: Plan, console: Console, *, command: str) -> None:
        """Bind the plan.

        Args:
            plan: what to do.
            console: who is told.
            command: that makes the draft, for its card.
        """
        self._plan = plan
        self._console = console
        self._command = command
        self.stage = "beginning"
        """What is being done, to follow "while"."""
        self.kept = "nothing was begun"
        """What an interruption leaves."""
        self._writing_minutes: float | None = None

    def run(self) -> Outcome:
        """Do what is not done yet.

        Raises:
            SlipstreamError: CheckpointError, DistillationError and others of the tree; what was done stays.
            ValueError: if the work folder holds something that does not go with the plan.
            OSError: if the draft's folder cannot be written.
        """
        num_threads = torch.get_num_threads()
        try:
            self._write()
            trained = self._train()
            evaluation = self._evaluate(trained)
            return self._export(trained, evaluation)
        finally:
            # Each stage takes what it needs.
            torch.set_num_threads(num_threads)

    def _write(self) -> None:
        plan = self._plan
        self.stage = "writing"
        started_s = time.monotonic()
        begun_with: list[int] = []
        with self._console.progress("writing", "tokens") as bar:

            def tell(progress: WritingProgress) -> None:
                begun_with.append(progress.num_done)
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
        if begun_with[0] == 0:
            self._writing_minutes = (time.monotonic() - started_s) / 60
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

    def _evaluate(self, trained: Trained) -> Evaluation | None:
        plan = self._plan
        self.stage = "judging"
        self.kept = f"the trained draft is kept in {plan.training_folder}"
        torch.set_num_threads(plan.num_workers)
        config = plan.target.config
        num_positions = min(config.context_length, config.sliding_window or config.context_length, _JUDGED_POSITIONS)
        num_answer_tokens = min(_ANSWER_TOKENS, num_positions // 2)
        with open_checkpoint(plan.source) as checkpoint:
            prompts = self._prompts(checkpoint.tokenizer(), most_tokens=num_positions - num_answer_tokens)
            if not prompts:
                return None
            target = BatchedTarget(checkpoint, dtype=plan.dtype, device=plan.device, num_positions=num_positions)
        try:
            with self._console.progress("judging", "prompts") as bar:
                return evaluate(
                    trained.draft,
                    target,
                    trained.head_token_ids_C,
                    prompts,
                    end_ids=plan.eos_token_ids,
                    num_tokens=num_answer_tokens,
                    seed=plan.training.seed,
                    report=bar.tell,
                )
        except DistillationError as error:
            self._console.note(f"the draft was not judged: {error}")
            return None

    def _prompts(self, tokenizer: Tokenizer, *, most_tokens: int) -> list[HeldOutPrompt]:
        prompts: list[HeldOutPrompt] = []
        for kind in HELD_OUT_KINDS:
            try:
                prompts += held_out_prompts(tokenizer, kinds=(kind,), most_tokens=most_tokens)
            except (MissingDependencyError, ValueError) as error:
                self._console.note(f"the draft is not judged on {kind}: {error}")
        return prompts

    def _export(self, trained: Trained, evaluation: Evaluation | None) -> Outcome:
        plan, state = self._plan, trained.state
        self.stage = "finishing"
        tensors = trained.draft.export(trained.head_token_ids_C, dtype=torch.float16)
        num_seen_tokens = state.history[-1].num_tokens
        making: dict[str, object] = {
            "settings": plan.settings(),
            "num_text_tokens": trained.num_text_tokens,
            "num_seen_tokens": num_seen_tokens,
            "trained_s": round(state.trained_s, 1),
            "best_step": state.best_step,
            "history": [asdict(point) for point in state.history],
            "figures": None if evaluation is None else asdict(evaluation),
        }
        card = draft_card(
            CardFacts(
                name=plan.out.resolve().name,
                target_name=plan.target.name,
                is_demo_target=plan.is_demo_target,
                design=plan.training.design,
                num_layers=plan.training.num_layers,
                num_head_tokens=None if trained.head_token_ids_C is None else len(trained.head_token_ids_C),
                num_bytes=sum(tensor.nbytes for tensor in tensors.values()),
                command=self._command,
                machine=machine_text(plan.device, plan.num_workers),
                num_written_tokens=plan.writing.num_waves
                * plan.writing.sequences_per_wave
                * plan.writing.sequence_length,
                num_seen_tokens=num_seen_tokens,
                read_files=tuple(path.name for path in plan.read_files),
                training_minutes=state.trained_s / 60,
                writing_minutes=self._writing_minutes,
                settings=plan.settings(),
                evaluation=evaluation,
            )
        )
        try:
            write_draft(
                plan.out,
                design=plan.training.design,
                num_layers=plan.training.num_layers,
                target=plan.target,
                tensors=tensors,
                making=making,
                card=card,
            )
        except OSError as error:
            raise CheckpointError(
                f"cannot write the draft to {plan.out}: {error.strerror or error}; {self.kept}: make room and run the "
                "same command again"
            ) from error
        self._draw(state, evaluation)
        return Outcome(folder=plan.out, making=making, evaluation=evaluation)

    def _draw(self, state: RunState, evaluation: Evaluation | None) -> None:
        try:
            write_training_chart(state.history, self._plan.out / TRAINING_CHART_FILE)
            if evaluation is not None:
                write_evaluation_chart(evaluation, self._plan.out / EVALUATION_CHART_FILE)
        except (MissingDependencyError, OSError) as error:
            self._console.note(f"no plots: {error}")


def _shards(plan: Plan) -> list[Path]:
    """Of the plan's own text: the folder may hold more, from another draft that asked for more."""
    written = [shard_path(plan.text_folder, wave) for wave in range(plan.writing.num_waves)]
    return [*written, *(read_shard_paths(plan.text_folder) if plan.read_files else ())]
