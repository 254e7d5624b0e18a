"""Prompt lookup: the draft that costs nothing, because the text itself is the model.

Owns an index of every short n-gram in one sequence of token ids. Where the latest tokens occurred before,
what followed them then is proposed again (prompt lookup decoding, https://github.com/apoorvumang/prompt-lookup-decoding;
the same idea as "LLMA", Yang et al., 2023, https://arxiv.org/abs/2304.04487). Knows nothing of
models, caches or probabilities.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass

_MAX_COUNTED_MATCH = 64
"""A match is followed backwards no further than this, so that a proposal's cost has a bound."""


@dataclass(frozen=True, kw_only=True)
class NgramMatch:
    """A continuation copied from an earlier place in the sequence."""

    tokens: tuple[int, ...]
    """The proposed tokens; empty where nothing matched."""
    match_length: int
    """How many latest tokens agree with the earlier place (counted up to 64); 0 where nothing matched."""


_NO_MATCH = NgramMatch(tokens=(), match_length=0)


class NgramIndex:
    """Every n-gram of min_match to max_match tokens, by where it occurred last and where before that.

    The earlier place that continues a sequence is the one whose preceding tokens agree with the latest ones over
    the longest stretch, compared up to max_match tokens; among equally long ones the most recent. It is a
    function of the present tokens alone, whatever was appended and cut off on the way to them.

    Appending or cutting one token costs one dictionary operation for each n.
    """

    def __init__(self, *, min_match: int = 2, max_match: int = 8) -> None:
        """An index of the empty sequence.

        Raises:
            TypeError: if a limit is not an integer.
            ValueError: if min_match is below 1 or max_match below min_match.
        """
        self._min_match = _checked_count("min_match", min_match, at_least=1)
        self._max_match = _checked_count("max_match", max_match, at_least=self._min_match)
        num_lengths = self._max_match - self._min_match + 1
        self._tokens: list[int] = []
        # For each n: where each n-gram ended last, and for the n-gram that ends at each position, where the same
        # one had ended before (0: nowhere). The second is the undo log of the first.
        self._last_end: list[dict[tuple[int, ...], int]] = [{} for _ in range(num_lengths)]
        self._end_before: list[list[int]] = [[] for _ in range(num_lengths)]

    def __len__(self) -> int:
        """Tokens held now."""
        return len(self._tokens)

    def extend(self, token_ids: Iterable[int]) -> None:
        """Append tokens.

        Raises:
            TypeError: if a token is not an integer; the tokens before it have been appended.
        """
        for token_id in token_ids:
            self._tokens.append(operator.index(token_id))
            for last_end, end_before, n in self._levels():
                end_before.append(self._enter(last_end, n))

    def truncate(self, length: int) -> None:
        """Keep the first `length` tokens; the index is then as if the others had never come.

        Raises:
            TypeError: if `length` is not an integer.
            ValueError: if `length` is negative or above the present length.
        """
        if _checked_count("length", length, at_least=0) > len(self):
            raise ValueError(f"length must be at most {len(self)}, the tokens held now; got {length}")
        while len(self) > length:
            for last_end, end_before, n in self._levels():
                self._leave(last_end, n, end_before.pop())
            self._tokens.pop()

    def propose(self, max_tokens: int) -> NgramMatch:
        """The continuation of the best earlier match, at most `max_tokens` long.

        Where the copied stretch runs into the end of the sequence it goes on with its own first tokens, as a
        repeated text would, so a match always gives `max_tokens` tokens.

        Raises:
            TypeError: if `max_tokens` is not an integer.
            ValueError: if `max_tokens` is negative.
        """
        if _checked_count("max_tokens", max_tokens, at_least=0) == 0:
            return _NO_MATCH
        length = len(self)
        for n in range(min(self._max_match, length), self._min_match - 1, -1):
            end = self._end_before[n - self._min_match][length - 1]
            if end:
                period = length - end
                tokens = tuple(self._tokens[end + offset % period] for offset in range(max_tokens))
                return NgramMatch(tokens=tokens, match_length=self._agreement(end, n))
        return _NO_MATCH

    def _levels(self) -> Iterable[tuple[dict[tuple[int, ...], int], list[int], int]]:
        return zip(self._last_end, self._end_before, range(self._min_match, self._max_match + 1), strict=True)

    def _enter(self, last_end: dict[tuple[int, ...], int], n: int) -> int:
        """Note the n-gram that ends with the sequence; return where it had ended before, or 0."""
        if len(self) < n:
            return 0
        ngram = tuple(self._tokens[-n:])
        end_before = last_end.get(ngram, 0)
        last_end[ngram] = len(self)
        return end_before

    def _leave(self, last_end: dict[tuple[int, ...], int], n: int, end_before: int) -> None:
        """Undo `_enter` for the last token."""
        if len(self) < n:
            return
        ngram = tuple(self._tokens[-n:])
        if end_before:
            last_end[ngram] = end_before
        else:
            del last_end[ngram]

    def _agreement(self, end: int, known: int) -> int:
        """How many tokens before `end` equal the latest ones, of which `known` are already known to."""
        tokens, length = self._tokens, len(self)
        most = min(end, max(known, _MAX_COUNTED_MATCH))
        while known < most and tokens[end - 1 - known] == tokens[length - 1 - known]:
            known += 1
        return known


def _checked_count(name: str, value: int, *, at_least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an integer of at least {at_least}, got {value!r}")
    if value < at_least:
        raise ValueError(f"{name} must be at least {at_least}, got {value}")
    return value
