"""Whether the draft keeps up with the target.

Owns a request's evidence: while a block was verified, did the draft get past its guess? A draft that never does brings
nothing by running ahead, since the block after a hit would be empty, and the target would wait for each guess. Knows
nothing of clocks: it counts rounds.
"""

from __future__ import annotations

_PATIENCE = 3
"""Rounds in a row without keeping up, until the draft counts as too slow."""
_FIRST_PAUSE = 8
_LAST_PAUSE = 64
"""Rounds until it is tried again: doubling from the first to the last."""


class Pace:
    """The draft's pace in one request; it is given the benefit of the doubt at first."""

    def __init__(self) -> None:
        self._num_late = 0
        self._pause = _FIRST_PAUSE
        self._num_rounds_off = 0

    @property
    def too_slow(self) -> bool:
        """Whether nothing is to be expected of the draft in the coming round."""
        return self._num_rounds_off > 0

    def note(self, kept_up: bool | None) -> None:
        """A round has ended; None where it shows nothing."""
        if self._num_rounds_off:
            self._num_rounds_off -= 1
        elif kept_up:
            self._num_late, self._pause = 0, _FIRST_PAUSE
        elif kept_up is not None:
            self._num_late += 1
            if self._num_late >= _PATIENCE:
                self._num_rounds_off, self._pause = self._pause, min(2 * self._pause, _LAST_PAUSE)
                # After the pause one more late round is enough.
                self._num_late = _PATIENCE - 1
