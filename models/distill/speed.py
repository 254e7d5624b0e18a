"""How fast this machine writes and trains, by a few seconds of each.

Owns the samples. Knows nothing of memory or of what is asked for.

Shape suffixes: B sequences, T tokens, E hidden width.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from models.checkpoint import Checkpoint
from models.distill.answers import BATCH_PROMPTS
from models.distill.batched_target import BatchedTarget
from models.distill.corpus import Batch
from models.distill.draft_model import DraftModel
from models.distill.judging import judged_lengths
from models.distill.reading import READ_AT_ONCE, read_sequences
from models.distill.settings import TrainingSettings, WritingSettings
from models.distill.text_kind import TextKind
from models.distill.trainer import PIECE_SEQUENCES, Trainer
from models.distill.writer import draw

_SAMPLE_S = 2.0
_MOST_SEQUENCES = 64
"""Of the writing sample; more of them write little faster a token, but would make it last long."""


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Tokens a second of all workers together, as if they did not slow each other down."""

    writing_tokens_per_s: float
    reading_tokens_per_s: float
    training_tokens_per_s: float
    evaluating_tokens_per_s: float
    """Of held-out text, on the way."""
    judging_tokens_per_s: float
    """Of answers, which are all but a small part of judging."""


def sample_speed(
    checkpoint: Checkpoint,
    writing: WritingSettings,
    training: TrainingSettings,
    *,
    num_workers: int,
    device: torch.device,
    dtype: torch.dtype,
) -> Speed:
    """Read the target and write and train for a few seconds, one worker's share of it."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        num_writers = min(num_workers, writing.num_waves)
        num_pieces = -(-training.batch_sequences // PIECE_SEQUENCES)
        num_positions = max(writing.sequence_length, judged_lengths(checkpoint.config)[0])
        target = BatchedTarget(checkpoint, dtype=dtype, device=device, num_positions=num_positions)
        num_written = min(writing.sequences_per_wave, _MOST_SEQUENCES)
        written = _written_tokens_per_s(target, num_written, writing.sequence_length)
        # These two have no workers of their own and share each operation among all threads.
        torch.set_num_threads(num_workers)
        read = _read_tokens_per_s(target, writing.sequence_length)
        judged = _written_tokens_per_s(target, 2 * BATCH_PROMPTS, num_positions)
        torch.set_num_threads(1)
        trained, evaluated = _training_tokens_per_s(checkpoint, training, writing.sequence_length, device, dtype)
        return Speed(
            writing_tokens_per_s=num_writers * written,
            reading_tokens_per_s=read,
            training_tokens_per_s=min(num_workers, num_pieces) * trained,
            evaluating_tokens_per_s=num_workers * evaluated,
            judging_tokens_per_s=judged,
        )
    finally:
        torch.set_num_threads(num_threads)


def _written_tokens_per_s(target: BatchedTarget, num_sequences: int, sequence_length: int) -> float:
    cache = target.new_cache(num_sequences, sequence_length)
    middle = sequence_length // 2
    token_ids_BT = torch.zeros(num_sequences, 1, dtype=torch.int64, device=target.device)
    temperatures_B = torch.ones(num_sequences)
    generator = torch.Generator().manual_seed(0)

    def step() -> None:
        # A sequence is read through, so its middle costs what a token costs on average.
        cache.length = middle
        draw(target.logits(target.features(token_ids_BT, cache)[:, 0]), temperatures_B, generator)

    with torch.inference_mode():
        return num_sequences / _call_s(step)


def _read_tokens_per_s(target: BatchedTarget, sequence_length: int) -> float:
    token_ids_NT = torch.zeros(READ_AT_ONCE, sequence_length, dtype=torch.int32)
    return token_ids_NT.numel() / _call_s(lambda: read_sequences(target, token_ids_NT))


def _training_tokens_per_s(
    checkpoint: Checkpoint, settings: TrainingSettings, sequence_length: int, device: torch.device, dtype: torch.dtype
) -> tuple[float, float]:
    """Of one worker that trains, and of one that evaluates."""
    config = checkpoint.config
    target = BatchedTarget(checkpoint, dtype=dtype, device=device, num_positions=sequence_length, with_layers=False)
    draft = DraftModel(config, design=settings.design, num_layers=settings.num_layers).to(device)
    head_size = settings.num_head_tokens or config.vocab_size
    head_token_ids_C = None if head_size >= config.vocab_size else torch.arange(head_size)
    shape = (PIECE_SEQUENCES, sequence_length)
    generator = torch.Generator().manual_seed(0)
    batch = Batch(
        token_ids_BT=torch.randint(config.vocab_size, shape, generator=generator),
        features_BTE=torch.randn(*shape, config.hidden_size, generator=generator),
        log_totals_BT=torch.full(shape, 20.0),
        asked_BT=torch.ones(shape, dtype=torch.bool),
        kinds=(TextKind.TEXT,) * PIECE_SEQUENCES,
    )
    trainer = Trainer(draft, target, head_token_ids_C, settings, num_steps=100, num_workers=1, dtype=dtype)
    try:
        # The first and the last part of a training cost differently where own steps come in.
        first_s, last_s = _call_s(lambda: trainer.step(batch, 0)), _call_s(lambda: trainer.step(batch, 99))
        evaluation_s = _call_s(lambda: trainer.acceptance([batch]))
        share = settings.own_steps_after
        num_tokens = PIECE_SEQUENCES * sequence_length
        return num_tokens / (share * first_s + (1 - share) * last_s), num_tokens / evaluation_s
    finally:
        trainer.close()


def _call_s(call: Callable[[], object]) -> float:
    """Of one call, after a first one that does not count."""
    call()
    started_s = time.perf_counter()
    num_calls = 0
    while (elapsed_s := time.perf_counter() - started_s) < _SAMPLE_S or not num_calls:
        call()
        num_calls += 1
    return elapsed_s / num_calls
