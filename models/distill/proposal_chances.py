"""How likely a proposal is to stand, given the token that the text goes on with.

Owns the chances under each way to verify, for rows of logits. Knows nothing of models or texts.

All of them are exact given the text, so no proposal has to be drawn. Let x be drawn from p, and a draft propose by q:

- Under the rejection rule (https://arxiv.org/abs/2211.17192) a token y is proposed and accepted with probability
  q(y) min(1, p(y) / q(y)) = p(y) min(1, q(y) / p(y)). The text that results has law p, so given that it goes on with x,
  the proposal was accepted with probability min(1, q(x) / p(x)). The same holds for each of several proposals in a row.
- With shared noise, draft and target both take the i with the least E_i / p_i or E_i / q_i of common exponential E_i.
  Both take x if E_j >= E_x max(p_j / p_x, q_j / q_x) for all j, so with probability 1 / sum_j of these maxima
  (https://arxiv.org/abs/2408.07978); given that the target takes x, with 1 / sum_j max(p_j, q_j p_x / q_x).
- Greedily, a proposal stands if it is the target's token.

Shape suffixes: M rows, V vocabulary, C tokens of the head.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, kw_only=True)
class ProposalChances:
    """Of M proposals."""

    overlap_M: torch.Tensor
    """sum min(p, q): the chance under the rejection rule before the text is known."""
    rejection_M: torch.Tensor
    shared_noise_M: torch.Tensor
    greedy_M: torch.Tensor
    """1 or 0."""


def proposal_chances(
    target_logits_MV: torch.Tensor,
    draft_logits_MC: torch.Tensor,
    head_token_ids_C: torch.Tensor | None,
    token_ids_M: torch.Tensor,
) -> ProposalChances:
    """The chances at temperature 1, and of the likeliest tokens.

    Args:
        target_logits_MV: float32.
        draft_logits_MC: float32.
        head_token_ids_C: which tokens the draft's columns stand for; None is all. Others have q = 0.
        token_ids_M: int64: how the text goes on.
    """
    p_MV = target_logits_MV.softmax(dim=-1)
    q_MC = draft_logits_MC.softmax(dim=-1)
    p_MC = p_MV if head_token_ids_C is None else p_MV[:, head_token_ids_C]
    best_M = draft_logits_MC.argmax(dim=-1)
    if head_token_ids_C is None:
        columns_M, known_M = token_ids_M, torch.ones_like(token_ids_M, dtype=torch.bool)
    else:
        best_M = head_token_ids_C[best_M]
        columns_M = torch.searchsorted(head_token_ids_C, token_ids_M).clamp_(max=len(head_token_ids_C) - 1)
        known_M = head_token_ids_C[columns_M] == token_ids_M
    smallest = torch.finfo(p_MV.dtype).tiny
    p_x_M = p_MV.gather(1, token_ids_M[:, None])[:, 0].clamp_(min=smallest)
    q_x_M = q_MC.gather(1, columns_M[:, None])[:, 0] * known_M
    rejection_M = (q_x_M / p_x_M).clamp(max=1)
    # The sum of maxima times min(p_x, q_x) / p_x, so that no quotient can overflow.
    scale_M = (p_x_M / q_x_M.clamp(min=smallest)).clamp(max=1)
    largest_MC = torch.maximum(p_MC * rejection_M[:, None], q_MC * scale_M[:, None])
    beyond_head_M = (1 - p_MC.sum(-1)).clamp_(min=0) * rejection_M
    return ProposalChances(
        overlap_M=torch.minimum(p_MC, q_MC).sum(-1),
        rejection_M=rejection_M,
        shared_noise_M=rejection_M / (largest_MC.sum(-1) + beyond_head_M),
        greedy_M=(best_M == token_ids_M).float(),
    )
