"""Memory and disk that a distillation takes, reckoned before any of it is allocated.

Owns the sums and their comparison with what is free. Knows nothing of time.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch

from models.config import ModelConfig
from models.distill.answers import BATCH_PROMPTS
from models.distill.draft_model import DraftModel
from models.distill.judging import judged_lengths
from models.distill.settings import TrainingSettings, WritingSettings
from models.distill.trainer import PIECE_SEQUENCES
from models.errors import DistillationError, InsufficientMemoryError
from models.free_memory import AvailableMemory
from models.memory import num_parameters

_FLOAT32_BYTES = 4
_LOGIT_COPIES = 4
"""Of a step's logits: as they come, as float32, as weights, and their sums."""
_HEAD_CHUNK_ROWS = 512
_HEAD_COPIES = 5
_PROCESS_BYTES = 400 << 20
"""An interpreter with torch in it."""
JUDGED_PROMPTS = 50
"""About."""
_JUDGED_ROWS = 64
"""Of logits at a time."""
_JUDGED_PROMPT_TOKENS = 256
"""The most that are read at once; many are shorter."""
_STATE_COPIES = 4
"""Of the draft's parameters in a checkpoint: themselves, two moments, and the best so far."""


@dataclass(frozen=True, kw_only=True)
class Needs:
    """In bytes."""

    weight_bytes: int
    """The target's, once for each worker that writes."""
    cache_bytes: int
    """Keys and values of all sequences that are being written."""
    writing_bytes: int
    """All that writing takes, weights and cache included."""
    training_bytes: int
    judging_bytes: int
    shard_bytes: int
    checkpoint_bytes: int

    @property
    def peak_bytes(self) -> int:
        """Of memory; the stages come one after the other."""
        return max(self.writing_bytes, self.training_bytes, self.judging_bytes)

    @property
    def disk_bytes(self) -> int:
        """For text and checkpoints; one more checkpoint lies there while the last is replaced."""
        return self.shard_bytes + 2 * self.checkpoint_bytes

    def of_judging(self) -> Needs:
        """What is left of them where the draft is there already."""
        return dataclasses.replace(
            self, weight_bytes=0, cache_bytes=0, writing_bytes=0, training_bytes=0, shard_bytes=0, checkpoint_bytes=0
        )


def needs_of(
    config: ModelConfig,
    writing: WritingSettings,
    training: TrainingSettings,
    *,
    num_read_tokens: int,
    num_workers: int,
    dtype: torch.dtype,
) -> Needs:
    """Add up what each stage takes.

    Args:
        config: the target's.
        writing: settings.
        training: settings.
        num_read_tokens: of text that is read beside what is written.
        num_workers: that write and train.
        dtype: of matrix products.
    """
    num_writers = min(num_workers, writing.num_waves)
    num_sequences, length = writing.sequences_per_wave, writing.sequence_length
    embedding_bytes = config.vocab_size * config.hidden_size
    weight_bytes = num_writers * num_parameters(config) * dtype.itemsize
    key_values = 2 * config.num_layers * config.num_kv_heads * config.head_dim
    cache_bytes = num_writers * num_sequences * length * key_values * dtype.itemsize
    logit_bytes = num_sequences * config.vocab_size * _FLOAT32_BYTES * _LOGIT_COPIES
    kept_bytes = num_sequences * length * _bytes_per_token(config)
    # The widest matrix is widened to float32 while weights are read.
    other_bytes = max(logit_bytes + kept_bytes, embedding_bytes * _FLOAT32_BYTES) + _PROCESS_BYTES
    draft_size = _num_draft_parameters(config, training) * _FLOAT32_BYTES
    num_tokens = writing.num_waves * num_sequences * length + num_read_tokens
    return Needs(
        weight_bytes=weight_bytes,
        cache_bytes=cache_bytes,
        writing_bytes=weight_bytes + cache_bytes + num_writers * other_bytes,
        training_bytes=_training_bytes(config, training, length, draft_size, num_workers, dtype),
        judging_bytes=_judging_bytes(config, draft_size, dtype),
        shard_bytes=num_tokens * _bytes_per_token(config),
        checkpoint_bytes=_STATE_COPIES * draft_size,
    )


def check_needs(needs: Needs, *, memory: AvailableMemory, free_disk_bytes: int, present_disk_bytes: int) -> None:
    """Refuse what would not fit.

    Args:
        needs: what it takes.
        memory: what is free.
        free_disk_bytes: where the work files are to lie.
        present_disk_bytes: what an earlier call left there already.

    Raises:
        InsufficientMemoryError: says what takes how much, and a way out.
        DistillationError: likewise of the disk.
    """
    if memory.num_bytes is not None and needs.peak_bytes > memory.num_bytes:
        stage, way_out = _largest_stage(needs)
        raise InsufficientMemoryError(
            f"{stage} takes about {size_text(needs.peak_bytes)}, but {size_text(memory.num_bytes)} are free "
            f"({memory.reason}); {way_out}, or begin all the same with --anyway"
        )
    missing = needs.disk_bytes - present_disk_bytes - free_disk_bytes
    if missing > 0:
        raise DistillationError(
            f"text and checkpoints take about {size_text(needs.disk_bytes)} of disk, and {size_text(missing)} of that "
            "are missing; name another folder with --work, have fewer --tokens, or begin all the same with --anyway"
        )


def _largest_stage(needs: Needs) -> tuple[str, str]:
    """Its name, and how it could be had with less."""
    if needs.peak_bytes == needs.writing_bytes:
        parts = f"weights {size_text(needs.weight_bytes)}, caches {size_text(needs.cache_bytes)}"
        return f"writing ({parts})", "have fewer --workers, a smaller --wave or bfloat16"
    if needs.peak_bytes == needs.training_bytes:
        return "training", "have fewer --workers, a smaller --head-tokens or --own-steps or bfloat16"
    return "judging", "make some free, or have bfloat16"


def size_text(num_bytes: int) -> str:
    """In the unit that reads best."""
    return f"{num_bytes / 1e9:,.1f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:,.0f} MB"


def _bytes_per_token(config: ModelConfig) -> int:
    """Of a shard: a float16 feature, an id and a float32 sum."""
    return 2 * config.hidden_size + 8


def _num_draft_parameters(config: ModelConfig, training: TrainingSettings) -> int:
    with torch.device("meta"):
        draft = DraftModel(config, design=training.design, num_layers=training.num_layers)
    return sum(parameter.numel() for parameter in draft.parameters())


def _judging_bytes(config: ModelConfig, draft_bytes: int, dtype: torch.dtype) -> int:
    num_positions, _ = judged_lengths(config)
    num_rows = 2 * BATCH_PROMPTS
    key_values = 2 * config.num_layers * config.num_kv_heads * config.head_dim
    cache_bytes = num_rows * num_positions * key_values * dtype.itemsize
    # Features of a batch as they come and joined, and of every answer that was written before.
    feature_rows = (2 * num_rows + 2 * JUDGED_PROMPTS) * num_positions
    read_rows = num_rows * min(num_positions, _JUDGED_PROMPT_TOKENS)
    row_width = 4 * config.intermediate_size + 8 * config.hidden_size
    logit_bytes = _JUDGED_ROWS * config.vocab_size * _FLOAT32_BYTES * _HEAD_COPIES
    working_bytes = max(_FLOAT32_BYTES * read_rows * row_width, logit_bytes)
    # The widest matrix is widened to float32 while weights are read.
    widest_bytes = config.vocab_size * config.hidden_size * _FLOAT32_BYTES
    return (
        num_parameters(config) * dtype.itemsize
        + 2 * draft_bytes
        + cache_bytes
        + feature_rows * config.hidden_size * _FLOAT32_BYTES
        + max(working_bytes, widest_bytes)
        + _PROCESS_BYTES
    )


def _training_bytes(
    config: ModelConfig,
    training: TrainingSettings,
    length: int,
    draft_bytes: int,
    num_workers: int,
    dtype: torch.dtype,
) -> int:
    head_size = min(training.num_head_tokens, config.vocab_size) or config.vocab_size
    shared_rows = config.vocab_size * (1 if config.tie_embeddings else 2) + head_size
    num_pieces = -(-training.batch_sequences // PIECE_SEQUENCES)
    # Parameters, gradient, each piece's gradient, two moments, the best so far, and a checkpoint on its way to disk.
    draft_copies = 2 + num_pieces + 2 + 1 + _STATE_COPIES
    query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    row_width = training.num_layers * (2 * (query + 2 * key) + 4 * config.intermediate_size + 8 * config.hidden_size)
    row_width += 6 * config.hidden_size
    rows = PIECE_SEQUENCES * length * training.num_own_steps
    piece_bytes = _FLOAT32_BYTES * (rows * row_width + _HEAD_CHUNK_ROWS * head_size * _HEAD_COPIES)
    batch_bytes = training.batch_sequences * length * config.hidden_size * _FLOAT32_BYTES
    return (
        shared_rows * config.hidden_size * dtype.itemsize
        + draft_copies * draft_bytes
        + min(num_workers, num_pieces) * piece_bytes
        + batch_bytes
        + _PROCESS_BYTES
    )
