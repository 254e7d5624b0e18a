"""All written text as training sees it: batches in an order that only the seed decides.

Owns the duplicates, the held-out part and the token counts. Knows nothing of models.

Shape suffixes: B sequences, T tokens, E hidden width, V vocabulary.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from models.distill.shard import Shard, is_held_out, read_shard, sequence_keys
from models.distill.text_kind import TextKind


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Sequences of equal length."""

    token_ids_BT: torch.Tensor
    """int64."""
    features_BTE: torch.Tensor
    """float32."""
    log_totals_BT: torch.Tensor
    """float32."""
    asked_BT: torch.Tensor
    """bool; see `Shard.asked_NT`."""
    kinds: tuple[TextKind, ...]


class Corpus:
    """Sequences of a folder's shards, mapped and not read until they are asked for."""

    def __init__(self, shards: Sequence[Shard]) -> None:
        """Sort out copies and the held-out part.

        Raises:
            ValueError: if nothing is left to train on or to judge by.
        """
        self._shards = tuple(shards)
        self.training: list[tuple[int, int]] = []
        """Shard and row of each sequence to learn from."""
        self.held_out: list[tuple[int, int]] = []
        self.num_copies = 0
        seen: set[bytes] = set()
        for number, shard in enumerate(self._shards):
            for row, key in enumerate(sequence_keys(shard)):
                if key in seen:
                    self.num_copies += 1
                    continue
                seen.add(key)
                (self.held_out if is_held_out(key) else self.training).append((number, row))
        if not self.training or not self.held_out:
            raise ValueError(
                f"{len(self.training)} sequences to learn from and {len(self.held_out)} held out are too few; "
                "have more text written (--tokens)"
            )
        if not any(self._is_asked(place) for place in self.held_out):
            raise ValueError(
                f"none of {len(self.held_out)} held-out sequences reaches an answer, so nothing tells a good draft "
                "from a bad one; have more text (--tokens) or longer one (--sequence-length) written"
            )

    def _is_asked(self, place: tuple[int, int]) -> bool:
        number, row = place
        return bool(self._shards[number].asked_NT[row, :-1].any())

    @classmethod
    def of(cls, paths: Sequence[Path]) -> Corpus:
        """The text of these shards.

        Raises:
            CheckpointError: if a shard is damaged.
            ValueError: as above.
        """
        return cls([read_shard(path) for path in paths])

    @property
    def sequence_length(self) -> int:
        """Tokens of every sequence."""
        return self._shards[0].token_ids_NT.shape[1]

    @property
    def num_training_tokens(self) -> int:
        """Tokens to learn from."""
        return len(self.training) * self.sequence_length

    def token_counts(self, vocab_size: int) -> torch.Tensor:
        """counts_V, int64, of all tokens that a draft would be asked for in text that is not held out."""
        counts_V = torch.zeros(vocab_size, dtype=torch.int64)
        for number, row in self.training:
            shard = self._shards[number]
            wanted_ids = shard.token_ids_NT[row, 1:][shard.asked_NT[row, :-1]]
            counts_V += torch.bincount(wanted_ids, minlength=vocab_size)
        return counts_V

    def batch(self, places: Sequence[tuple[int, int]]) -> Batch:
        """The sequences at these places."""
        shards = [(self._shards[number], row) for number, row in places]
        return Batch(
            token_ids_BT=torch.stack([shard.token_ids_NT[row] for shard, row in shards]).long(),
            features_BTE=torch.stack([shard.features_NTE[row] for shard, row in shards]).float(),
            log_totals_BT=torch.stack([shard.log_totals_NT[row] for shard, row in shards]),
            asked_BT=torch.stack([shard.asked_NT[row] for shard, row in shards]),
            kinds=tuple(shard.kinds[row] for shard, row in shards),
        )

    def places_from(self, step: int, *, batch_sequences: int, seed: int) -> Iterator[list[tuple[int, int]]]:
        """Places of each batch from a step on, without end; each epoch in an order of its own."""
        size = min(batch_sequences, len(self.training))
        steps_per_epoch = len(self.training) // size
        while True:
            epoch, first = divmod(step, steps_per_epoch)
            order = list(self.training)
            random.Random(f"{seed}/{epoch}").shuffle(order)
            for index in range(first, steps_per_epoch):
                yield order[index * size : (index + 1) * size]
                step += 1
