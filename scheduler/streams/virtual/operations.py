"""What stands in the queue of a virtual stream: launches, recordings of events, waits and holds.

Owns the outcome of each. How they are executed is the machine's affair, what the host may know of them the device's.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from scheduler.errors import StaleLaunchError
from scheduler.streams.base import LaunchTimes
from scheduler.streams.lineage import Generation
from scheduler.streams.virtual.clock import NOTHING_KNOWN, Clock
from scheduler.streams.virtual.races import LaunchSite

if TYPE_CHECKING:
    from scheduler.streams.virtual.device import VirtualDevice

Result = TypeVar("Result")


class VirtualLaunch(Generic[Result]):
    """Work queued on a `VirtualStream`, and its outcome."""

    def __init__(
        self,
        device: VirtualDevice,
        work: Callable[[], Result],
        *,
        site: LaunchSite,
        known: Clock,
        reads: tuple[str, ...],
        writes: tuple[str, ...],
        generation: Generation | None,
    ) -> None:
        self._device = device
        self._work: Callable[[], Result] | None = work
        self._value: Result | None = None
        self._error: BaseException | None = None
        self.site = site
        self.known = known
        self.reads = reads
        self.writes = writes
        self.generation = generation
        self.was_run = False
        self.was_skipped = False
        self.ran: LaunchTimes | None = None
        """When, on a device with a clock."""

    @property
    def can_go(self) -> bool:
        """Always: a launch goes as soon as it is the head of its queue."""
        return True

    def run(self) -> BaseException | None:
        """Run the work; returns its error."""
        work, self._work = self._work, None
        self.was_run = True
        if work is not None:
            try:
                self._value = work()
            except BaseException as error:  # it travels to whoever waits, even a KeyboardInterrupt
                self._error = error
        return self._error

    def skip(self, poison: BaseException | None) -> None:
        """Pass the work by, because of an earlier launch's error or, without one, as stale."""
        self._work = None
        self.was_skipped = poison is None
        self._error = poison or StaleLaunchError(f"{self.site.label!r} was skipped: its generation was retired")

    def outcome(self) -> Result:
        """The value or the error of work that the stream has passed."""
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]  # set by run() unless an error was

    def value_or_none(self) -> Result | None:
        """The value; None if there is none."""
        return self._value

    def result(self) -> Result:
        """The work's value; see `scheduler.streams.base.Launch`.

        Raises:
            RuntimeError: also if the work has run and the host cannot know it yet.
            StreamRace: if work reads it that is not ordered after this launch.
        """
        return self._device.result_of(self)

    def times(self) -> LaunchTimes | None:
        """When it ran by the device's clock; see `scheduler.streams.base.TimedLaunch`."""
        return self.ran

    @property
    def skipped(self) -> bool:
        """Whether the work was passed by as stale, once the reader knows that the stream is past it."""
        return self._device.knows_of(self) and self.was_skipped


class VirtualEvent:
    """A point in a `VirtualStream`, or one that no stream has recorded yet."""

    def __init__(self, device: VirtualDevice, name: str = "") -> None:
        self.device = device
        self._name = name
        self.stream_index: int | None = None
        self._place = ""
        self.known: Clock = NOTHING_KNOWN
        self.clock: Clock = NOTHING_KNOWN
        self.passed = False
        self.passed_ms = 0.0
        self.error: BaseException | None = None

    @property
    def can_go(self) -> bool:
        """Always: recording goes as soon as it is the head of its queue."""
        return True

    def queued(self, stream_index: int, known: Clock, place: str) -> None:
        """Take note of where the event is recorded."""
        self.stream_index = stream_index
        self.known = known
        self._place = place

    def __str__(self) -> str:
        if not self._name:
            return f"event {self._place}"
        return f"event {self._name!r} ({self._place})" if self._place else f"event {self._name!r}"

    def done(self) -> bool:
        """Whether the host can see that the point has been passed.

        Also True once the device has failed: the next call of any other kind raises the failure.
        """
        return self.device.is_done(self)

    def synchronize(self) -> None:
        """Run the device until the point has been passed; raises what the stream's work raised.

        Raises:
            StreamRace, StreamDeadlock: if the device has found the program wrong.
        """
        self.device.synchronize(self)

    def __await__(self) -> Generator[object, None, None]:
        # A bare yield gives asyncio's loop one turn, and needs neither a task nor a future.
        return self.device.turns_until(self)


class Wait:
    """Holds a stream back until an event."""

    def __init__(self, event: VirtualEvent, known: Clock) -> None:
        self.event = event
        self.known = known

    @property
    def can_go(self) -> bool:
        """Whether the event has passed."""
        return self.event.passed


class Hold:
    """Holds a stream back until somebody lets it go, as work does that takes long."""

    def __init__(self, device: VirtualDevice) -> None:
        self._device = device
        self.known = NOTHING_KNOWN
        self.can_go = False

    def release(self) -> None:
        """Let the stream go on; idempotent."""
        self._device.release(self)


Operation = VirtualLaunch[Any] | VirtualEvent | Wait | Hold
