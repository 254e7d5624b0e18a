"""The frozen values that the stages of a round hand on.

Owns `Proposal`, `Drafted`, `Verdict`, `Judgement`, `RoundReport` and what a request asks of the loop. Knows nothing of
how a stage comes to its value.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from enum import StrEnum

import torch

from scheduler.features import Features
from scheduler.history import TokenHistory
from scheduler.settings import SamplingSettings, check_integer

MOST_LOGPROBS = 100
"""Alternatives that a request may ask for."""


class FinishReason(StrEnum):
    """Why a request ended (the OpenAI API's words)."""

    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True, kw_only=True)
class DecodeRequest:
    """What one request asks of the decoding loop.

    Raises:
        TypeError, ValueError: if a field is of the wrong type or outside its limits.
    """

    prompt_ids: tuple[int, ...]
    settings: SamplingSettings
    max_tokens: int
    stop_ids: frozenset[int] = frozenset()
    """Ids that end the output and are its last token: end of sequence and the caller's own."""
    num_logprobs: int | None = None
    """Report each token's log probability and that many most likely alternatives; None reports nothing."""
    gamma: int | None = None
    """Propose so many tokens a round, as far as the loop has room for them; None leaves it to each source's policy."""

    def __post_init__(self) -> None:
        if not self.prompt_ids:
            raise ValueError(
                "prompt must hold at least one token; a model with a beginning-of-text token can start from that"
            )
        check_integer("max_tokens", self.max_tokens, low=1, advice="ask for at least one token")
        if self.gamma is not None:
            check_integer("gamma", self.gamma, low=0, advice="0 proposes nothing, 4 is a good start")
        if self.num_logprobs is not None:
            check_integer(
                "logprobs", self.num_logprobs, low=0, high=MOST_LOGPROBS, advice="0 reports the chosen token only"
            )


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """Tokens that a draft source offers after the committed ones: a chain, possibly empty."""

    token_ids: tuple[int, ...] = ()
    probabilities: tuple[torch.Tensor, ...] | None = None
    """Under the rejection rule, the q that each token was drawn from: float32, shape V. None means one-hot."""
    source: int = 0
    """Which of the request's draft sources made it."""
    draft_ms: float = 0.0

    def __len__(self) -> int:
        """Tokens of the chain."""
        return len(self.token_ids)

    def part(self, start: int, stop: int | None = None) -> Proposal:
        """The tokens from `start` to `stop`, with what belongs to them."""
        probabilities = self.probabilities
        return dataclasses.replace(
            self,
            token_ids=self.token_ids[start:stop],
            probabilities=None if probabilities is None else probabilities[start:stop],
        )

    def followed_by(self, other: Proposal) -> Proposal:
        """One chain of both; an empty one has no say in the source."""
        if not other.token_ids or not self.token_ids:
            kept = self if self.token_ids else other
            return dataclasses.replace(kept, draft_ms=self.draft_ms + other.draft_ms)
        probabilities = None
        if self.probabilities is not None and other.probabilities is not None:
            probabilities = (*self.probabilities, *other.probabilities)
        return dataclasses.replace(
            self,
            token_ids=(*self.token_ids, *other.token_ids),
            probabilities=probabilities,
            draft_ms=self.draft_ms + other.draft_ms,
        )


@dataclass(frozen=True, kw_only=True)
class Drafted:
    """What one launch on the draft's stream adds to the chain."""

    proposal: Proposal = Proposal()
    gamma: int = 0
    """How many tokens of this source are worth verifying at once."""
    lead: int = 0
    """How many tokens past such a block are worth drafting while it is verified."""
    behind: bool = False
    """Whether the source is still reading committed tokens, so that its next token is more than one step away."""


@dataclass(frozen=True, kw_only=True)
class TokenLogprob:
    """Log probabilities of one emitted token under the target, before any transform."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    """The most likely ids with their log probabilities, most likely first."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What the target made of a proposal."""

    num_accepted: int
    """Proposed tokens that stand, an accepted guess among them."""
    token_ids: tuple[int, ...]
    """The accepted prefix and, unless that was judged to its end by the last row, the target's own next token."""
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """A verdict with all that both lanes and the host need to go on from it."""

    proposal: Proposal
    """What was judged: the block, and behind it the guess where there was one."""
    num_verified: int
    """Tokens of the block, which the target has read; a guess is judged by the block's last row and not read."""
    verdict: Verdict
    history: TokenHistory
    """The committed tokens, the verdict's among them."""
    kept_length: int
    """Tokens that stay true in a cache which has read past the block: the old history and the accepted part of it."""
    verify_ms: float = 0.0
    features: Features | None = None
    """Of the tokens that the target has read and that stand, for a draft that asked for them."""

    @property
    def has_guess(self) -> bool:
        """Whether the token after the block was guessed."""
        return len(self.proposal) > self.num_verified

    @property
    def refuted(self) -> bool:
        """Whether any proposed token does not stand."""
        return self.verdict.num_accepted < len(self.proposal)

    @property
    def hit(self) -> bool:
        """Whether the guess is the token after the block: all that was drafted behind it is still true."""
        return self.has_guess and self.verdict.num_accepted == len(self.proposal)


@dataclass(frozen=True, kw_only=True)
class RoundReport:
    """What one round committed; the last one of a request carries the finish reason."""

    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()
    num_proposed: int = 0
    """Tokens of the verified block."""
    num_accepted: int = 0
    hit: bool | None = None
    """Whether the guess for the token after the block was right; None where nothing was guessed."""
    together: bool = False
    """Whether a draft went on past the block while that was verified."""
    num_discarded: int = 0
    """Lookahead tokens thrown away since the last report; the block's own rejected ones are none."""
    source: int = 0
    draft_ms: float = 0.0
    """Time that the draft took for what this round used up or threw away; it may have run beside a verify."""
    verify_ms: float = 0.0
    finish_reason: FinishReason | None = None


@dataclass(frozen=True, kw_only=True)
class PrefillReport:
    """How a request began."""

    num_prompt_tokens: int
    num_reused_tokens: int = 0
    """Prompt tokens that the target's cache still held from an earlier request."""
