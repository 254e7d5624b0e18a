"""The frozen values that the stages of a round hand on.

Owns `Proposal`, `Verdict`, `RoundReport` and what a request asks of the loop. Knows nothing of how a
stage comes to its value.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import torch

from scheduler.settings import SamplingSettings, check_integer


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

    def __post_init__(self) -> None:
        if not self.prompt_ids:
            raise ValueError(
                "prompt must hold at least one token; a model with a beginning-of-text token can start from that"
            )
        check_integer("max_tokens", self.max_tokens, low=1, advice="ask for at least one token")
        if self.num_logprobs is not None:
            check_integer("logprobs", self.num_logprobs, low=0, high=100, advice="0 reports the chosen token only")


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """Tokens that a draft source offers after the committed ones: a chain, possibly empty."""

    token_ids: tuple[int, ...] = ()
    probabilities: tuple[torch.Tensor, ...] | None = None
    """Under the rejection rule, the q that each token was drawn from: float32, shape V. None means one-hot."""
    source: int = 0
    """Which of the request's draft sources made it."""
    draft_ms: float = 0.0


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
    token_ids: tuple[int, ...]
    """The accepted prefix and the target's own next token: `num_accepted + 1` ids."""
    logprobs: tuple[TokenLogprob, ...] = ()
    verify_ms: float = 0.0


@dataclass(frozen=True, kw_only=True)
class RoundReport:
    """What one round committed; the last one of a request carries the finish reason."""

    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()
    num_proposed: int = 0
    num_accepted: int = 0
    source: int = 0
    draft_ms: float = 0.0
    verify_ms: float = 0.0
    finish_reason: FinishReason | None = None


@dataclass(frozen=True, kw_only=True)
class PrefillReport:
    """How a request began."""

    num_prompt_tokens: int
    num_reused_tokens: int = 0
    """Prompt tokens that the target's cache still held from an earlier request."""
