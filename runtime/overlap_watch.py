"""Whether anything may run ahead on a device that others use as well: looked at before a request, and while it runs.

Owns when to look, and which reading still counts. Knows nothing of rounds.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

from scheduler import Controller, OccupancyProbe, overlap_advice

LOOK_INTERVAL_S = 0.5
"""A reading costs the driver's lock, which launches want too."""
KEPT_S = 60.0
"""How long a finding counts where nothing newer is known."""


class OverlapWatch:
    """Tells a runtime's controllers whether others leave room for both lanes at once."""

    def __init__(
        self,
        probe: OccupancyProbe,
        controllers: Sequence[Controller],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Bind both.

        Args:
            probe: of the device.
            controllers: all that may let something run ahead.
            clock: the probe's, in seconds.
        """
        self._probe = probe
        self._controllers = controllers
        self._clock = clock
        self._heeded_at_s = -math.inf
        self._known_at_s = -math.inf
        self._next_look_s = -math.inf

    @contextmanager
    def over_request(self) -> Generator[Callable[[], None], None, None]:
        """Hold this open around a request; what it yields is to be called every round, and never blocks.

        Before the request's own work begins a reading is asked for: what keeps the device busy then is not ours.
        """
        if self._clock() - self._known_at_s > KEPT_S:
            self._say(None)
        self._next_look_s = -math.inf
        self._look()
        with self._probe.own_work():
            yield self._look

    def _look(self) -> None:
        now_s = self._clock()
        if now_s < self._next_look_s:
            return
        self._next_look_s = now_s + LOOK_INTERVAL_S
        reading = self._probe.latest()
        if reading.taken_at_s <= self._heeded_at_s or now_s - reading.taken_at_s > KEPT_S:
            return
        self._heeded_at_s = reading.taken_at_s
        advice = overlap_advice(reading)
        # A reading that tells nothing of others, as most do while we work, does not overrule one that did.
        if advice.known:
            self._known_at_s = reading.taken_at_s
            self._say(None if advice.allowed else advice.reason)

    def _say(self, reason: str | None) -> None:
        for controller in self._controllers:
            controller.no_overlap = reason
