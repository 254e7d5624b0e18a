"""One request at a time, in the order of their calls.

Owns the queue of waiting requests. Unlike `asyncio.Lock` it belongs to no event loop, so a runtime may be used
under one `asyncio.run` after another, and from loops on several threads. Knows nothing of what a request does.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

_RECHECK_S = 1.0
"""How often a waiter looks whether the owner's loop was closed under it; such an owner hands nothing on."""


class _Waiter:
    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[None] = self.loop.create_future()

    def wake(self) -> bool:
        """Schedule the wake-up; False if this waiter's loop is gone."""
        try:
            self.loop.call_soon_threadsafe(self._resolve)
        except RuntimeError:
            return False
        return True

    def _resolve(self) -> None:
        if not self.future.done():
            self.future.set_result(None)


class RequestQueue:
    """A first-come, first-served lock for tasks of any loop."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiters: deque[_Waiter] = deque()
        self._owner: _Waiter | None = None

    def __len__(self) -> int:
        """Requests that wait."""
        return len(self._waiters)

    @property
    def num_running(self) -> int:
        """Requests whose turn it is: 0 or 1."""
        owner = self._owner
        return int(owner is not None and not owner.loop.is_closed())

    @asynccontextmanager
    async def turn(self) -> AsyncGenerator[None, None]:
        """Wait for one's turn, and hand it on at the end; a cancelled waiter leaves the queue."""
        waiter = _Waiter()
        with self._lock:
            self._waiters.append(waiter)
            # An owner whose loop was closed under it can never leave by itself.
            if self._owner is None or self._owner.loop.is_closed():
                self._hand_on()
        try:
            await self._come_first(waiter)
            yield
        finally:
            with self._lock:
                if self._owner is waiter:
                    self._hand_on()
                elif waiter in self._waiters:
                    self._waiters.remove(waiter)

    async def _come_first(self, waiter: _Waiter) -> None:
        while not waiter.future.done():
            # Not `wait_for`, which would cancel the future when the time is over.
            await asyncio.wait([waiter.future], timeout=_RECHECK_S)
            with self._lock:
                if self._owner is not None and self._owner.loop.is_closed():
                    self._hand_on()

    def _hand_on(self) -> None:
        """Give the turn to the first waiter whose loop still lives."""
        self._owner = None
        while self._waiters and self._owner is None:
            following = self._waiters.popleft()
            if following.wake():
                self._owner = following
