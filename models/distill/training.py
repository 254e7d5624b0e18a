"""A training run from its first step to its last, over any number of interruptions.

Owns the loop: steps, evaluations, checkpoints and the early stop. Knows nothing of command lines.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from models.distill.batched_target import BatchedTarget
from models.distill.corpus import Batch, Corpus
from models.distill.draft_model import DraftModel
from models.distill.run_state import HistoryPoint, RunState, load_state, save_state, score
from models.distill.settings import TrainingSettings
from models.distill.trainer import Trainer

STATE_FILE = "training.safetensors"
EVALUATED_SEQUENCES = 48
"""At most, of those that are held out."""
_TIMED_STEPS = 4
_TIMED_SEQUENCES = 8


@dataclass(frozen=True, kw_only=True)
class TrainingProgress:
    """Told after every step."""

    step: int
    num_steps: int
    tokens_per_s: float
    loss: float
    """A running mean."""
    acceptance: float
    """On the text being learnt, a running mean."""
    held_out_acceptance: float | None
    """Of the last evaluation."""


def train(
    folder: Path,
    draft: DraftModel,
    target: BatchedTarget,
    corpus: Corpus,
    head_token_ids_C: torch.Tensor | None,
    settings: TrainingSettings,
    *,
    dtype: torch.dtype,
    num_workers: int,
    report: Callable[[TrainingProgress], None] = lambda _: None,
) -> RunState:
    """Train until the budget is used up or nothing gets better; `draft` then holds its best parameters.

    Args:
        folder: of the checkpoint, from which the run goes on if there is one.
        draft: initialised.
        target: what it learns from.
        corpus: the written text.
        head_token_ids_C: what it can propose; None is all.
        settings: of the training.
        dtype: of matrix products.
        num_workers: threads.
        report: told after each step.

    Raises:
        CheckpointError: if the checkpoint cannot be read or written.
        DistillationError: if the loss is not finite; the last checkpoint stays.
        ValueError: if the checkpoint is of other settings.
    """
    path = folder / STATE_FILE
    text: dict[str, object] = {"num_sequences": len(corpus.training), "sequence_length": corpus.sequence_length}
    parameters = dict(draft.named_parameters())
    num_steps = _steps_of_epochs(corpus, settings)
    resumed = path.exists()
    if settings.minutes is not None and not resumed:
        num_steps = _steps_in(settings.minutes, draft, target, corpus, head_token_ids_C, settings, dtype, num_workers)
    trainer = Trainer(
        draft, target, head_token_ids_C, settings, num_steps=num_steps, num_workers=num_workers, dtype=dtype
    )
    try:
        state = RunState(num_steps=num_steps)
        if resumed:
            state = load_state(path, settings, parameters, trainer.optimiser, text=text)
            trainer.num_steps = state.num_steps
        run = _Run(path, state, trainer, draft, corpus, settings, text)
        run.to_end(report)
    finally:
        trainer.close()
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(state.best[name])
    return state


class _Run:
    def __init__(
        self,
        path: Path,
        state: RunState,
        trainer: Trainer,
        draft: DraftModel,
        corpus: Corpus,
        settings: TrainingSettings,
        text: dict[str, object],
    ) -> None:
        self._path = path
        self._state = state
        self._trainer = trainer
        self._draft = draft
        self._corpus = corpus
        self._settings = settings
        self._text = text
        self._evaluated = evaluated_batches(corpus)
        self._every = max(1, state.num_steps // settings.evaluations)

    def to_end(self, report: Callable[[TrainingProgress], None]) -> None:
        state, settings = self._state, self._settings
        if not state.history:
            self._evaluate(loss=None)
        batches = self._corpus.places_from(state.step, batch_sequences=settings.batch_sequences, seed=settings.seed)
        losses: list[float] = []
        loss, acceptance = 0.0, 0.0
        while state.step < state.num_steps and state.num_without_gain < settings.patience:
            started_s = time.monotonic()
            batch = self._corpus.batch(next(batches))
            done = self._trainer.step(batch, state.step)
            state.step += 1
            elapsed_s = time.monotonic() - started_s
            state.trained_s += elapsed_s
            losses.append(done.loss)
            share = 1 / min(len(losses), 50)
            loss += share * (done.loss - loss)
            acceptance += share * (done.acceptance[0] - acceptance)
            if state.step % self._every == 0 or state.step == state.num_steps:
                self._evaluate(loss=sum(losses) / len(losses))
                losses.clear()
            report(
                TrainingProgress(
                    step=state.step,
                    num_steps=state.num_steps,
                    tokens_per_s=batch.token_ids_BT.numel() / elapsed_s,
                    loss=loss,
                    acceptance=acceptance,
                    held_out_acceptance=state.history[-1].held_out_acceptance[0],
                )
            )

    def _evaluate(self, *, loss: float | None) -> None:
        """Note how it stands, and leave a checkpoint."""
        state = self._state
        acceptance = self._trainer.acceptance(self._evaluated)
        if score(acceptance) > state.best_acceptance or not state.history:
            state.best_step = state.step
            state.best = {name: p.detach().clone() for name, p in self._draft.named_parameters()}
        state.history.append(
            HistoryPoint(
                step=state.step,
                num_tokens=state.step * self._settings.batch_sequences * self._corpus.sequence_length,
                loss=loss,
                held_out_acceptance=acceptance,
                trained_s=state.trained_s,
            )
        )
        save_state(
            self._path,
            state,
            self._settings,
            dict(self._draft.named_parameters()),
            self._trainer.optimiser,
            text=self._text,
        )


def evaluated_batches(corpus: Corpus, most_sequences: int = EVALUATED_SEQUENCES) -> list[Batch]:
    """Held-out sequences, each by itself, that an evaluation goes through."""
    return [corpus.batch([place]) for place in corpus.held_out[: min(most_sequences, EVALUATED_SEQUENCES)]]


def steps_within(budget_s: float, *, step_s: float, evaluation_s: float, evaluations: int) -> int:
    """How many steps fit with their evaluations, of which there is one before the first step too; at least 1.

    Args:
        budget_s: for all of it.
        step_s: of a step, on average.
        evaluation_s: of one evaluation.
        evaluations: that are wanted; there cannot be more than steps.
    """
    num_steps = (budget_s - (evaluations + 1) * evaluation_s) / step_s
    if num_steps < evaluations:
        num_steps = (budget_s - evaluation_s) / (step_s + evaluation_s)
    return max(1, round(num_steps))


def _evaluation_s(trainer: Trainer, corpus: Corpus) -> float:
    """What an evaluation takes, from a few of its sequences."""
    timed = evaluated_batches(corpus, _TIMED_SEQUENCES)
    started_s = time.monotonic()
    trainer.acceptance(timed)
    elapsed_s = time.monotonic() - started_s
    return elapsed_s * min(len(corpus.held_out), EVALUATED_SEQUENCES) / len(timed)


def _steps_s(trainer: Trainer, batches: Sequence[Batch], step: int) -> float:
    """What these batches take, as they would at that step of the training."""
    started_s = time.monotonic()
    for batch in batches:
        trainer.step(batch, step)
    return time.monotonic() - started_s


def _steps_of_epochs(corpus: Corpus, settings: TrainingSettings) -> int:
    size = min(settings.batch_sequences, len(corpus.training))
    return max(1, round(settings.num_epochs * (len(corpus.training) // size)))


def _steps_in(
    minutes: float,
    draft: DraftModel,
    target: BatchedTarget,
    corpus: Corpus,
    head_token_ids_C: torch.Tensor | None,
    settings: TrainingSettings,
    dtype: torch.dtype,
    num_workers: int,
) -> int:
    """How many steps fit, evaluations included, from a few that a copy of the draft takes."""
    trainer = Trainer(
        copy.deepcopy(draft), target, head_token_ids_C, settings, num_steps=100, num_workers=num_workers, dtype=dtype
    )
    try:
        places = corpus.places_from(0, batch_sequences=settings.batch_sequences, seed=settings.seed)
        batches = [corpus.batch(next(places)) for _ in range(_TIMED_STEPS)]
        trainer.step(batches[0], 0)
        first_s, last_s = (
            _steps_s(trainer, batches[1:], step) / (_TIMED_STEPS - 1) for step in (0, trainer.num_steps - 1)
        )
        step_s = settings.own_steps_after * first_s + (1 - settings.own_steps_after) * last_s
        evaluation_s = _evaluation_s(trainer, corpus)
    finally:
        trainer.close()
    return steps_within(minutes * 60, step_s=step_s, evaluation_s=evaluation_s, evaluations=settings.evaluations)
