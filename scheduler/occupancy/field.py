"""One measured value, or the reason why there is none.

Owns the rule that unknown is never written as 0. Knows nothing of where values come from.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Generic, TypeVar

Value = TypeVar("Value", int, float, str)

_NOT_AVAILABLE = frozenset({2**64 - 1, 2**32 - 1})
"""What NVML writes into an unsigned field that the device does not fill (NVML_VALUE_NOT_AVAILABLE)."""


@dataclass(frozen=True, kw_only=True)
class OccupancyField(Generic[Value]):
    """A value that may be unknown."""

    value: Value | None
    """None where unknown."""
    reason: str
    """Where the value comes from, or why it is unknown."""

    @classmethod
    def unknown(cls, reason: str) -> OccupancyField[Value]:
        """No value, and why."""
        return cls(value=None, reason=reason)

    @property
    def known(self) -> bool:
        """Whether there is a value."""
        return self.value is not None


def count_field(number: int, source: str) -> OccupancyField[int]:
    """A count or size; NVML's mark for "not available" becomes unknown."""
    if number in _NOT_AVAILABLE or number < 0:
        return OccupancyField.unknown(f"{source}: the device does not fill this field")
    return OccupancyField(value=int(number), reason=source)


def positive_field(number: float, source: str, *, per_unit: float = 1.0) -> OccupancyField[float]:
    """A quantity that a running device cannot have 0 of, such as a clock or its power draw.

    Args:
        number: as reported.
        source: where it comes from.
        per_unit: how much of what is reported makes one of the field's unit.
    """
    if number in _NOT_AVAILABLE or not math.isfinite(number) or number <= 0:
        return OccupancyField.unknown(f"{source}: reported as {number:g}, which means not available")
    return OccupancyField(value=number / per_unit, reason=source)


def percent_field(number: float, source: str) -> OccupancyField[float]:
    """A share in percent; what lies outside 0 to 100 is unknown."""
    if not 0.0 <= number <= 100.0:  # a NaN is in no interval
        return OccupancyField.unknown(f"{source}: reported as {number:g}, which is no percentage")
    return OccupancyField(value=float(number), reason=source)
