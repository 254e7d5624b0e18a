"""The target writes its own training text, many sequences at a time.

Owns the step from features to drawn tokens, and which tokens are put in instead of drawn. The features that are to be
learnt come with the writing: no second pass is needed. Knows nothing of files.

Shape suffixes: B sequences, T tokens, E hidden width, V vocabulary, C chunks of a row, W ids a chunk.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import torch

from models.distill.batched_target import BatchedTarget
from models.distill.seeds import SeedSource, SequenceSeed
from models.distill.shard import Shard

_CHUNK_IDS = 256


class Writer:
    """Writes waves of sequences; a wave's tokens depend on its number and the settings only."""

    def __init__(
        self, target: BatchedTarget, seeds: SeedSource, *, num_sequences: int, sequence_length: int, seed: int
    ) -> None:
        """Bind the target.

        Args:
            target: frozen.
            seeds: what sequences begin with.
            num_sequences: of a wave.
            sequence_length: tokens of each.
            seed: of all draws.
        """
        self._target = target
        self._seeds = seeds
        self._num_sequences = num_sequences
        self._sequence_length = sequence_length
        self._seed = seed

    @torch.inference_mode()
    def write(self, wave: int, *, on_tokens: Callable[[int], None] = lambda _: None) -> Shard:
        """All sequences of a wave, one token of each a step.

        Args:
            wave: its number.
            on_tokens: told after each step how many tokens it wrote; may raise to give the wave up.
        """
        generator = torch.Generator().manual_seed(self._seed * 1_000_003 + wave)
        numbers = range(wave * self._num_sequences, (wave + 1) * self._num_sequences)
        rows = [_Row(self._seeds, number, self._sequence_length) for number in numbers]
        target, length, config = self._target, self._sequence_length, self._target.config
        cache = target.new_cache(len(rows), length)
        token_ids_BT = torch.zeros(len(rows), length, dtype=torch.int64)
        features_BTE = torch.empty(len(rows), length, config.hidden_size, dtype=torch.float16)
        log_totals_BT = torch.empty(len(rows), length)
        asked_BT = torch.zeros(len(rows), length, dtype=torch.bool)
        temperatures_B = torch.tensor([row.temperature for row in rows])
        next_ids_B = torch.tensor([row.place(0) for row in rows])
        for position in range(length):
            token_ids_BT[:, position] = next_ids_B
            features_BE = target.features(next_ids_B[:, None].to(target.device), cache)[:, 0]
            logits_BV = target.logits(features_BE)
            features_BTE[:, position] = features_BE.half().cpu()
            drawn_B, log_totals_B = draw(logits_BV, temperatures_B, generator)
            log_totals_BT[:, position] = log_totals_B
            asked_BT[:, position] = torch.tensor([row.is_asked for row in rows])
            next_ids_B = torch.tensor([row.place(drawn) for row, drawn in zip(rows, drawn_B.tolist(), strict=True)])
            temperatures_B = torch.tensor([row.temperature for row in rows])
            on_tokens(len(rows))
        return Shard(
            token_ids_NT=token_ids_BT.int(),
            features_NTE=features_BTE,
            log_totals_NT=log_totals_BT,
            asked_NT=asked_BT,
            kinds=tuple(row.seed.kind for row in rows),
        )


class _Row:
    """One sequence: what must come next, else who speaks."""

    def __init__(self, seeds: SeedSource, number: int, length: int) -> None:
        self._seeds = seeds
        self._number = number
        self.seed: SequenceSeed = seeds.seed(number)
        self._forced: deque[int] = deque(self.seed.forced_ids[:length])
        self._asks = self.seed.writes_question
        self._num_written = 0

    @property
    def temperature(self) -> float:
        return 1.0 if self._asks else self.seed.temperature

    @property
    def is_asked(self) -> bool:
        """Whether what the target draws now becomes part of an answer."""
        return not self._forced and not self._asks

    def place(self, drawn_id: int) -> int:
        """The token that comes next, where the target has drawn this one."""
        if not self._forced and self._num_written:
            self._react(drawn_id)
        self._num_written += 1
        return self._forced.popleft() if self._forced else drawn_id

    def _react(self, drawn_id: int) -> None:
        """At the end of a message, the template goes on."""
        frame = self._seeds.frame
        if frame is None or not (frame.opening and self.seed.forced_ids[: len(frame.opening)] == frame.opening):
            if drawn_id in self._seeds.ends:
                self._forced.extend((drawn_id, *self._seeds.beginning_of_text()))
            return
        if drawn_id not in frame.turn_ends:
            return
        if self._asks:
            self._forced.extend(frame.to_assistant)
            self._asks = False
        else:
            follow_up = self._seeds.follow_up(self.seed, self._number, self._num_written, drawn_id)
            self._forced.extend(follow_up.forced_ids)
            self._asks = follow_up.writes_question


def draw(
    logits_BV: torch.Tensor, temperatures_B: torch.Tensor, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sample each row at its temperature by inverting the cumulated distribution.

    In two stages, since only one chunk of each row has to be cumulated id by id.

    Args:
        logits_BV: float32, on any device; changed in place.
        temperatures_B: float32, above 0, on the CPU.
        generator: of the CPU, so that a device makes no difference to the uniforms.

    Returns:
        drawn_B, int64, and the logarithm of each row's sum of exponentials at temperature 1, both on the CPU.
    """
    num_rows, num_ids = logits_BV.shape
    largest_B1 = logits_BV.amax(dim=-1, keepdim=True)
    weights_BV = logits_BV.sub_(largest_B1)
    log_totals_B = _log_total(weights_BV) + largest_B1[:, 0]
    if bool((temperatures_B != 1).any()):
        weights_BV.div_(temperatures_B.to(logits_BV.device)[:, None])
    weights_BV = torch.nn.functional.pad(weights_BV.exp_(), (0, -num_ids % _CHUNK_IDS))
    chunks_BCW = weights_BV.view(num_rows, -1, _CHUNK_IDS)
    cumulated_BC = chunks_BCW.sum(-1).double().cumsum(-1)
    uniforms_B1 = torch.rand(num_rows, 1, generator=generator, dtype=torch.float64).to(logits_BV.device)
    wanted_B1 = uniforms_B1 * cumulated_BC[:, -1:]
    chunk_B1 = torch.searchsorted(cumulated_BC, wanted_B1, right=True).clamp_(max=cumulated_BC.shape[1] - 1)
    before_B1 = cumulated_BC.gather(1, chunk_B1) - chunks_BCW.sum(-1).double().gather(1, chunk_B1)
    chosen_BW = chunks_BCW[torch.arange(num_rows, device=logits_BV.device), chunk_B1[:, 0]].double().cumsum(-1)
    within_B1 = torch.searchsorted(chosen_BW, wanted_B1 - before_B1, right=True)
    # Rounding must not lead past the last id that has any weight.
    last_B1 = torch.searchsorted(chosen_BW, chosen_BW[:, -1:].contiguous(), right=False)
    drawn_B = (chunk_B1 * _CHUNK_IDS + torch.minimum(within_B1, last_B1))[:, 0]
    return drawn_B.cpu(), log_totals_B.cpu()


def _log_total(shifted_BV: torch.Tensor) -> torch.Tensor:
    return torch.logsumexp(shifted_BV, dim=-1)
