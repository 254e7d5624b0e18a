"""What one look at a device found.

Owns `Occupancy` and its one line for people. Knows nothing of NVML.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from scheduler.occupancy.field import OccupancyField


@dataclass(frozen=True, kw_only=True)
class Occupancy:
    """A device at one moment; each field is a value or the reason why there is none."""

    taken_at_s: float
    """On the probe's clock, `time.monotonic` unless it was given another."""
    own_idle_s: float | None
    """How long this process had had no work on the device when the reading was asked for; None while it has."""
    device_name: OccupancyField[str]
    device_uuid: OccupancyField[str]
    """`GPU-...`, or `MIG-...` for an instance of a partitioned device."""
    memory_total_bytes: OccupancyField[int]
    """Of the device, or of the MIG instance."""
    memory_free_bytes: OccupancyField[int]
    memory_used_bytes: OccupancyField[int]
    """By everyone, this process and the driver included."""
    num_other_processes: OccupancyField[int]
    """Processes with work of any kind on the device, without this one and its descendants."""
    memory_other_bytes: OccupancyField[int]
    """Used by these other processes together."""
    other_sm_percent: OccupancyField[float]
    """Share of the last second or so in which kernels of these other processes ran."""
    gpu_percent: OccupancyField[float]
    """Share of the last second or less in which any kernel ran, whoever launched it."""
    memory_percent: OccupancyField[float]
    """Share of the same time in which device memory was read or written."""
    power_w: OccupancyField[float]
    temperature_celsius: OccupancyField[int]
    sm_clock_mhz: OccupancyField[float]
    memory_clock_mhz: OccupancyField[float]
    sm_active_percent: OccupancyField[float]
    """Hopper and newer: multiprocessors that were busy, averaged since the previous reading."""
    sm_occupancy_percent: OccupancyField[float]
    """Hopper and newer: warps that were resident, of the most possible, averaged likewise."""
    dram_bandwidth_percent: OccupancyField[float]
    """Hopper and newer: memory bandwidth that was used, of the theoretical, averaged likewise."""
    counter_interval_s: OccupancyField[float]
    """Over how long the three fields above are averaged."""

    @classmethod
    def unknown(cls, reason: str, *, taken_at_s: float, own_idle_s: float | None = None) -> Occupancy:
        """A reading without any value."""
        unknown: dict[str, Any] = {
            field.name: OccupancyField.unknown(reason) for field in fields(cls) if field.name not in _PLAIN
        }
        return cls(taken_at_s=taken_at_s, own_idle_s=own_idle_s, **unknown)

    def measured(self) -> dict[str, OccupancyField[int] | OccupancyField[float] | OccupancyField[str]]:
        """The fields that a device gives, by name."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name not in _PLAIN}

    def describe(self) -> str:
        """One line for people; unknown figures are left out."""
        measures = [
            _memory_in_words(self),
            _with_unit(self.gpu_percent, "% busy"),
            _others_in_words(self),
            _with_unit(self.sm_occupancy_percent, "% of warps resident"),
            _with_unit(self.dram_bandwidth_percent, "% of memory bandwidth"),
            _with_unit(self.power_w, "W"),
            _with_unit(self.temperature_celsius, "°C"),
        ]
        words = ", ".join(measure for measure in measures if measure)
        name = self.device_name.value or "device"
        if not any(field.known for field in self.measured().values()):
            return f"{name}: occupancy unknown ({self.memory_free_bytes.reason})"
        return f"{name}: {words}"


_PLAIN = frozenset({"taken_at_s", "own_idle_s"})
_GIBIBYTE = 1 << 30


def _with_unit(field: OccupancyField[int] | OccupancyField[float], unit: str) -> str:
    return "" if field.value is None else f"{field.value:.0f} {unit}"


def _memory_in_words(occupancy: Occupancy) -> str:
    free, total = occupancy.memory_free_bytes.value, occupancy.memory_total_bytes.value
    if free is None or total is None:
        return ""
    return f"{free / _GIBIBYTE:.1f} of {total / _GIBIBYTE:.1f} GiB free"


def _others_in_words(occupancy: Occupancy) -> str:
    number = occupancy.num_other_processes.value
    if number is None:
        return "other processes unknown"
    if number == 0:
        return "no other process"
    memory = occupancy.memory_other_bytes.value
    words = f"{number} other process{'es' if number > 1 else ''}"
    return words if memory is None else f"{words} with {memory / _GIBIBYTE:.1f} GiB"
