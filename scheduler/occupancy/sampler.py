"""One reading of one device, field by field.

Owns which NVML call fills which field, and that one failing call leaves the others. Knows nothing of polling.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from scheduler.occupancy.counters import CounterReading, HardwareCounters
from scheduler.occupancy.field import OccupancyField, count_field, percent_field, positive_field
from scheduler.occupancy.nvml_library import breaks_connection, error_code, error_words
from scheduler.occupancy.processes import OtherProcesses, list_other_processes, other_sm_percent
from scheduler.occupancy.reading import Occupancy
from scheduler.occupancy.visible_device import DeviceHandles

Result = TypeVar("Result")

_NOT_SUPPORTED = 3


class DeviceSampler:
    """Reads one device; lives as long as one connection to NVML."""

    def __init__(
        self, nvml: Any, handles: DeviceHandles, *, clock: Callable[[], float], sleep: Callable[[float], None]
    ) -> None:
        """Read nothing yet.

        Args:
            nvml: the started `pynvml` module.
            handles: the device.
            clock: seconds.
            sleep: waits that many seconds.
        """
        self._nvml = nvml
        self._handles = handles
        self._clock = clock
        self._counters = HardwareCounters(nvml, handles, clock=clock, sleep=sleep)
        self.broken: str | None = None
        """Why NVML has to be started anew; None while it works."""

    def read(self, *, own_idle_s: float | None) -> Occupancy:
        """One reading; never raises.

        Args:
            own_idle_s: handed on into the reading.
        """
        nvml, device, parent = self._nvml, self._handles.device, self._handles.parent
        taken_at_s = self._clock()
        # First, as it speaks of the time just before: work that begins during the reading is not in it.
        utilization, unknown = self._attempt(
            "utilisation",
            lambda: nvml.nvmlDeviceGetUtilizationRates(device),
            "a MIG instance has none of its own" if self._handles.is_mig else "",
        )
        memory, no_memory = self._attempt("memory", lambda: nvml.nvmlDeviceGetMemoryInfo(device))
        others, no_others = self._attempt("process lists", lambda: list_other_processes(nvml, device))
        others = others or OtherProcesses(
            number=OccupancyField.unknown(no_others), memory_bytes=OccupancyField.unknown(no_others)
        )
        # A partitioned device's instances have no shares by process; the whole device's would be of all instances.
        share = self._field("shares by process", lambda: other_sm_percent(nvml, device))
        whole = " of the whole device" if self._handles.is_mig else ""
        power_w = self._field(
            "power",
            lambda: positive_field(nvml.nvmlDeviceGetPowerUsage(parent), f"power{whole}", per_unit=1000),
        )
        temperature = self._field(
            "temperature",
            lambda: count_field(
                nvml.nvmlDeviceGetTemperature(parent, nvml.NVML_TEMPERATURE_GPU), f"temperature{whole}"
            ),
        )
        counters, no_counters = self._attempt("performance counters (GPM)", self._counters.read)
        counters = counters or CounterReading.unknown(no_counters)
        return Occupancy(
            taken_at_s=taken_at_s,
            own_idle_s=own_idle_s,
            device_name=self._text("name", nvml.nvmlDeviceGetName),
            device_uuid=self._text("UUID", nvml.nvmlDeviceGetUUID),
            memory_total_bytes=_memory_field(memory, "total", no_memory),
            memory_free_bytes=_memory_field(memory, "free", no_memory),
            memory_used_bytes=_memory_field(memory, "used", no_memory),
            num_other_processes=others.number,
            memory_other_bytes=others.memory_bytes,
            other_sm_percent=share,
            gpu_percent=_percent_of(utilization, "gpu", unknown),
            memory_percent=_percent_of(utilization, "memory", unknown),
            power_w=power_w,
            temperature_celsius=temperature,
            sm_clock_mhz=self._clock_rate("SM clock", "NVML_CLOCK_SM", whole),
            memory_clock_mhz=self._clock_rate("memory clock", "NVML_CLOCK_MEM", whole),
            sm_active_percent=counters.sm_active_percent,
            sm_occupancy_percent=counters.sm_occupancy_percent,
            dram_bandwidth_percent=counters.dram_bandwidth_percent,
            counter_interval_s=counters.interval_s,
        )

    def close(self) -> None:
        """Give back what NVML holds for this sampler; never raises."""
        self._attempt("sample", self._counters.free)

    def _attempt(self, what: str, call: Callable[[], Result], unsupported: str = "") -> tuple[Result | None, str]:
        """The call's result, or None and why."""
        try:
            return call(), what
        except Exception as error:  # whatever a foreign library does, a request must not end for a field of it
            words = error_words(error)
            if breaks_connection(error):
                self.broken = words
            if unsupported and error_code(error) == _NOT_SUPPORTED:
                words += f"; {unsupported}"
            return None, f"{what}: {words}"

    def _field(self, what: str, call: Callable[[], OccupancyField[Any]]) -> OccupancyField[Any]:
        field, reason = self._attempt(what, call)
        return OccupancyField.unknown(reason) if field is None else field

    def _text(self, what: str, function: Callable[[Any], str]) -> OccupancyField[str]:
        text, reason = self._attempt(what, lambda: str(function(self._handles.device)))
        return OccupancyField(value=text or None, reason=reason)

    def _clock_rate(self, what: str, constant: str, whole: str) -> OccupancyField[float]:
        nvml, parent = self._nvml, self._handles.parent
        return self._field(
            what,
            lambda: positive_field(nvml.nvmlDeviceGetClockInfo(parent, getattr(nvml, constant)), f"{what}{whole}"),
        )


def _memory_field(memory: Any, part: str, reason: str) -> OccupancyField[int]:
    if memory is None:
        return OccupancyField.unknown(reason)
    if not memory.total:
        return OccupancyField.unknown("memory: the device reports a size of 0, which means not available")
    field = count_field(getattr(memory, part), f"NVML's {part} device memory")
    if field.value is not None and field.value > memory.total:
        return OccupancyField.unknown(f"{field.reason}: reported as more than the device has")
    return field


def _percent_of(utilization: Any, part: str, reason: str) -> OccupancyField[float]:
    if utilization is None:
        return OccupancyField.unknown(reason)
    return percent_field(getattr(utilization, part), "NVML's utilisation")
