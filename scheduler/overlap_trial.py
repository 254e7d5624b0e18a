"""When to try overlap again that did not promise enough.

Owns the counting of rounds. What lanes cost beside each other is measured only while both run: a figure that was too
high at load would otherwise never be put right. Knows nothing of costs or plans.
"""

from __future__ import annotations

_LENGTH = 8
"""Rounds of a trial: enough for a wrong figure to move."""
_FIRST_PAUSE = 32
_LAST_PAUSE = 512
"""Rounds between trials: doubling from the first to the last, so that all of them together cost next to nothing."""


class OverlapTrial:
    """Counts rounds in turn; every now and then a few of them are to overlap."""

    def __init__(self) -> None:
        self._pause = _FIRST_PAUSE
        self._num_waited = 0
        self._num_left = 0

    def take_round(self) -> bool:
        """Whether the coming round, which was to be in turn, is part of a trial."""
        if self._num_left == 0:
            self._num_waited += 1
            if self._num_waited <= self._pause:
                return False
            self._num_waited, self._num_left = 0, _LENGTH
            self._pause = min(2 * self._pause, _LAST_PAUSE)
        self._num_left -= 1
        return True

    def succeed(self) -> None:
        """Overlap was chosen on its merits: whenever it is given up again, look again soon."""
        self._pause, self._num_waited, self._num_left = _FIRST_PAUSE, 0, 0
