"""Committing: from a judgement to the report of a round.

Owns the places where one-token decoding would have ended, which are where a block is cut. Knows nothing of lanes.
"""

from __future__ import annotations

from scheduler.decoding import Decoding
from scheduler.history import TokenHistory
from scheduler.round import FinishReason, Judgement, RoundReport


def commit(decoding: Decoding, history: TokenHistory, judgement: Judgement) -> RoundReport:
    """Cut a verdict where one-token decoding would have ended.

    Args:
        decoding: the request.
        history: committed tokens before the verdict.
        judgement: what the target made of the block.
    """
    verdict = judgement.verdict
    token_ids, finish_reason = _cut(decoding, history, verdict.token_ids)
    return RoundReport(
        token_ids=token_ids,
        logprobs=verdict.logprobs[: len(token_ids)],
        num_proposed=judgement.num_verified,
        num_accepted=min(verdict.num_accepted, judgement.num_verified, len(token_ids)),
        hit=judgement.hit if judgement.has_guess else None,
        source=judgement.proposal.source,
        draft_ms=judgement.proposal.draft_ms,
        verify_ms=judgement.verify_ms,
        finish_reason=finish_reason,
    )


def _cut(
    decoding: Decoding, history: TokenHistory, token_ids: tuple[int, ...]
) -> tuple[tuple[int, ...], FinishReason | None]:
    for index, token_id in enumerate(token_ids):
        if token_id in decoding.request.stop_ids:
            return token_ids[: index + 1], FinishReason.STOP
        if history.length + index + 1 >= decoding.end:
            return token_ids[: index + 1], FinishReason.LENGTH
    return token_ids, None
