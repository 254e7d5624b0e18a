"""A draft that costs what a distilled one would and is right as often as it is told to be.

Owns the shallow decoder whose work is done, the plan of right and wrong tokens, and the model that hands out the plan.
Knows nothing of streams, rounds or text.

The shallow decoder has the target's first layers and the first rows of its output head, as a distilled draft with a
small vocabulary would have, in matrices of its own. What it computes is thrown away.

Shape suffixes: T tokens of a call, R logit rows, V vocabulary.
"""

from __future__ import annotations

import dataclasses
import hashlib
import time
from collections.abc import Sequence

import torch

from models import Cache, Checkpoint, Decoder, ModelConfig, WeightKind, WrappedDecoder

NUM_LAYERS = 2
NUM_HEAD_ROWS = 8192
_STEP_WIDTH = 2
"""A step reads the last token, and after a wholly accepted block the one before it as well."""
_HEAD = "lm_head.weight"
_EMBEDDING = "model.embed_tokens.weight"


class _ShallowSource:
    """A checkpoint's first layers, with a head over its first ids; every id can still be read."""

    def __init__(self, checkpoint: Checkpoint, num_layers: int, num_head_rows: int) -> None:
        self.name = f"{checkpoint.name} (first {num_layers} layers, head of {num_head_rows})"
        self.config: ModelConfig = dataclasses.replace(
            checkpoint.config, num_layers=num_layers, vocab_size=num_head_rows, tie_embeddings=False
        )
        self._checkpoint = checkpoint
        self._head_name = _EMBEDDING if checkpoint.config.tie_embeddings else _HEAD

    def tensor(self, name: str) -> torch.Tensor:
        if name == _HEAD:
            return self._checkpoint.tensor(self._head_name)[: self.config.vocab_size]
        return self._checkpoint.tensor(name)

    def has(self, name: str) -> bool:
        return name == _HEAD or self._checkpoint.has(name)


def shallow_decoder(
    checkpoint: Checkpoint,
    *,
    weights: WeightKind,
    num_layers: int = NUM_LAYERS,
    num_head_rows: int = NUM_HEAD_ROWS,
) -> Decoder:
    """A decoder of the first layers and the first head rows, as many as there are.

    Its matrices are packed anew and share no memory with the target's. Int8 matrices are not smoothed, since nobody
    looks at their products.
    """
    source = _ShallowSource(
        checkpoint,
        min(num_layers, checkpoint.config.num_layers),
        min(num_head_rows, checkpoint.config.vocab_size),
    )
    return Decoder.from_checkpoint(source, weights=weights)


def is_right(seed: int, prompt: int, position: int, acceptance: float) -> bool:
    """Whether the draft is right about the token at `position`.

    A pure function of its arguments: every run on a prompt has the same plan, and what is right at one acceptance is
    right at any higher one.
    """
    digest = hashlib.blake2b(f"{seed} {prompt} {position}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") < acceptance * 2**64


def planted_ids(
    target_ids: Sequence[int], *, first_position: int, prompt: int, acceptance: float, vocab_size: int, seed: int = 0
) -> list[int]:
    """What the draft shall say where the target says `target_ids`: that, or the id after it.

    Args:
        target_ids: the target's own tokens.
        first_position: of the first of them, which is the prompt's length.
        prompt: number of the prompt.
        acceptance: probability of each token to be the target's own.
        vocab_size: ids of the target.
        seed: any other number gives another plan.
    """
    return [
        token_id if is_right(seed, prompt, position, acceptance) else (token_id + 1) % vocab_size
        for position, token_id in enumerate(target_ids, start=first_position)
    ]


class PlantedDraft(WrappedDecoder):
    """A `models.CausalModel` that runs a decoder and then answers from a plan."""

    def __init__(self, decoder: Decoder, *, vocab_size: int) -> None:
        """Answer in rows of `vocab_size` logits, after a call of `decoder`."""
        super().__init__(decoder)
        self._vocab_size = vocab_size
        self._first_position = 0
        self._ids_T = torch.zeros(1, dtype=torch.int64)
        self.step_times_ms: list[float] = []
        """Durations of the calls since the last planting that asked for logits and read no more than two tokens."""

    def plant(self, token_ids: Sequence[int], *, first_position: int) -> None:
        """From now on say `token_ids` from that position on, and id 0 anywhere else.

        Not to be called while the model may be running.
        """
        self._first_position = first_position
        self._ids_T = torch.tensor([*token_ids, 0], dtype=torch.int64)
        self.step_times_ms.clear()

    @property
    def vocab_size(self) -> int:
        """The target's, whatever the decoder's head has."""
        return self._vocab_size

    def forward(self, token_ids_T: torch.Tensor, cache: Cache, *, num_logits: int) -> torch.Tensor:
        """Run the decoder; see `models.CausalModel.forward`.

        Returns:
            logits_RV, float32, one-hot at the planted ids.
        """
        started_s = time.perf_counter()
        self._decoder.forward(token_ids_T, cache, num_logits=num_logits)
        logits_RV = torch.zeros(num_logits, self._vocab_size)
        if num_logits:
            last = self._ids_T.shape[0] - 1
            # The row after position p - 1 is about the token at p; outside of the plan stands the 0 at its end.
            first = cache.length - num_logits + 1 - self._first_position
            index_R = torch.arange(first, first + num_logits)
            index_R[(index_R < 0) | (index_R > last)] = last
            logits_RV.scatter_(1, self._ids_T[index_R][:, None], 1.0)
            if token_ids_T.shape[0] <= _STEP_WIDTH:
                self.step_times_ms.append((time.perf_counter() - started_s) * 1e3)
        return logits_RV
