"""Generations: which launches still rest on an assumption that holds.

Owns the numbering. What a draft writes past an unverified block assumes that the block will be accepted; when it is
not, every launch that was made on the assumption is stale, and those that have not begun are skipped. Knows nothing of
streams or of what is assumed.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass


class Lineage:
    """Numbers generations from 0 on; retiring one retires all before it.

    Any thread may read and retire: a launch that begins at the very moment its generation is retired may run or be
    skipped, and both must be right.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._num_begun = 0
        self._num_retired = 0

    def begin(self) -> Generation:
        """A new generation, the newest."""
        with self._lock:
            generation = Generation(lineage=self, number=self._num_begun)
            self._num_begun += 1
        return generation

    def retire(self, generation: Generation) -> None:
        """Make `generation` and all before it stale, for ever."""
        # A verdict and a cancellation may come at once, from two threads.
        with self._lock:
            self._num_retired = max(self._num_retired, generation.number + 1)

    def is_stale(self, number: int) -> bool:
        """Whether that generation was retired."""
        return number < self._num_retired


@dataclass(frozen=True, kw_only=True, slots=True)
class Generation:
    """What a launch carries: one number of one lineage."""

    lineage: Lineage
    number: int

    @property
    def stale(self) -> bool:
        """Whether the launches of this generation no longer matter."""
        return self.lineage.is_stale(self.number)
