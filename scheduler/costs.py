"""What a block of each width costs on this machine, in milliseconds.

Owns the running estimate that the controller reads, and what all estimates of a machine have in common: it is shared,
and fast at one time and slow at another. Knows nothing of models or lanes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping

_SMOOTHING = 0.1
"""Weight of the newest measurement; single steps on a shared machine are noisy."""
_LEAST_MS = 1e-6
"""What a step costs that the clock could not see; policies divide by costs."""
_PACE_SMOOTHING = 0.1
_SHAPE_SMOOTHING = 0.02
"""With a pace in common: most of a surprise is the machine's, a little of it this width's own."""
_BESIDE_PACE_SMOOTHING = 0.03
_BESIDE_SHAPE_SMOOTHING = 0.1
"""The other way round beside another lane: how much that one is in the way is known less well than the pace, and what
the machine was blamed for would make the alternative, which is not run meanwhile, look as dear."""


class MachinePace:
    """How much slower the machine is than when its costs were measured.

    What is measured of one width in one mode says something of all others, which are not run meanwhile: without it, a
    machine that slows down would make whatever runs look dear beside what does not.
    """

    def __init__(self) -> None:
        self.factor = 1.0

    def note(self, ratio: float, smoothing: float) -> None:
        """A step took `ratio` times what was expected of it. Threads may note at once; a lost note does not matter."""
        self.factor *= math.exp(smoothing * math.log(ratio))


class BlockCosts:
    """Milliseconds by block width, measured at load and refreshed by every round.

    One thread records, others may read meanwhile: the table is replaced, never changed.
    """

    def __init__(
        self,
        measured_ms: Mapping[int, float] | None = None,
        *,
        pace: MachinePace | None = None,
        beside_another: bool = False,
    ) -> None:
        """Start from measurements, if there are any.

        Args:
            measured_ms: by width.
            pace: what tables of one machine have in common.
            beside_another: whether another lane runs meanwhile.
        """
        self._ms: dict[int, float] = {}
        self._pace = pace
        self._pace_smoothing = _BESIDE_PACE_SMOOTHING if beside_another else _PACE_SMOOTHING
        self._shape_smoothing = _BESIDE_SHAPE_SMOOTHING if beside_another else _SHAPE_SMOOTHING
        self.calibrate(measured_ms or {})

    def calibrate(self, measured_ms: Mapping[int, float]) -> None:
        """Forget everything and start from these measurements."""
        factor = self._factor
        self._ms = {width: max(elapsed_ms, _LEAST_MS) / factor for width, elapsed_ms in measured_ms.items()}

    def record(self, width: int, elapsed_ms: float) -> None:
        """Take in one measurement."""
        elapsed_ms = max(elapsed_ms, _LEAST_MS) / self._factor
        if not self._ms:
            self._ms = {width: elapsed_ms}
            return
        if not min(self._ms) <= width <= max(self._ms):
            # The estimate out there is what a block costs at most; one that took longer was disturbed.
            self._ms = {**self._ms, width: min(elapsed_ms, _interpolated(self._ms, width))}
            return
        # One slow step (another process, a page fault) must not count for many rounds, least of all where it is the
        # first of its width: a width that looks dear is not chosen, and so not measured again.
        known_ms = _interpolated(self._ms, width)
        elapsed_ms = min(elapsed_ms, 3 * known_ms)
        smoothing = _SMOOTHING if self._pace is None else self._shape_smoothing
        self._ms = {**self._ms, width: known_ms + smoothing * (elapsed_ms - known_ms)}
        if self._pace is not None:
            self._pace.note(elapsed_ms / known_ms, self._pace_smoothing)

    def estimate(self, width: int) -> float | None:
        """Expected milliseconds of a block; interpolated between measured widths, None if nothing was measured."""
        known_ms = self._ms
        return _interpolated(known_ms, width) * self._factor if known_ms else None

    def as_dict(self) -> dict[int, float]:
        """The present estimates, by width."""
        factor = self._factor
        return {width: elapsed_ms * factor for width, elapsed_ms in sorted(self._ms.items())}

    @property
    def _factor(self) -> float:
        return 1.0 if self._pace is None else self._pace.factor


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
