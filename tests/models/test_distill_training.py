"""A toy distillation: it learns, whoever computes it, and goes on after an interruption as if there had been none.

Shape suffixes: N sequences, T tokens, E hidden width.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import operator
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from models.distill import training
from models.distill.corpus import Corpus
from models.distill.run_state import RunState
from models.distill.settings import Loss, TrainingSettings
from models.distill.shard import Shard
from models.distill.trainer import Trainer, split
from models.distill.training import STATE_FILE, TrainingProgress, steps_within, train
from models.draft_folder import DraftDesign
from models.errors import CheckpointError, DistillationError
from tests.support.toy_distillation import FixedSeeds, toy_checkpoint, toy_draft, toy_target, write_toy_text

pytestmark = pytest.mark.usefixtures("one_thread")

CHECKPOINT = toy_checkpoint()
TARGET = toy_target(CHECKPOINT)
HEAD_IDS_C = torch.arange(0, 50).roll(3)[:44].sort().values
SETTINGS = TrainingSettings(
    num_head_tokens=44, num_epochs=1.0, batch_sequences=10, evaluations=4, num_own_steps=2, learning_rate=4e-3
)


@pytest.fixture(scope="module")
def text() -> Shard:
    return write_toy_text(TARGET, FixedSeeds(), num_sequences=260, length=24)


@pytest.fixture(scope="module")
def corpus(text: Shard) -> Corpus:
    return Corpus([text])


class StoppedError(Exception):
    """Ends a run from its own report."""


def run(
    folder: Path,
    corpus: Corpus,
    settings: TrainingSettings = SETTINGS,
    *,
    num_workers: int = 1,
    report: Callable[[TrainingProgress], None] = lambda _: None,
) -> tuple[RunState, dict[str, torch.Tensor]]:
    """The state at the end, and the draft's tensors."""
    draft = toy_draft(CHECKPOINT, settings)
    state = train(
        folder,
        draft,
        TARGET,
        corpus,
        HEAD_IDS_C,
        settings,
        dtype=torch.float32,
        num_workers=num_workers,
        report=report,
    )
    return state, draft.export(None, dtype=torch.float32)


def interrupt_at(step: int) -> Callable[[TrainingProgress], None]:
    def report(progress: TrainingProgress) -> None:
        if progress.step == step:
            raise StoppedError

    return report


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def figures(state: RunState) -> list[tuple[int, float | None, tuple[float, ...]]]:
    return [(point.step, point.loss, point.held_out_acceptance) for point in state.history]


@pytest.mark.parametrize(
    ("design", "loss", "gain"),
    [
        (DraftDesign.FEATURE, Loss.FORWARD_KL, 0.3),
        (DraftDesign.FEATURE, Loss.TOTAL_VARIATION, 0.3),
        (DraftDesign.TOKEN, Loss.FORWARD_KL, 0.1),
    ],
)
def test_held_out_acceptance_rises_clearly(
    design: DraftDesign, loss: Loss, gain: float, corpus: Corpus, tmp_path: Path
) -> None:
    own_steps = 2 if design is DraftDesign.FEATURE else 1
    settings = dataclasses.replace(
        SETTINGS, design=design, loss=loss, num_own_steps=own_steps, num_epochs=6.0, evaluations=6
    )
    state, _ = run(tmp_path, corpus, settings)
    first, last = state.history[0].held_out_acceptance, state.history[-1].held_out_acceptance
    assert len(first) == own_steps
    assert last[0] > first[0] + gain, (first, last)
    assert all(after > before for before, after in zip(first, last, strict=True))
    # A proposal counts where all before it were accepted.
    scores = {point.step: sum(itertools.accumulate(point.held_out_acceptance, operator.mul)) for point in state.history}
    assert state.best_acceptance == pytest.approx(max(scores.values()))
    assert scores[state.best_step] == max(scores.values())


def test_an_interrupted_run_ends_with_the_bits_of_one_that_was_not(corpus: Corpus, tmp_path: Path) -> None:
    whole_state, whole = run(tmp_path / "whole", corpus)
    assert whole_state.num_steps >= 20
    assert sorted({step for step, _, _ in figures(whole_state)}) == [0, 6, 12, 18, 24, 25]
    folder = tmp_path / "parts"
    for step in (3, 13, 24):
        with pytest.raises(StoppedError):
            run(folder, corpus, report=interrupt_at(step))
    state, tensors = run(folder, corpus)
    assert figures(state) == figures(whole_state)
    assert same(tensors, whole)
    # A finished run that is begun again only gives what it found.
    again_state, again = run(folder, corpus, report=interrupt_at(1))
    assert figures(again_state) == figures(whole_state)
    assert same(again, whole)


def test_the_number_of_workers_changes_no_bit(corpus: Corpus, tmp_path: Path) -> None:
    settings = dataclasses.replace(SETTINGS, num_epochs=0.25)
    (one_state, one), (three_state, three) = (
        run(tmp_path / str(num_workers), corpus, settings, num_workers=num_workers) for num_workers in (1, 3)
    )
    assert figures(one_state) == figures(three_state)
    assert same(one, three)


def test_another_seed_learns_in_another_order(corpus: Corpus, tmp_path: Path) -> None:
    settings = dataclasses.replace(SETTINGS, num_epochs=0.2)
    _, first = run(tmp_path / "0", corpus, settings)
    _, second = run(tmp_path / "1", corpus, dataclasses.replace(settings, seed=1))
    assert not same(first, second)


def test_the_best_parameters_are_kept_and_training_stops_where_nothing_gets_better(
    corpus: Corpus, tmp_path: Path
) -> None:
    settings = dataclasses.replace(SETTINGS, num_own_steps=1, num_epochs=4.0, evaluations=48, patience=3)
    # So large a rate makes a draft that was good before worse.
    spoilt = dataclasses.replace(settings, learning_rate=0.1, warmup_share=0.9, largest_gradient_norm=100.0)
    state, tensors = run(tmp_path, corpus, spoilt)
    assert state.step < state.num_steps
    best = max(state.history, key=lambda point: point.held_out_acceptance[0])
    assert state.best_step == best.step < state.step
    assert state.num_without_gain == 3
    draft = toy_draft(CHECKPOINT, spoilt)
    draft.load_state_dict(state.best)
    assert same(tensors, draft.export(None, dtype=torch.float32))


def test_the_gradient_of_a_batch_is_that_of_its_pieces(corpus: Corpus) -> None:
    batch = corpus.batch(corpus.training[:10])
    pieces = split(batch, 4)
    assert [len(piece.kinds) for piece in pieces] == [4, 4, 2]
    trainer = Trainer(
        toy_draft(CHECKPOINT, SETTINGS), TARGET, HEAD_IDS_C, SETTINGS, num_steps=10, num_workers=1, dtype=torch.float32
    )
    try:
        losses = [trainer.loss(piece, 2).loss for piece in pieces]
        torch.testing.assert_close(torch.stack(losses).sum(), trainer.loss(batch, 2).loss, rtol=1e-5, atol=1e-3)
    finally:
        trainer.close()


def test_the_learning_rate_warms_up_and_falls() -> None:
    settings = dataclasses.replace(SETTINGS, warmup_share=0.1)
    trainer = Trainer(
        toy_draft(CHECKPOINT, settings), TARGET, None, settings, num_steps=100, num_workers=1, dtype=torch.float32
    )
    trainer.close()
    rates = [trainer.learning_rate(step) / settings.learning_rate for step in range(101)]
    assert rates[:10] == pytest.approx([0.1 * step for step in range(1, 11)])
    assert rates[10] == pytest.approx(1)
    assert rates[55] == pytest.approx(0.525)
    assert rates[100] == pytest.approx(0.05)
    assert sorted(rates[10:], reverse=True) == rates[10:]


def test_a_feature_that_is_no_number_ends_training_and_the_checkpoint_stays(text: Shard, tmp_path: Path) -> None:
    run_until = dataclasses.replace(SETTINGS, num_epochs=1.0)
    corpus = Corpus([text])
    number, row = next(corpus.places_from(8, batch_sequences=10, seed=run_until.seed))[4]
    spoilt = dataclasses.replace(text, features_NTE=text.features_NTE.clone())
    spoilt.features_NTE[row, 5, 3] = float("nan")
    assert number == 0
    with pytest.raises(DistillationError, match=r"step 8: the loss is nan.*another --out.*--learning-rate below"):
        run(tmp_path, Corpus([spoilt]), run_until)
    whole_state, whole = run(tmp_path / "whole", corpus, run_until)
    state, tensors = run(tmp_path, corpus, run_until)
    assert figures(state) == figures(whole_state)
    assert same(tensors, whole)


@pytest.mark.parametrize("damage", [lambda b: b[: len(b) // 2], lambda b: b"", lambda b: b.replace(b'"run"', b'"ran"')])
def test_a_damaged_checkpoint_is_named_with_a_way_out(
    damage: Callable[[bytes], bytes], corpus: Corpus, tmp_path: Path
) -> None:
    with pytest.raises(StoppedError):
        run(tmp_path, corpus, report=interrupt_at(1))
    path = tmp_path / STATE_FILE
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(CheckpointError, match=rf"{STATE_FILE} is damaged.*delete it"):
        run(tmp_path, corpus)


@pytest.mark.parametrize(
    ("name", "value"), [("learning_rate", 1e-3), ("num_own_steps", 1), ("loss", Loss.TOTAL_VARIATION), ("seed", 4)]
)
def test_a_checkpoint_of_other_settings_is_refused_by_name(
    name: str, value: object, corpus: Corpus, tmp_path: Path
) -> None:
    with pytest.raises(StoppedError):
        run(tmp_path, corpus, report=interrupt_at(1))
    with pytest.raises(ValueError, match=rf"with {name} .*use another folder, or the same settings"):
        run(tmp_path, corpus, dataclasses.replace(SETTINGS, **{name: value}))


def test_a_checkpoint_of_other_text_is_refused(text: Shard, corpus: Corpus, tmp_path: Path) -> None:
    with pytest.raises(StoppedError):
        run(tmp_path, corpus, report=interrupt_at(1))
    fewer = Shard(
        token_ids_NT=text.token_ids_NT[:200],
        features_NTE=text.features_NTE[:200],
        log_totals_NT=text.log_totals_NT[:200],
        asked_NT=text.asked_NT[:200],
        kinds=text.kinds[:200],
    )
    with pytest.raises(ValueError, match="text's num_sequences"):
        run(tmp_path, Corpus([fewer]))


def test_a_checkpoint_that_cannot_be_written_leaves_the_one_before(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(StoppedError):
        run(tmp_path, corpus, report=interrupt_at(7))
    before = (tmp_path / STATE_FILE).read_bytes()

    def full(path: Path, content: bytes) -> None:
        raise OSError(28, "No space left on device", str(path))

    with monkeypatch.context() as patch:
        patch.setattr("models.distill.run_state.write_atomically", full)
        with pytest.raises(CheckpointError, match="No space left on device; the checkpoint before is kept"):
            run(tmp_path, corpus)
    assert (tmp_path / STATE_FILE).read_bytes() == before
    assert figures(run(tmp_path, corpus)[0]) == figures(run(tmp_path / "whole", corpus)[0])


def test_a_budget_of_minutes_becomes_a_number_of_steps_that_is_kept(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Three steps are timed at a time; those on own features, which come in halfway, take three times as long.
    monkeypatch.setattr(
        training, "_steps_s", lambda trainer, _, step: 3 * (2.0 if trainer.num_own_steps(step) == 1 else 6.0)
    )
    monkeypatch.setattr(training, "_evaluation_s", lambda *_: 2.4)
    settings = dataclasses.replace(SETTINGS, minutes=1.0)
    with pytest.raises(StoppedError):
        run(tmp_path, corpus, settings, report=interrupt_at(1))
    monkeypatch.setattr(training, "_steps_s", lambda *_: 0.1)
    state, _ = run(tmp_path, corpus, settings)
    # Five evaluations leave 48 s for steps of 4 s on average.
    assert state.num_steps == state.step == 12
    json.dumps([dataclasses.asdict(point) for point in state.history], allow_nan=False)


@pytest.mark.parametrize(
    ("budget_s", "evaluations", "num_steps"),
    # 2 s a step and 1 s an evaluation, one of which comes before the first step.
    [(2 * 40 + 11, 10, 40), (2 * 40 + 2, 1, 40), (3 * 7 + 1, 100, 7), (0.1, 4, 1)],
)
def test_steps_fit_into_a_budget_with_their_evaluations(budget_s: float, evaluations: int, num_steps: int) -> None:
    assert steps_within(budget_s, step_s=2.0, evaluation_s=1.0, evaluations=evaluations) == num_steps
