"""Stop strings: where the text of a request ends.

Owns `StopStrings`. Knows nothing of tokens, rounds or requests.

The text is read character by character, so the cut depends on the text alone and not on the pieces it came in.
The first stop to be complete ends the text; of several that end at the same character, the longest.

Which tokens belong to the output: the text is fed one token at a time, and the token whose text
completed the stop is the last one; the tokens of a round behind it are dropped. The text ends before
the stop (or behind it, with `include_in_output`), so the ids may decode to a little more than the
text: to the stop itself and to what its last token holds beyond it. In that way a speculative round and
one-token decoding end at the same id.
"""

from __future__ import annotations

from collections.abc import Sequence

MAX_NUM_STOPS = 64
MAX_STOP_CHARS = 1024


class StopStrings:
    """Finds the first stop in a text that comes in pieces, and holds back what may still become one."""

    def __init__(self, stops: str | Sequence[str] = (), *, include_in_output: bool = False) -> None:
        """Watch for `stops`; none at all lets every text through.

        Raises:
            TypeError: if `stops` is no string and no sequence of strings.
            ValueError: if one is empty or too long, or there are too many.
        """
        self._stops = [_StopProgress(stop) for stop in checked_stops(stops)]
        self._include_in_output = include_in_output
        self._held = ""
        self._matched: str | None = None

    @property
    def matched(self) -> str | None:
        """The stop that ended the text, or None while it goes on."""
        return self._matched

    def push(self, text: str) -> str:
        """Take the next piece; return the text that certainly belongs to the output.

        Held back is no more than what could still grow into a stop. Once a stop is complete, `matched` names it,
        and everything behind it is dropped, in this piece and in all later ones.
        """
        if self._matched is not None:
            return ""
        num_held = len(self._held)
        pending = self._held + text
        for index, character in enumerate(text, start=num_held + 1):
            complete = [stop for stop in self._stops if stop.advance(character)]
            if complete:
                self._matched = max((stop.text for stop in complete), key=len)
                self._held = ""
                return pending[: index if self._include_in_output else index - len(self._matched)]
        longest_start = max((stop.num_matched for stop in self._stops), default=0)
        self._held = pending[len(pending) - longest_start :]
        return pending[: len(pending) - longest_start]

    def flush(self) -> str:
        """End the text without a stop: what was held back belongs to the output after all."""
        held, self._held = self._held, ""
        return held


class _StopProgress:
    """How much of one stop the text ends with (Knuth, Morris and Pratt, 1977, https://doi.org/10.1137/0206024)."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.num_matched = 0
        self._fallbacks = _fallbacks(text)

    def advance(self, character: str) -> bool:
        """Read one more character; whether the stop is complete with it."""
        while self.num_matched and self.text[self.num_matched] != character:
            self.num_matched = self._fallbacks[self.num_matched - 1]
        self.num_matched += self.text[self.num_matched] == character
        return self.num_matched == len(self.text)


def _fallbacks(text: str) -> list[int]:
    """For each prefix of `text`, the length of its longest proper prefix that is its suffix too."""
    lengths = [0] * len(text)
    length = 0
    for index in range(1, len(text)):
        while length and text[index] != text[length]:
            length = lengths[length - 1]
        length += text[index] == text[length]
        lengths[index] = length
    return lengths


def checked_stops(stops: object) -> tuple[str, ...]:
    """The stop strings of a request as a tuple.

    Raises:
        TypeError: if `stops` is no string and no sequence of strings.
        ValueError: if one is empty or longer than `MAX_STOP_CHARS`, or there are more than `MAX_NUM_STOPS`.
    """
    if isinstance(stops, str):
        stops = (stops,)
    if isinstance(stops, (bytes, bytearray)) or not isinstance(stops, Sequence):
        raise TypeError(f"stop is {type(stops).__name__}, not a string or a list of strings")
    if len(stops) > MAX_NUM_STOPS:
        raise ValueError(f"stop has {len(stops)} strings, above the limit of {MAX_NUM_STOPS}; give fewer")
    for index, stop in enumerate(stops):
        if not isinstance(stop, str):
            raise TypeError(f"stop[{index}] is {type(stop).__name__}, not a string; for token ids use stop_token_ids")
        if not stop:
            raise ValueError(f"stop[{index}] is empty, which would end every text at once; leave it out")
        if len(stop) > MAX_STOP_CHARS:
            raise ValueError(
                f"stop[{index}] has {len(stop)} characters, above the limit of {MAX_STOP_CHARS}; give a shorter part"
            )
    return tuple(stops)
