"""What a draft would have proposed along an answer, and how likely each proposal was to stand.

Owns the alignment of a draft's rows with the tokens of a text. Knows nothing of means or kinds.

Shape suffixes: S tokens read, N tokens of the answer, M rows of a chunk, B = 1 sequence of T = S tokens, E hidden
width, V vocabulary, C tokens of the head.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from models.distill.answers import Answer
from models.distill.batched_target import BatchedTarget, final_head_input
from models.distill.draft_model import DraftModel
from models.distill.proposal_chances import ProposalChances, proposal_chances
from models.draft_folder import DraftDesign

_CHUNK_ROWS = 64
"""A row over the whole vocabulary is hundreds of kilobytes."""


@torch.inference_mode()
def answer_chances(
    draft: DraftModel, target: BatchedTarget, head_token_ids_C: torch.Tensor | None, answer: Answer, gamma: int
) -> list[ProposalChances]:
    """For the first to the last proposal of a round, the chances at every token of the answer.

    The row at position t of step k reads the token there and foretells the next one, as the k-th proposal of the round
    whose last known token is at t - k + 1. Of the k-th proposals, the first k - 1 are of rounds that would have begun
    inside the prompt, and mean nothing.

    Args:
        draft: trained.
        target: of which it is a draft.
        head_token_ids_C: int64, ascending: what the draft can propose; None is all.
        answer: the target's.
        gamma: proposals of a round.
    """
    features_SE = answer.features_SE.to(target.device)
    hidden_by_step = _hidden(draft, target, answer.token_ids_T[:-1].to(target.device), features_SE, gamma)
    rows = slice(answer.num_prompt_tokens - 1, None)
    next_ids_N = answer.token_ids_T[answer.num_prompt_tokens :].to(target.device)
    head_CE = target.head_VE
    if head_token_ids_C is not None:
        head_token_ids_C = head_token_ids_C.to(target.device)
        head_CE = head_CE[head_token_ids_C]
    teacher_NE = features_SE[rows]
    parts: list[list[ProposalChances]] = []
    for start in range(0, len(next_ids_N), _CHUNK_ROWS):
        chunk = slice(start, start + _CHUNK_ROWS)
        target_logits_MV = target.logits(teacher_NE[chunk])
        parts.append(
            [
                proposal_chances(
                    target_logits_MV,
                    F.linear(final_head_input(hidden_SE[rows][chunk], target).to(head_CE.dtype), head_CE).float(),
                    head_token_ids_C,
                    next_ids_N[chunk],
                )
                for hidden_SE in hidden_by_step
            ]
        )
    by_step = [_joined([part[step] for part in parts]) for step in range(len(hidden_by_step))]
    # A token draft's rows do not depend on where a round began.
    return by_step if len(by_step) == gamma else by_step * gamma


def _hidden(
    draft: DraftModel, target: BatchedTarget, token_ids_S: torch.Tensor, features_SE: torch.Tensor, gamma: int
) -> list[torch.Tensor]:
    num_steps = gamma if draft.design is DraftDesign.FEATURE else 1
    with torch.autocast(target.device.type, target.dtype, enabled=target.computes_short):
        outputs = draft(token_ids_S[None], features_SE[None], target, num_steps=num_steps)
    return [hidden_BTE[0] for hidden_BTE in outputs]


def _joined(parts: Sequence[ProposalChances]) -> ProposalChances:
    return ProposalChances(
        overlap_M=torch.cat([part.overlap_M for part in parts]),
        rejection_M=torch.cat([part.rejection_M for part in parts]),
        shared_noise_M=torch.cat([part.shared_noise_M for part in parts]),
        greedy_M=torch.cat([part.greedy_M for part in parts]),
    )
