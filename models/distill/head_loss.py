"""The loss of draft rows against target rows, through the frozen head, without keeping a logit.

Owns both losses, their gradients and the acceptance that goes with them. Knows nothing of layers or batches.

A row of logits is thousands of numbers and its gradient as many; both are made and used up chunk by chunk, so that
what a step holds in memory is only the hidden states.

Shape suffixes: N rows, M rows of a chunk, E hidden width, C tokens of the head, K steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from models.distill.settings import Loss

_CHUNK_ROWS = 512


@dataclass(frozen=True, kw_only=True)
class TeacherRows:
    """What the target says about N tokens."""

    head_input_NE: torch.Tensor
    """The target's features under its final norm's weight, in the head's dtype."""
    log_totals_N: torch.Tensor
    """float32: logarithm of the sum of exponentials over the whole vocabulary."""


@dataclass(frozen=True, kw_only=True)
class HeadLoss:
    """The result for K steps over N rows."""

    loss: torch.Tensor
    """Scalar: the sum of all rows' losses times their weights; differentiable."""
    acceptance_K: torch.Tensor
    """sum min(p, q), the chance that a proposal is accepted, summed over the rows with a weight above 0."""
    num_rows_K: torch.Tensor
    """float32: how many these are."""


def head_loss(
    hidden_KNE: torch.Tensor, teacher: TeacherRows, head_CE: torch.Tensor, weights_KN: torch.Tensor, *, loss: Loss
) -> HeadLoss:
    """Sum of weighted losses.

    q is a softmax over the head's C tokens; p is the target's distribution over all tokens. Under `FORWARD_KL` only the
    head's tokens count, since no q can do anything about the others.

    Args:
        hidden_KNE: float32: the draft's rows under the final norm, for each step.
        teacher: the target's rows.
        head_CE: float32 or bfloat16: rows of the target's head.
        weights_KN: float32, 0 where a row means nothing.
        loss: which one.
    """
    total, acceptance_K = _HeadLoss.apply(  # type: ignore[no-untyped-call]  # torch's stubs
        hidden_KNE, teacher.head_input_NE, teacher.log_totals_N, head_CE, weights_KN, loss
    )
    return HeadLoss(loss=total, acceptance_K=acceptance_K, num_rows_K=(weights_KN > 0).float().sum(-1))


class _HeadLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx,
        hidden_KNE: torch.Tensor,
        teacher_NE: torch.Tensor,
        log_totals_N: torch.Tensor,
        head_CE: torch.Tensor,
        weights_KN: torch.Tensor,
        loss: Loss,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        num_steps, num_rows, _ = hidden_KNE.shape
        gradient_KNE = torch.empty_like(hidden_KNE)
        total = hidden_KNE.new_zeros(())
        acceptance_K = hidden_KNE.new_zeros(num_steps)
        for start in range(0, num_rows, _CHUNK_ROWS):
            rows = slice(start, start + _CHUNK_ROWS)
            p_MC = F.linear(teacher_NE[rows], head_CE).float().sub_(log_totals_N[rows, None]).exp_()
            for step in range(num_steps):
                log_q_MC = F.linear(hidden_KNE[step, rows].to(head_CE.dtype), head_CE).float()
                log_q_MC = log_q_MC.sub_(log_q_MC.logsumexp(-1, keepdim=True))
                losses_M, gradient_MC, accepted_M = _row_losses(p_MC, log_q_MC, loss)
                weights_M = weights_KN[step, rows]
                gradient_ME = gradient_MC.to(head_CE.dtype) @ head_CE
                gradient_KNE[step, rows] = gradient_ME.float().mul_(weights_M[:, None])
                total += losses_M @ weights_M
                acceptance_K[step] += accepted_M @ (weights_M > 0).float()
        ctx.save_for_backward(gradient_KNE)
        ctx.mark_non_differentiable(acceptance_K)
        return total, acceptance_K

    @staticmethod
    def backward(
        ctx: torch.autograd.function.FunctionCtx, gradient: torch.Tensor, _: torch.Tensor
    ) -> tuple[torch.Tensor | None, ...]:
        (gradient_KNE,) = ctx.saved_tensors  # type: ignore[attr-defined]  # stubs leave it out
        return gradient_KNE * gradient, None, None, None, None, None


def _row_losses(
    p_MC: torch.Tensor, log_q_MC: torch.Tensor, loss: Loss
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Each row's loss, its gradient by the logits, and its acceptance; `log_q_MC` is used up."""
    if loss is Loss.FORWARD_KL:
        # Without the target's own entropy, which no draft can change and which would cost a logarithm of each number.
        losses_M = -(p_MC * log_q_MC).sum(-1)
        q_MC = log_q_MC.exp_()
        accepted_M = torch.minimum(p_MC, q_MC).sum(-1)
        return losses_M, q_MC.mul_(p_MC.sum(-1, keepdim=True)).sub_(p_MC), accepted_M
    q_MC = log_q_MC.exp_()
    accepted_M = torch.minimum(p_MC, q_MC).sum(-1)
    missing_MC = (q_MC < p_MC).float()
    gradient_MC = q_MC * ((missing_MC * q_MC).sum(-1, keepdim=True) - missing_MC)
    return 1 - accepted_M, gradient_MC, accepted_M
