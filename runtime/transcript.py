"""The text of one request as its tokens arrive, cut where it ends.

Owns the meeting of token ids, text and stop strings: it finds the token within a round at which a stop was completed.
Knows nothing of rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from models.tokenizer import Tokenizer
from runtime.detokenizer import IncrementalDetokenizer
from runtime.stop import StopStrings


@dataclass(frozen=True, kw_only=True)
class Piece:
    """What a round adds to the text."""

    text: str
    num_tokens: int
    """Tokens of the round that belong to the output; fewer than it had only if a stop string ended it."""
    stopped: bool
    """Whether a stop string ended the text."""


class Transcript:
    """Token ids in, final text out."""

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str], *, include_stop: bool = False) -> None:
        """Start with nothing."""
        self._detokenizer = IncrementalDetokenizer(tokenizer)
        self._stops = StopStrings(stops, include_in_output=include_stop)

    def push(self, token_ids: Sequence[int], *, last: bool) -> Piece:
        """Add a round's tokens, one by one, as one-token decoding would; `last` gives out what was held back."""
        text = ""
        for index, token_id in enumerate(token_ids):
            text += self._stops.push(self._detokenizer.push([token_id]))
            if self._stops.matched is not None:
                return Piece(text=text, num_tokens=index + 1, stopped=True)
        if last:
            text += self._stops.push(self._detokenizer.flush())
            if self._stops.matched is not None:
                return Piece(text=text, num_tokens=len(token_ids), stopped=True)
            text += self._stops.flush()
        return Piece(text=text, num_tokens=len(token_ids), stopped=False)
