"""The two verification rules: how a proposal becomes a verdict.

Owns coupled and rejection verification of one block against the target's rows. Knows nothing of
caches, streams or where the rows came from.

Rows are judged one after the other and the first disagreement ends the block, so later rows cost nothing and
every row is treated as one-token decoding would treat it.

Shape suffixes: R rows of the block (proposed tokens + 1), V vocabulary.
"""

from __future__ import annotations

import torch

from scheduler.distribution import Distribution, SamplingLaw
from scheduler.history import TokenHistory
from scheduler.noise import Purpose, uniform
from scheduler.round import Proposal, TokenLogprob, Verdict
from scheduler.settings import Verification


def judge(
    law: SamplingLaw,
    logits_RV: torch.Tensor,
    history: TokenHistory,
    proposal: Proposal,
    *,
    num_logprobs: int | None = None,
) -> Verdict:
    """Accept the longest prefix of a proposal that the rule allows and draw the token after it.

    Args:
        law: the request's transforms and rule.
        logits_RV: float32, the target's rows; row r predicts the token after `history` and r proposed tokens.
        history: committed tokens.
        proposal: R - 1 tokens, all of which the target has read; or R tokens, the last of which is a guess for the
            token after the block: it is judged like any other, and where it is accepted it *is* that token.
        num_logprobs: alternatives to report for each emitted token; None reports nothing.

    Returns:
        A verdict of at least one token: the accepted prefix and, unless a guess was accepted, one more.
    """
    rule = _next_coupled if law.settings.verification is Verification.COUPLED else _next_by_rejection
    token_ids: list[int] = []
    proposed_ids = proposal.token_ids
    num_accepted = 0
    for row in range(len(logits_RV)):
        target = law.apply(logits_RV[row], history, proposed_ids[:row])
        token_id = rule(law.settings.seed, history.length + row, target, proposal, row)
        token_ids.append(token_id)
        if row == len(proposed_ids) or token_id != proposed_ids[row]:
            break
        num_accepted += 1
    logprobs = _report_logprobs(logits_RV, token_ids, num_logprobs)
    return Verdict(num_accepted=num_accepted, token_ids=tuple(token_ids), logprobs=logprobs)


def _next_coupled(seed: int, position: int, target: Distribution, proposal: Proposal, row: int) -> int:
    """The target's own sample under the shared noise; the proposal has no say in it."""
    return target.draw(seed, position, Purpose.SHARED)


def _next_by_rejection(seed: int, position: int, target: Distribution, proposal: Proposal, row: int) -> int:
    """Speculative sampling, Leviathan et al., 2023, algorithm 1 (https://arxiv.org/abs/2211.17192).

    The residual gives the proposed token itself no weight after its rejection (there p < q), so a token unlike the
    proposed one is how the caller knows of a rejection.
    """
    if row == len(proposal.token_ids):
        return target.draw(seed, position, Purpose.TARGET)
    proposed_id = proposal.token_ids[row]
    target_V = target.probabilities_V()
    draft_V = _draft_probabilities(proposal, row, target_V)
    if uniform(seed, position, Purpose.ACCEPT) * float(draft_V[proposed_id]) < float(target_V[proposed_id]):
        return proposed_id
    residual_V = (target_V - draft_V).clamp_(min=0)
    if not bool(residual_V.any()):
        # p equals q but for rounding: nothing is left over, and p itself is the law.
        residual_V = target_V
    token_ids_C = residual_V.nonzero().squeeze(-1)
    residual = Distribution(
        vocab_size=target.vocab_size, token_ids_C=token_ids_C, log_weights_C=residual_V[token_ids_C].log()
    )
    return residual.draw(seed, position, Purpose.RESIDUAL)


def _draft_probabilities(proposal: Proposal, row: int, target_V: torch.Tensor) -> torch.Tensor:
    if proposal.probabilities is not None:
        return proposal.probabilities[row]
    one_hot_V = torch.zeros_like(target_V)
    one_hot_V[proposal.token_ids[row]] = 1.0
    return one_hot_V


def _report_logprobs(
    logits_RV: torch.Tensor, token_ids: list[int], num_logprobs: int | None
) -> tuple[TokenLogprob, ...]:
    if num_logprobs is None:
        return ()
    reports = []
    for logits_V, token_id in zip(logits_RV, token_ids, strict=False):
        logprobs_V = torch.log_softmax(logits_V, dim=-1)
        values, ids = torch.topk(logprobs_V, min(num_logprobs, len(logprobs_V)))
        top = tuple(zip(ids.tolist(), values.tolist(), strict=True))
        reports.append(TokenLogprob(token_id=token_id, logprob=float(logprobs_V[token_id]), top=top))
    return tuple(reports)
