"""A measurement that several checks read, made by the first that needs it.

Owns when it is made, and what the others hear if that failed. Knows nothing of what is measured.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from profiling.doctor.check import CannotTell

Value = TypeVar("Value")


class Shared(Generic[Value]):
    """Made at most once."""

    def __init__(self, name: str, make: Callable[[], Awaitable[Value]]) -> None:
        """Keep how to make it.

        Args:
            name: what it is, for those who come after a failure.
            make: the measurement.
        """
        self._name = name
        self._make = make
        self._made: list[Value] = []
        self._refusal: str | None = None

    async def get(self) -> Value:
        """The measurement.

        Raises:
            Exception: whatever the measurement raised, the first time.
            CannotTell: after that.
        """
        if self._made:
            return self._made[0]
        if self._refusal is not None:
            raise CannotTell(self._refusal)
        try:
            self._made.append(await self._make())
        except CannotTell as reason:
            self._refusal = str(reason)
            raise
        except Exception as error:
            self._refusal = f"{self._name} failed before: {error or type(error).__name__}"
            raise
        return self._made[0]
