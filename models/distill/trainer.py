"""One training step, and the held-out figures on the way.

Owns the optimiser, the learning rate and the sharing of a batch among workers, which changes no bit. Knows nothing of
checkpoints, budgets or files.

Shape suffixes: B sequences, T tokens, E hidden width, N rows, K steps, C tokens of the head.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import repeat

import torch

from models.distill.batched_target import BatchedTarget, final_head_input
from models.distill.corpus import Batch
from models.distill.draft_model import DraftModel
from models.distill.head_loss import HeadLoss, TeacherRows, head_loss
from models.distill.settings import TrainingSettings
from models.errors import DistillationError

PIECE_SEQUENCES = 4
"""A batch is always computed in pieces of so many sequences and summed in their order, whoever computes them."""


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """What one step came to."""

    loss: float
    """Mean over the rows that are asked for."""
    acceptance: tuple[float, ...]
    """Mean of sum min(p, q), for each step of `num_own_steps`."""


class Trainer:
    """A draft, its optimiser and the workers."""

    def __init__(
        self,
        draft: DraftModel,
        target: BatchedTarget,
        head_token_ids_C: torch.Tensor | None,
        settings: TrainingSettings,
        *,
        num_steps: int,
        num_workers: int,
        dtype: torch.dtype,
    ) -> None:
        """Bind all of it.

        Args:
            draft: to be trained.
            target: whose embedding, norm and head are shared.
            head_token_ids_C: the tokens that the draft can propose; None is all.
            settings: of the training.
            num_steps: over which the learning rate falls.
            num_workers: pieces computed at a time, each by one thread.
            dtype: of matrix products.
        """
        self._draft = draft
        self._target = target
        self._head_CE = (target.head_VE if head_token_ids_C is None else target.head_VE[head_token_ids_C]).to(dtype)
        self._settings = settings
        self.num_steps = num_steps
        """Over which the learning rate falls."""
        self._dtype = dtype
        self._parameters = list(draft.parameters())
        decayed = [parameter for parameter in self._parameters if parameter.ndim > 1]
        plain = [parameter for parameter in self._parameters if parameter.ndim <= 1]
        self.optimiser = torch.optim.AdamW(
            [
                {"params": decayed, "weight_decay": settings.weight_decay},
                {"params": plain, "weight_decay": 0.0},
            ],
            lr=settings.learning_rate,
            betas=(0.9, 0.95),
        )
        self._pool = ThreadPoolExecutor(num_workers, initializer=torch.set_num_threads, initargs=(1,))

    def close(self) -> None:
        """Let the workers go."""
        self._pool.shutdown(cancel_futures=True)

    def learning_rate(self, step: int) -> float:
        """Warm-up, then half a cosine down to a twentieth."""
        warmup_steps = max(1, round(self._settings.warmup_share * self.num_steps))
        if step < warmup_steps:
            return self._settings.learning_rate * (step + 1) / warmup_steps
        share = min(1.0, (step - warmup_steps) / max(1, self.num_steps - warmup_steps))
        return self._settings.learning_rate * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * share)))

    def step(self, batch: Batch, step: int) -> StepReport:
        """Learn from one batch.

        Raises:
            DistillationError: if loss or gradient are not finite; the parameters are as they were.
        """
        pieces = split(batch, PIECE_SEQUENCES)
        results = list(self._pool.map(self._gradients, pieces, repeat(self.num_own_steps(step))))
        num_rows = max(1, int(batch.asked_BT.sum()))
        loss = math.fsum(result.loss.item() for result, _ in results) / num_rows
        gradients = [sum_in_order(parts) / num_rows for parts in zip(*(parts for _, parts in results), strict=True)]
        norm = torch.nn.utils.get_total_norm(gradients).item()
        if not math.isfinite(loss) or not math.isfinite(norm):
            raise DistillationError(
                f"step {step}: the loss is {loss}, the gradient's norm {norm}; nothing of this step was kept. A run "
                f"keeps its settings: train another draft on the same text (the same --work, another --out) with a "
                f"--learning-rate below {self._settings.learning_rate}"
            )
        shrink = min(1.0, self._settings.largest_gradient_norm / (norm + 1e-6))
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            parameter.grad = gradient.mul_(shrink)
        for group in self.optimiser.param_groups:
            group["lr"] = self.learning_rate(step)
        self.optimiser.step()
        return StepReport(loss=loss, acceptance=mean_acceptance([result for result, _ in results]))

    def num_own_steps(self, step: int) -> int:
        """How many proposals in a row are trained for in that step."""
        settings = self._settings
        return settings.num_own_steps if step >= settings.own_steps_after * self.num_steps else 1

    def _gradients(self, piece: Batch, num_own_steps: int) -> tuple[HeadLoss, tuple[torch.Tensor, ...]]:
        with torch.enable_grad():
            result = self.loss(piece, num_own_steps)
            return result, torch.autograd.grad(result.loss, self._parameters)

    def loss(self, piece: Batch, num_own_steps: int) -> HeadLoss:
        """The weighted sum over the piece's rows."""
        device = self._target.device
        token_ids_BT = piece.token_ids_BT.to(device)
        features_BTE = piece.features_BTE.to(device)
        with torch.autocast(device.type, self._dtype, enabled=self._dtype is not torch.float32):
            outputs = self._draft(token_ids_BT, features_BTE, self._target, num_steps=num_own_steps)
        # Nobody asks for the other tokens, and the head is half of the work.
        asked_BT = piece.asked_BT.to(device)
        hidden_KNE = torch.stack([final_head_input(hidden_BTE[asked_BT], self._target) for hidden_BTE in outputs])
        teacher = TeacherRows(
            head_input_NE=(features_BTE[asked_BT] * self._target.final_norm_E).to(self._head_CE.dtype),
            log_totals_N=piece.log_totals_BT.to(device)[asked_BT],
        )
        places_N = asked_BT.nonzero()[:, 1]
        weight = self._settings.own_step_weight
        weights_KN = torch.stack([(places_N >= step).float() * weight**step for step in range(num_own_steps)])
        return head_loss(hidden_KNE, teacher, self._head_CE, weights_KN, loss=self._settings.loss)

    @torch.inference_mode()
    def acceptance(self, batches: Sequence[Batch]) -> tuple[float, ...]:
        """Mean of sum min(p, q) over held-out batches, for each of the draft's own steps."""
        pieces = [piece for batch in batches for piece in split(batch, PIECE_SEQUENCES)]
        return mean_acceptance(list(self._pool.map(self._judged, pieces)))

    def _judged(self, piece: Batch) -> HeadLoss:
        with torch.inference_mode():
            return self.loss(piece, self._settings.num_own_steps)


def mean_acceptance(results: Sequence[HeadLoss]) -> tuple[float, ...]:
    """For each step, over the rows that count in it."""
    totals_K = sum_in_order([result.acceptance_K for result in results])
    num_rows_K = sum_in_order([result.num_rows_K for result in results])
    return tuple((totals_K / num_rows_K.clamp(min=1)).tolist())


def split(batch: Batch, num_sequences: int) -> list[Batch]:
    """The batch in pieces of so many sequences."""
    return [
        Batch(
            token_ids_BT=batch.token_ids_BT[start : start + num_sequences],
            features_BTE=batch.features_BTE[start : start + num_sequences],
            log_totals_BT=batch.log_totals_BT[start : start + num_sequences],
            asked_BT=batch.asked_BT[start : start + num_sequences],
            kinds=batch.kinds[start : start + num_sequences],
        )
        for start in range(0, batch.token_ids_BT.shape[0], num_sequences)
    ]


def sum_in_order(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """The sum, always in the same order."""
    total = parts[0].clone()
    for part in parts[1:]:
        total += part
    return total
