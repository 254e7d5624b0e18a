"""The errors that streams and rounds can raise; part of the tree that `runtime.errors` draws."""

from __future__ import annotations

from models.errors import SlipstreamError


class DeviceUnavailableError(SlipstreamError):
    """A device was asked for that cannot be used; the message says why, and what to do."""


class StreamClosedError(SlipstreamError):
    """Work was launched on a stream that has been closed."""


class StaleLaunchError(SlipstreamError):
    """The result was asked for of work that was skipped, because what it assumed turned out wrong."""


class ScheduleError(SlipstreamError):
    """The virtual device found that a program does not order its work; the run can be had again."""

    def __init__(self, message: str, *, seed: int | None, num_steps: int) -> None:
        """Keep what a repetition needs.

        Args:
            message: what is wrong, and where.
            seed: of the device; None if it replayed a trace.
            num_steps: operations that the device had executed.
        """
        origin = "in a replay" if seed is None else f"with seed {seed}"
        super().__init__(f"{message} (found {origin}, after {num_steps} steps)")
        self.seed = seed
        self.num_steps = num_steps


class StreamRace(ScheduleError):
    """Two launches touch one buffer, at least one writes it, and no event orders them."""


class StreamDeadlock(ScheduleError):
    """The host waits, and no stream can go on: an event is never recorded, or waits go in a circle."""


class TraceMismatchError(SlipstreamError):
    """A trace was replayed on a program that is not the one it was taken from."""


class NonFiniteLogitsError(SlipstreamError):
    """A model returned a row from which no token can be drawn."""
