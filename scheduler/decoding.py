"""One request as both lanes see it.

Owns what stays the same over a request's rounds: the sampling law, the place where the output must end, and how much
may be proposed on the way there. Knows nothing of streams or models.
"""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.distribution import SamplingLaw
from scheduler.history import TokenHistory
from scheduler.round import DecodeRequest


@dataclass(frozen=True, kw_only=True)
class Decoding:
    """A request with its law and its limits."""

    request: DecodeRequest
    law: SamplingLaw
    end: int
    """The output ends at this position, by max_tokens or the context, unless a token ends it before."""
    max_gamma: int
    warmup_tokens: int
    hands_out_features: bool = False
    """Whether a draft reads the target's features."""
    counts_on_host: bool = True
    """Whether histories keep the counts that penalties ask for; a device keeps its own."""

    def start_history(self) -> TokenHistory:
        """The prompt."""
        prompt_ids = self.request.prompt_ids
        return self.law.start_history(prompt_ids) if self.counts_on_host else TokenHistory(prompt_ids)

    def warming_up(self, history: TokenHistory) -> bool:
        """Whether the request is still to be decoded plainly."""
        return history.num_output_tokens < self.warmup_tokens

    def room(self, history: TokenHistory) -> int:
        """Most tokens of a block after `history`: the round adds one more, for which there must be place."""
        if self.warming_up(history):
            return 0
        return max(0, min(self.max_gamma, self.end - history.length - 1))

    def room_ahead(self, history: TokenHistory, num_drafted: int) -> int:
        """Tokens that may still be drafted behind `num_drafted` ones that nobody has judged."""
        if self.warming_up(history):
            return 0
        return max(0, self.end - history.length - num_drafted)
