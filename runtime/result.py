"""What a caller gets back: chunks while a request runs, a result when it is done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from runtime.metrics import Metrics
from scheduler import FinishReason, TokenLogprob


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """What one round adds: its tokens and the text that they make final."""

    text: str
    """May be empty while a character or a possible stop string is unfinished."""
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()
    """One a token, where they were asked for."""
    finish_reason: FinishReason | None = None
    """On the last chunk: `stop` or `length`."""
    num_draft_tokens: int = 0
    """Tokens that this round proposed; 0 in a plain one."""
    num_accepted_draft_tokens: int = 0
    """Those of them that were accepted and belong to the output."""
    metrics: Metrics | None = None
    """On the last chunk."""


@dataclass(frozen=True, kw_only=True)
class GenerationResult:
    """A finished request."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    metrics: Metrics
    logprobs: tuple[TokenLogprob, ...] = ()

    @classmethod
    def from_chunks(cls, chunks: Sequence[Chunk]) -> GenerationResult:
        """Join the chunks of a whole request.

        Raises:
            ValueError: if the last chunk is not a request's last.
        """
        last = chunks[-1] if chunks else None
        if last is None or last.finish_reason is None or last.metrics is None:
            raise ValueError("the chunks end before their request did")
        return cls(
            text="".join(chunk.text for chunk in chunks),
            token_ids=tuple(token_id for chunk in chunks for token_id in chunk.token_ids),
            finish_reason=last.finish_reason,
            metrics=last.metrics,
            logprobs=tuple(logprob for chunk in chunks for logprob in chunk.logprobs),
        )
