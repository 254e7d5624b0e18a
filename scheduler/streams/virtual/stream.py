"""A virtual stream: the stream protocol over one queue of a virtual device.

Owns the checks of what is enqueued. Knows nothing of when it is executed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

from scheduler.streams.base import Event, TimeSource
from scheduler.streams.label import label_of
from scheduler.streams.lineage import Generation
from scheduler.streams.virtual.machine import Queue
from scheduler.streams.virtual.operations import Hold, VirtualEvent, VirtualLaunch, Wait
from scheduler.streams.virtual.races import LaunchSite

if TYPE_CHECKING:
    from scheduler.streams.virtual.device import VirtualDevice

Result = TypeVar("Result")


class VirtualStream:
    """One stream of a `VirtualDevice`, which alone makes them.

    Every method may raise the device's failure: `StreamRace`, `StreamDeadlock` or `TraceMismatchError`.
    """

    def __init__(self, device: VirtualDevice, queue: Queue) -> None:
        self._device = device
        self._queue = queue

    @property
    def name(self) -> str:
        """The name given to `VirtualDevice.stream`."""
        return self._queue.name

    def launch(
        self,
        work: Callable[[], Result],
        *,
        reads: Iterable[str] = (),
        writes: Iterable[str] = (),
        label: str = "",
        generation: Generation | None = None,
    ) -> VirtualLaunch[Result]:
        """Queue `work`; see `scheduler.streams.base.Stream`.

        Raises:
            TypeError: if `reads` or `writes` is one name instead of several.
        """
        for field, names in (("reads", reads), ("writes", writes)):
            if isinstance(names, str):
                raise TypeError(f"{field} must hold names of buffers, got one string; write ({names!r},)")
        queue = self._queue
        with self._device.enqueuing(queue) as (known, position):
            queue.num_launches += 1
            queue.last_label = label or label_of(work)
            launch = VirtualLaunch(
                self._device,
                work,
                site=LaunchSite(
                    label=queue.last_label,
                    stream=queue.name,
                    stream_index=queue.index,
                    number=queue.num_launches,
                    position=position,
                ),
                known=known,
                reads=tuple(reads),
                writes=tuple(writes),
                generation=generation,
            )
            queue.operations.append(launch)
        return launch

    def record(self, event: VirtualEvent | None = None) -> VirtualEvent:
        """An event behind everything queued so far: a new one, or one that `VirtualDevice.event` made.

        Raises:
            ValueError: if the event was recorded before.
        """
        event = VirtualEvent(self._device) if event is None else self._own(event)
        queue = self._queue
        with self._device.enqueuing(queue) as (known, _):
            if event.stream_index is not None:
                raise ValueError(f"{event} was recorded already; make another one")
            queue.num_events += 1
            behind = f" behind {queue.last_label!r}" if queue.last_label else ""
            event.queued(queue.index, known, f"{queue.num_events} of {queue.name!r}{behind}")
            queue.operations.append(event)
        return event

    def wait(self, event: Event) -> None:
        """Hold later launches back until `event`; an error on it marks this stream too."""
        own = self._own(event)
        with self._device.enqueuing(self._queue) as (known, _):
            self._queue.operations.append(Wait(own, known))

    def hold(self) -> Hold:
        """Hold later launches back until the hold is released: what work that takes long does on other devices.

        Waiting for a held stream is no deadlock. Work that blocks would stop the whole device, which has one thread.
        """
        with self._device.enqueuing(self._queue):
            hold = Hold(self._device)
            self._queue.operations.append(hold)
        return hold

    def new_time_source(self) -> TimeSource:
        """The device's; see `scheduler.streams.base.TimedStream`."""
        return self._device.time_source()

    def time_launches(self, time_source: TimeSource | None) -> None:
        """Nothing to do: a device with a clock notes all times."""

    def close(self) -> None:
        """Let queued work finish, then refuse more; idempotent.

        Raises:
            TraceMismatchError: also if this ends a replay, and choices of the trace are left.
        """
        self._device.close(self._queue)

    def _own(self, event: object) -> VirtualEvent:
        if not isinstance(event, VirtualEvent):
            raise TypeError(f"a VirtualStream can wait for a VirtualEvent only, not {type(event).__name__}")
        if event.device is not self._device:
            raise TypeError(f"stream {self.name!r} can wait for events of its own VirtualDevice only, not for {event}")
        return event
