"""The stream protocol: work in order, events between streams, errors that travel, stale work that is skipped.

Owns the words `Stream`, `Event` and `Launch`, and `TimedStream` for those that can say when their launches ran;
everything above is written once, against them. Knows nothing of models, lanes or rounds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

from scheduler.streams.lineage import Generation

Result = TypeVar("Result")
Result_co = TypeVar("Result_co", covariant=True)


class Launch(Protocol[Result_co]):
    """One piece of work on a stream; its value may be read once the stream is known to be past it."""

    def result(self) -> Result_co:
        """The work's return value.

        Legal after an event recorded behind the launch is done, or inside work that is ordered
        after it (same stream, or a stream that waits on such an event).

        Raises:
            RuntimeError: if the work has not run yet.
            StaleLaunchError: if the work was skipped because its generation was retired.
            BaseException: whatever the work raised.
        """
        ...

    @property
    def skipped(self) -> bool:
        """Whether the stream has passed the work by, its generation being stale."""
        ...


class Event(Protocol):
    """A point in a stream: done once everything launched before it has run."""

    def done(self) -> bool:
        """Whether the point has been passed; never blocks, never raises."""
        ...

    def synchronize(self) -> None:
        """Block this thread until the point has been passed; raise what the stream's work raised."""
        ...

    def __await__(self) -> Generator[object, None, None]:
        """Suspend the caller, never its loop, until the point has been passed; raise likewise."""
        ...


@runtime_checkable
class TimedEvent(Event, Protocol):
    """An event of a stream that may note when it was passed, by the device's own clock."""

    @property
    def timed(self) -> bool:
        """Whether it does."""
        ...

    def elapsed_ms_since(self, earlier: Any) -> float:
        """Time on the device from an earlier event of the same kind; both must have passed."""
        ...


def elapsed_between(began: Event | None, ended: Event | None) -> float | None:
    """Milliseconds on the device from one event to another, both passed; None where they note no time."""
    if isinstance(began, TimedEvent) and isinstance(ended, TimedEvent) and began.timed and ended.timed:
        return ended.elapsed_ms_since(began)
    return None


class Stream(Protocol):
    """An ordered queue of work.

    An exception in a launch skips the launches behind it up to the next recorded event and marks that
    event: whoever waits on it, on the host or on another stream, gets the exception. After the event
    the stream is clean again and lives on.
    """

    @property
    def name(self) -> str:
        """A name for messages, traces and threads."""
        ...

    def launch(
        self,
        work: Callable[[], Result],
        *,
        reads: Iterable[str] = (),
        writes: Iterable[str] = (),
        label: str = "",
        generation: Generation | None = None,
    ) -> Launch[Result]:
        """Enqueue `work` in stream order.

        Args:
            work: what to run.
            reads: names of the buffers that it reads.
            writes: names of the buffers that it writes, or reads and writes.
            label: a name for messages and traces; empty takes the work's own.
            generation: if this is stale when the stream comes to the work, the work is skipped. None always runs.

        Raises:
            StreamClosedError: if the stream was closed.
        """
        ...

    def record(self) -> Event:
        """An event behind all that was launched so far."""
        ...

    def wait(self, event: Event) -> None:
        """Make later launches wait for `event`; the host does not wait."""
        ...

    def close(self) -> None:
        """Let queued work finish, then end the stream; idempotent."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchTimes:
    """When a launch ran, by the clock that its stream was given."""

    start_ms: float
    end_ms: float


class TimeSource(Protocol):
    """What times are told by."""

    def now_ms(self) -> float:
        """The time at which the host asks."""
        ...


class HostTime:
    """The host's own clock, which streams that run on the host go by."""

    def now_ms(self) -> float:
        """Milliseconds of `time.perf_counter`."""
        return time.perf_counter() * 1e3


class TimedLaunch(Launch[Result_co], Protocol[Result_co]):
    """A launch of a `TimedStream`."""

    def times(self) -> LaunchTimes | None:
        """When it ran; None as long as that is not known, and for good where it never ran. Never blocks."""
        ...


@runtime_checkable
class TimedStream(Protocol):
    """A stream that can note when its launches ran."""

    @property
    def name(self) -> str:
        """As `Stream.name`."""
        ...

    def new_time_source(self) -> TimeSource:
        """A clock for this stream and all others of its device.

        On a GPU the host waits for what is enqueued on the stream: ask between requests.

        Raises:
            ValueError: if no time passes on the device.
        """
        ...

    def time_launches(self, time_source: TimeSource | None) -> None:
        """Note the times of launches from now on, by a clock of the same device; None notes no more."""
        ...

    def launch(
        self,
        work: Callable[[], Result],
        *,
        reads: Iterable[str] = (),
        writes: Iterable[str] = (),
        label: str = "",
        generation: Generation | None = None,
    ) -> TimedLaunch[Result]:
        """As `Stream.launch`."""
        ...

    def record(self) -> Event:
        """As `Stream.record`."""
        ...

    def wait(self, event: Event) -> None:
        """As `Stream.wait`."""
        ...

    def close(self) -> None:
        """As `Stream.close`."""
        ...
