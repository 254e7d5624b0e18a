"""Text from token ids as they arrive, without ever taking a character back.

Owns `IncrementalDetokenizer`. Knows nothing of stops, rounds or requests.

A token may end in the middle of a character, so the decoder shows U+FFFD until the rest has come.
What is given out here is the longest text that later tokens cannot change, hence the pieces
joined are the decoding of all ids at once. Work per token is constant: only the
ids since the last complete character, and those just before it as context, are decoded again.
"""

from __future__ import annotations

from collections.abc import Sequence

from models.tokenizer import Tokenizer

REPLACEMENT = "\ufffd"

_LONGEST_WINDOW = 32
"""Most ids decoded again for a text that never reaches a complete character."""
_KEPT_CONTEXT = 8
"""Ids kept of such a window: at least a byte each, so more than the three that an unfinished character can have."""


class IncrementalDetokenizer:
    """Turns one sequence's token ids into pieces of text."""

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool = True) -> None:
        """Start with an empty text; `skip_special_tokens` leaves control tokens out of it."""
        self._tokenizer = tokenizer
        self._silent_ids = tokenizer.special_ids if skip_special_tokens else frozenset[int]()
        self._skip_special_tokens = skip_special_tokens
        self._window: list[int] = []
        """Ids decoded together: context whose text is out already, then those that came since."""
        self._num_context_ids = 0
        self._num_emitted = 0
        """Characters of the window's text that are out."""

    def push(self, token_ids: Sequence[int]) -> str:
        """Take the next ids; return the text that they make final, which may be empty or reach back to earlier ids."""
        visible = [token_id for token_id in token_ids if self._shows(token_id)]
        self._window += visible
        byte_ids = self._tokenizer.byte_fallback_ids
        if not visible or self._window[-1] in byte_ids:
            # One bad byte spoils its whole run, so the run's text is known only at its end.
            return ""
        text = self._decode(self._window)
        # Byte-level decoders show an unfinished character as one U+FFFD: only the last character can still change.
        num_held = int(text.endswith(REPLACEMENT) and not byte_ids)
        piece = text[self._num_emitted : len(text) - num_held]
        self._num_emitted = max(self._num_emitted, len(text) - num_held)
        if not num_held:
            self._restart_window(self._window[self._num_context_ids :], num_held=0)
        elif len(self._window) > _LONGEST_WINDOW:
            self._restart_window(self._window[-_KEPT_CONTEXT:], num_held=num_held)
        return piece

    def flush(self) -> str:
        """End the text: what was held back, with U+FFFD for bytes that never became a character; push no more."""
        piece = self._decode(self._window)[self._num_emitted :]
        self._num_emitted += len(piece)
        return piece

    def _shows(self, token_id: int) -> bool:
        """Whether the decoder gives anything for this id; it leaves the others out before all else, and so can we."""
        return token_id not in self._silent_ids and self._tokenizer.id_to_token(token_id) is not None

    def _restart_window(self, context: list[int], *, num_held: int) -> None:
        """Decode from `context` on, whose text is out but for the last `num_held` characters.

        A context that shows nothing is no use: decoders drop the space before the first word, never before a later one.
        """
        text = self._decode(context)
        if text:
            self._window = context
            self._num_context_ids = len(context)
            self._num_emitted = len(text) - num_held

    def _decode(self, token_ids: Sequence[int]) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=self._skip_special_tokens)
