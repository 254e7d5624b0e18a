"""Whether speculation is worth its while, over a runtime's recent rounds.

Owns the rolling acceptance rate and its one warning. Knows nothing of how proposals are made.
"""

from __future__ import annotations

import logging
from collections import deque

from scheduler.settings import check_integer, check_number

_logger = logging.getLogger("slipstream")

_RECOVERY_MARGIN = 0.05
"""How far above the threshold counts as recovered: a rate that hovers about it must not warn at each crossing."""


class AcceptanceMonitor:
    """Rolling acceptance rate; warns once when it falls below a threshold, and again only after a recovery."""

    def __init__(self, *, threshold: float = 0.4, window: int = 200) -> None:
        """Watch the last `window` proposed tokens; a threshold of 0 never warns."""
        check_number("acceptance threshold", threshold, low=0.0, high=1.0, advice="0 switches the warning off")
        check_integer("window", window, low=1, advice="200 proposed tokens are a good window")
        self.threshold = threshold
        self.window = window
        self._rounds: deque[tuple[int, int]] = deque()
        self._num_proposed = 0
        self._num_accepted = 0
        self._warned = False

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted share of the tokens in the window; None before anything was proposed."""
        return self._num_accepted / self._num_proposed if self._num_proposed else None

    @property
    def low(self) -> bool:
        """Whether a full window lies below the threshold."""
        rate = self.acceptance_rate
        return rate is not None and self._num_proposed >= self.window and rate < self.threshold

    def observe(self, num_proposed: int, num_accepted: int) -> None:
        """Take in one round."""
        if num_proposed == 0:
            return
        self._rounds.append((num_proposed, num_accepted))
        self._num_proposed += num_proposed
        self._num_accepted += num_accepted
        while self._num_proposed - self._rounds[0][0] >= self.window:
            old_proposed, old_accepted = self._rounds.popleft()
            self._num_proposed -= old_proposed
            self._num_accepted -= old_accepted
        if self.low and not self._warned:
            self._warned = True
            _logger.warning(
                "acceptance rate %.0f %% over the last %d proposed tokens is below %.0f %%: this draft suits the "
                "target or the text badly; try another draft, a smaller gamma, or plain decoding",
                100 * (self.acceptance_rate or 0.0),
                self._num_proposed,
                100 * self.threshold,
            )
        elif self._warned and (self.acceptance_rate or 0.0) >= min(1.0, self.threshold + _RECOVERY_MARGIN):
            self._warned = False
