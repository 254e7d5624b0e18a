"""The two verification rules on all rows of a block at once, in device tensors.

Owns the device's twin of `scheduler.verify.judge` and how its verdict travels to the host: packed into one tensor,
so that one copy brings it. Knows nothing of caches, streams or where the rows came from.

All rows are judged and the first disagreement cuts them off; rows behind it cost time on the device but have no say,
not even by being broken. Nothing here looks at a value on the host.

Shape suffixes: B tokens of the block, G guesses behind it (0 or 1), P = B + G proposed tokens, R = B + 1 rows,
K alternatives reported, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from scheduler.errors import NonFiniteLogitsError
from scheduler.noise import Purpose
from scheduler.on_device.law import DeviceCounts, DeviceLaw
from scheduler.on_device.noise_table import NoiseTable
from scheduler.round import TokenLogprob, Verdict
from scheduler.settings import Verification

_NO_TOKEN = -1
_NUM_HEADER_WORDS = 6


@dataclass(frozen=True, kw_only=True)
class HostVerdict:
    """A verdict that has arrived on the host."""

    verdict: Verdict
    """Means nothing where the rows were not finite."""
    hit: bool
    """Whether the guess is the token after the block."""
    finite: bool
    """Whether every row that was looked at allows a token."""
    kept_length: int
    """Tokens that stay true in a cache which has read past the block."""
    next_position: int
    """Position of the first token that the verdict does not give."""

    def check_finite(self) -> None:
        """Refuse a verdict from damaged rows.

        Raises:
            NonFiniteLogitsError: naming the position.
        """
        if not self.finite:
            raise NonFiniteLogitsError(
                f"no token can be drawn at position {self.next_position - 1}, as the largest logit there is not "
                "finite: the weights are damaged, or min_tokens forbids every token there is"
            )


@dataclass(frozen=True, kw_only=True)
class VerdictLayout:
    """Where each part of a verdict stands in its packed tensor."""

    num_rows: int
    """R of the block."""
    num_top: int | None
    """K, alternatives reported for each token; None reports no log probabilities at all."""

    @classmethod
    def of(cls, *, num_rows: int, num_logprobs: int | None, vocab_size: int) -> VerdictLayout:
        """The layout for R rows of width V and the request's `num_logprobs`."""
        return cls(num_rows=num_rows, num_top=None if num_logprobs is None else min(num_logprobs, vocab_size))

    @property
    def num_words(self) -> int:
        """int64 words of the packed tensor."""
        words_per_row = 1 if self.num_top is None else 2 + 2 * self.num_top
        return _NUM_HEADER_WORDS + self.num_rows * words_per_row

    def unpack(self, packed: torch.Tensor) -> HostVerdict:
        """What `DeviceVerdict.packed` said, from its copy in host memory: int64, words beyond the layout's are skipped.

        Raises:
            ValueError: if it is shorter than the layout.
        """
        if packed.shape[0] < self.num_words:
            raise ValueError(f"a verdict of this layout takes {self.num_words} words, got {packed.shape[0]}")
        header = packed[:_NUM_HEADER_WORDS].tolist()
        num_accepted, num_emitted, hit, finite, kept_length, next_position = header
        token_ids = packed[_NUM_HEADER_WORDS : _NUM_HEADER_WORDS + num_emitted].tolist()
        return HostVerdict(
            verdict=Verdict(
                num_accepted=num_accepted,
                token_ids=tuple(token_ids),
                logprobs=self._logprobs(packed[_NUM_HEADER_WORDS + self.num_rows : self.num_words], token_ids),
            ),
            hit=bool(hit),
            finite=bool(finite),
            kept_length=kept_length,
            next_position=next_position,
        )

    def _logprobs(self, words: torch.Tensor, token_ids: Sequence[int]) -> tuple[TokenLogprob, ...]:
        if self.num_top is None:
            return ()
        num_rows, num_top = self.num_rows, self.num_top
        chosen = words[:num_rows].view(torch.float64).tolist()
        top_ids = words[num_rows : num_rows * (1 + num_top)].view(num_rows, num_top).tolist()
        top_logprobs = words[num_rows * (1 + num_top) :].view(torch.float64).view(num_rows, num_top).tolist()
        return tuple(
            TokenLogprob(
                token_id=token_id, logprob=chosen[row], top=tuple(zip(top_ids[row], top_logprobs[row], strict=True))
            )
            for row, token_id in enumerate(token_ids)
        )


@dataclass(frozen=True, kw_only=True)
class DeviceVerdict:
    """What the target made of a proposal, on the device; all but `token_ids_R` have no dimension."""

    num_accepted: torch.Tensor
    """int64; proposed tokens that stand, an accepted guess among them."""
    num_emitted: torch.Tensor
    """int64; tokens that the verdict gives: as many as in `Verdict.token_ids`."""
    token_ids_R: torch.Tensor
    """int64; those tokens, -1 behind them."""
    hit: torch.Tensor
    """bool; whether there was a guess and it is the token after the block."""
    finite: torch.Tensor
    """bool; whether every row up to the last emitted token's allows a token. A row that does not ends the block."""
    kept_length: torch.Tensor
    """int64; tokens that stay true in a cache which has read past the block."""
    next_position: torch.Tensor
    """int64; position of the first token that the verdict does not give."""
    layout: VerdictLayout
    logprobs_R: torch.Tensor | None = None
    """float32; log probability of each row's token before any transform."""
    top_ids_RK: torch.Tensor | None = None
    """int64; most likely ids of each row, most likely first."""
    top_logprobs_RK: torch.Tensor | None = None
    """float32; their log probabilities."""

    def packed(self) -> torch.Tensor:
        """All that the host needs, int64, contiguous, `layout.num_words` long; `layout.unpack` reads a copy of it."""
        header = (self.num_accepted, self.num_emitted, self.hit, self.finite, self.kept_length, self.next_position)
        parts = [torch.stack([value.to(torch.int64) for value in header]), self.token_ids_R]
        if self.logprobs_R is not None and self.top_ids_RK is not None and self.top_logprobs_RK is not None:
            parts += [_words(self.logprobs_R), self.top_ids_RK.flatten(), _words(self.top_logprobs_RK.flatten())]
        return torch.cat(parts)


def judge_on_device(
    law: DeviceLaw,
    noise: NoiseTable,
    logits_RV: torch.Tensor,
    *,
    position: torch.Tensor | int,
    num_output: torch.Tensor | int,
    counts: DeviceCounts | None,
    block_ids_B: torch.Tensor,
    guess_ids_G: torch.Tensor,
    draft_probabilities: Sequence[torch.Tensor] | None = None,
    num_logprobs: int | None = None,
) -> DeviceVerdict:
    """Accept the longest prefix of a proposal that the rule allows and draw the token after it.

    Args:
        law: the request's transforms and rule.
        noise: reserved up to `position + R`.
        logits_RV: float32, the target's rows; row r predicts the token at `position + r`.
        position: of the first row's token: the number of committed ones. A tensor is int64 without a dimension.
        num_output: output tokens among the committed ones; likewise.
        counts: of the committed tokens; None where no penalty asks for any.
        block_ids_B: int64, R - 1 proposed tokens, all of which the target has read.
        guess_ids_G: int64, none or one more, which the last row judges: where it is accepted, it *is* that row's token.
        draft_probabilities: under the rejection rule the q, float32 of shape V, that each of the P tokens was drawn
            from; None means one-hot. The coupled rule looks at none.
        num_logprobs: alternatives to report for each emitted token; None reports nothing.

    Raises:
        ValueError: if the numbers of rows, proposed tokens and probabilities do not fit together.
    """
    proposed_ids_P = torch.cat([block_ids_B, guess_ids_G])
    num_rows, num_proposed, num_guesses = _sizes(logits_RV, block_ids_B, guess_ids_G)
    row_R = torch.arange(num_rows, device=logits_RV.device)
    log_weights_RV, finite_R = law.apply(
        logits_RV,
        num_output_R=row_R + num_output,
        counts=None if counts is None else counts.rows(block_ids_B),
    )
    if law.settings.verification is Verification.COUPLED:
        # The target's own sample under the shared noise; the proposal has no say in it.
        token_ids_R = _draw(law, noise, log_weights_RV, Purpose.SHARED, row_R + position)
    else:
        draft_PV = _draft_probabilities(proposed_ids_P, draft_probabilities, law.vocab_size)
        token_ids_R = _next_by_rejection(law, noise, log_weights_RV, row_R + position, proposed_ids_P, draft_PV)
    agrees_P = (token_ids_R[:num_proposed] == proposed_ids_P) & finite_R[:num_proposed]
    num_accepted = agrees_P.to(torch.int64).cumprod(0).sum()
    num_emitted = (num_accepted + 1).clamp(max=num_rows)
    unused_R = row_R >= num_emitted
    layout = VerdictLayout.of(num_rows=num_rows, num_logprobs=num_logprobs, vocab_size=logits_RV.shape[-1])
    logprobs_R, top_ids_RK, top_logprobs_RK = _report_logprobs(logits_RV, token_ids_R, layout.num_top)
    return DeviceVerdict(
        num_accepted=num_accepted,
        num_emitted=num_emitted,
        token_ids_R=token_ids_R.masked_fill(unused_R, _NO_TOKEN),
        hit=num_accepted > num_proposed - num_guesses,
        finite=(finite_R | unused_R).all(),
        kept_length=num_accepted.clamp(max=num_rows - 1) + position,
        next_position=num_emitted + position,
        layout=layout,
        logprobs_R=logprobs_R,
        top_ids_RK=top_ids_RK,
        top_logprobs_RK=top_logprobs_RK,
    )


def _sizes(logits_RV: torch.Tensor, block_ids_B: torch.Tensor, guess_ids_G: torch.Tensor) -> tuple[int, int, int]:
    """R, P and G."""
    num_rows, num_tokens, num_guesses = len(logits_RV), len(block_ids_B), len(guess_ids_G)
    if num_rows != num_tokens + 1:
        raise ValueError(f"a block of {num_tokens} tokens is judged by {num_tokens + 1} rows, got {num_rows}")
    if num_guesses > 1:
        raise ValueError(f"the last row judges at most 1 guess, got {num_guesses}")
    return num_rows, num_tokens + num_guesses, num_guesses


def _draw(
    law: DeviceLaw, noise: NoiseTable, log_weights_RV: torch.Tensor, purpose: Purpose, positions_R: torch.Tensor
) -> torch.Tensor:
    if law.settings.greedy:
        return law.draw_R(log_weights_RV, None)
    return law.draw_R(log_weights_RV, noise.gumbel_RV(purpose, positions_R, law.token_ids_V))


def _next_by_rejection(
    law: DeviceLaw,
    noise: NoiseTable,
    log_weights_RV: torch.Tensor,
    positions_R: torch.Tensor,
    proposed_ids_P: torch.Tensor,
    draft_PV: torch.Tensor,
) -> torch.Tensor:
    """Speculative sampling, Leviathan et al., 2023, algorithm 1 (https://arxiv.org/abs/2211.17192), in every row."""
    num_proposed = len(proposed_ids_P)
    positions_P = positions_R[:num_proposed]
    target_PV = law.probabilities_RV(log_weights_RV[:num_proposed])
    chosen_P1 = proposed_ids_P[:, None]
    draft_P = draft_PV.gather(1, chosen_P1).squeeze(1).to(torch.float64)
    target_P = target_PV.gather(1, chosen_P1).squeeze(1).to(torch.float64)
    accepted_P = noise.uniform_R(Purpose.ACCEPT, positions_P) * draft_P < target_P
    residual_PV = (target_PV - draft_PV).clamp_min_(0)
    # Where p equals q but for rounding, nothing is left over, and p itself is the law.
    left_over_P1 = (residual_PV > 0).any(-1, keepdim=True)
    residual_PV = torch.where(left_over_P1, residual_PV, target_PV)
    redrawn_P = _draw(law, noise, residual_PV.log(), Purpose.RESIDUAL, positions_P)
    token_ids_P = torch.where(accepted_P, proposed_ids_P, redrawn_P)
    bonus_ids = _draw(law, noise, log_weights_RV[num_proposed:], Purpose.TARGET, positions_R[num_proposed:])
    return torch.cat([token_ids_P, bonus_ids])


def _draft_probabilities(
    proposed_ids_P: torch.Tensor, draft_probabilities: Sequence[torch.Tensor] | None, vocab_size: int
) -> torch.Tensor:
    num_proposed = len(proposed_ids_P)
    if draft_probabilities is None or num_proposed == 0:
        none_PV = torch.zeros(num_proposed, vocab_size, device=proposed_ids_P.device)
        return none_PV.scatter(1, proposed_ids_P[:, None], 1.0)
    if len(draft_probabilities) != num_proposed:
        raise ValueError(
            f"draft_probabilities must hold a row for each of the {num_proposed} proposed tokens, "
            f"got {len(draft_probabilities)}"
        )
    return torch.stack(list(draft_probabilities))


def _report_logprobs(
    logits_RV: torch.Tensor, token_ids_R: torch.Tensor, num_top: int | None
) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
    """Under the target itself, before any transform: each row's token, most likely ids, their values."""
    if num_top is None:
        return None, None, None
    logprobs_RV = torch.log_softmax(logits_RV, dim=-1)
    top_logprobs_RK, top_ids_RK = torch.topk(logprobs_RV, num_top)
    return logprobs_RV.gather(1, token_ids_R[:, None]).squeeze(1), top_ids_RK, top_logprobs_RK


def _words(values: torch.Tensor) -> torch.Tensor:
    """float32 numbers as the bits of float64 ones, which are as wide as a packed word."""
    return values.to(torch.float64).view(torch.int64)
