"""How far a chain on the device reaches, as the host knows it.

Owns counts only. The device knows where the chain stands; the host knows it up to the verdict that is under way, and
bounds it both ways: from above for the keys that a step may see and for the end of the text, from below for what the
draft has read. Knows nothing of tensors.

Between a verdict's settling and its news the chain may be either of two: after a hit it stands, less what was
committed; else it is empty, and its first token comes behind the verdict's last one.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class _Pending:
    """A verdict that was settled and that nobody has heard of."""

    num_verified: int
    has_guess: bool
    num_drawn_since: int = 0


class Extent:
    """Lengths of one request's text and chain.

    Every token is drawn by a step that reads the two tokens before it, so that n tokens drawn behind L committed ones
    leave n + L - 1 rows of the draft's cache written.
    """

    def __init__(self) -> None:
        self.begin(0, num_read=0)

    def begin(self, length: int, *, num_read: int) -> None:
        """A prompt of `length` tokens, of which the draft's cache holds the first `num_read`."""
        self.length = length
        """Committed tokens, by the latest news."""
        self.num_read = num_read
        """Rows of the cache that hold what they should, by the latest news."""
        self._num_drawn = 0
        self._pending: _Pending | None = None

    @property
    def is_pending(self) -> bool:
        """Whether a verdict was settled that nobody has heard of."""
        return self._pending is not None

    @property
    def has_read(self) -> bool:
        """Whether a step finds all rows that it needs, whatever the verdict is: it reads the last two tokens itself.

        A verdict that nobody has heard of adds at least one token, which then is one of the two.
        """
        return self._num_steps > 0 or self.num_read >= self.length - (2 if self._pending is None else 1)

    @property
    def end(self) -> int:
        """The position of the next token to draw, at most."""
        pending = self._pending
        if pending is None:
            return self.length + self._num_drawn
        after_miss = self.length + pending.num_verified + 1
        after_hit = self.length + self._num_drawn if pending.has_guess else 0
        return max(after_miss, after_hit) + pending.num_drawn_since

    @property
    def num_unjudged(self) -> int:
        """Tokens of the chain that wait for a verdict, at most."""
        pending = self._pending
        if pending is None:
            return self._num_drawn
        after_hit = self._num_drawn - pending.num_verified - 1 if pending.has_guess else 0
        return after_hit + pending.num_drawn_since

    def read(self, num_read: int) -> None:
        """The cache holds that many committed tokens now."""
        self.num_read = num_read

    def draw(self) -> None:
        """A step was taken."""
        if self._pending is None:
            self._num_drawn += 1
            self.num_read = self.length + self._num_drawn - 1
        else:
            self._pending = _Pending(
                num_verified=self._pending.num_verified,
                has_guess=self._pending.has_guess,
                num_drawn_since=self._pending.num_drawn_since + 1,
            )

    def settle(self, *, num_verified: int, has_guess: bool) -> None:
        """A verdict on the chain's first tokens was taken in, unseen.

        Raises:
            RuntimeError: if the one before it is still unknown.
        """
        if self._pending is not None:
            raise RuntimeError("a second verdict was settled before the first one was noted")
        self._pending = _Pending(num_verified=num_verified, has_guess=has_guess)

    def note(self, length: int, *, hit: bool) -> None:
        """That verdict is known: `length` tokens are committed, and the chain stands (`hit`) or is a new one.

        Raises:
            RuntimeError: if none was settled.
        """
        if self._pending is None:
            raise RuntimeError("a verdict was noted that was never settled")
        num_since = self._pending.num_drawn_since
        num_left = self._num_drawn - self._pending.num_verified - 1 if hit else 0
        self.length, self._num_drawn, self._pending = length, num_left + num_since, None
        if self._num_drawn or hit:
            self.num_read = length + self._num_drawn - 1
        else:
            # The verdict's last token was not drafted, so it has not been read either.
            self.num_read = min(self.num_read, length - 1)

    @property
    def _num_steps(self) -> int:
        return self._num_drawn + (0 if self._pending is None else self._pending.num_drawn_since)
