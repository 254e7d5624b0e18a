"""What a block of each width costs on this machine, in milliseconds.

Owns the running estimate that gamma policies read. Knows nothing of models or lanes.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

_SMOOTHING = 0.1
"""Weight of the newest measurement; single steps on a shared machine are noisy."""
_LEAST_MS = 1e-6
"""What a step costs that the clock could not see; policies divide by costs."""


class BlockCosts:
    """Milliseconds by block width, measured at load and refreshed by every round.

    One thread records, others may read meanwhile: the table is replaced, never changed.
    """

    def __init__(self, measured_ms: Mapping[int, float] | None = None) -> None:
        self._ms: dict[int, float] = {}
        self.calibrate(measured_ms or {})

    def calibrate(self, measured_ms: Mapping[int, float]) -> None:
        """Forget everything and start from these measurements."""
        self._ms = {width: max(elapsed_ms, _LEAST_MS) for width, elapsed_ms in measured_ms.items()}

    def record(self, width: int, elapsed_ms: float) -> None:
        """Take in one measurement."""
        elapsed_ms = max(elapsed_ms, _LEAST_MS)
        if not self._ms or not min(self._ms) <= width <= max(self._ms):
            self._ms = {**self._ms, width: elapsed_ms}
            return
        # One slow step (another process, a page fault) must not count for many rounds, least of all where it is the
        # first of its width: a width that looks dear is not chosen, and so not measured again.
        known_ms = _interpolated(self._ms, width)
        self._ms = {**self._ms, width: known_ms + _SMOOTHING * (min(elapsed_ms, 3 * known_ms) - known_ms)}

    def estimate(self, width: int) -> float | None:
        """Expected milliseconds of a block; interpolated between measured widths, None if nothing was measured."""
        known_ms = self._ms
        return _interpolated(known_ms, width) if known_ms else None

    def as_dict(self) -> dict[int, float]:
        """The present estimates, by width."""
        return dict(sorted(self._ms.items()))


def _interpolated(known_ms: Mapping[int, float], width: int) -> float:
    if width in known_ms:
        return known_ms[width]
    widths = sorted(known_ms)
    below = max((w for w in widths if w < width), default=None)
    above = min((w for w in widths if w > width), default=None)
    if below is None or above is None:
        # Beyond the measured range the nearest width's cost is scaled as if each token cost the same: pessimistic
        # upwards, so that nobody drifts into blocks that were never measured.
        nearest = widths[0] if below is None else widths[-1]
        return known_ms[nearest] * max(1.0, width / nearest)
    share = (width - below) / (above - below)
    return known_ms[below] + share * (known_ms[above] - known_ms[below])


def elapsed_ms(started_s: float) -> float:
    """Milliseconds since `time.perf_counter()` was `started_s`."""
    return (time.perf_counter() - started_s) * 1e3
