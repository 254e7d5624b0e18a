"""What a block of each width costs on this machine, in milliseconds.

Owns the running estimate that gamma policies read. Knows nothing of models or lanes.
"""

from __future__ import annotations

_SMOOTHING = 0.1
"""Weight of the newest measurement; single steps on a shared machine are noisy."""


class BlockCosts:
    """Milliseconds by block width, measured at load and refreshed by every round."""

    def __init__(self, measured_ms: dict[int, float] | None = None) -> None:
        self._ms = dict(measured_ms or {})

    def record(self, width: int, elapsed_ms: float) -> None:
        """Take in one measurement."""
        known_ms = self._ms.get(width)
        if known_ms is None:
            self._ms[width] = elapsed_ms
        else:
            # One slow step (another process, a page fault) must not count for many rounds.
            self._ms[width] += _SMOOTHING * (min(elapsed_ms, 3 * known_ms) - known_ms)

    def estimate(self, width: int) -> float | None:
        """Expected milliseconds of a block; interpolated between measured widths, None if nothing was measured."""
        if not self._ms:
            return None
        if width in self._ms:
            return self._ms[width]
        widths = sorted(self._ms)
        below = max((w for w in widths if w < width), default=None)
        above = min((w for w in widths if w > width), default=None)
        if below is None or above is None:
            # Beyond the measured range the nearest width's cost is scaled as if each token cost the same: pessimistic
            # upwards, so that nobody drifts into blocks that were never measured.
            nearest = widths[0] if below is None else widths[-1]
            return self._ms[nearest] * max(1.0, width / nearest)
        share = (width - below) / (above - below)
        return self._ms[below] + share * (self._ms[above] - self._ms[below])

    def as_dict(self) -> dict[int, float]:
        """The present estimates, by width."""
        return dict(sorted(self._ms.items()))
