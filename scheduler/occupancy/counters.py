"""The hardware counters of Hopper and newer devices (NVML's GPU performance monitoring, GPM).

Owns the pair of samples between which they are averaged. Knows nothing of other fields.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from scheduler.occupancy.field import OccupancyField, percent_field, positive_field
from scheduler.occupancy.nvml_library import error_words
from scheduler.occupancy.visible_device import DeviceHandles

MIN_SPACING_S = 0.1
"""NVML asks for at least 100 ms between the two samples."""

_MAX_SPACING_S = 2.0
"""An average over more than this says little about now: a fresh pair is taken."""

_SOURCE = "performance counters (GPM)"


@dataclass(frozen=True, kw_only=True)
class CounterReading:
    """Averages between two samples."""

    sm_active_percent: OccupancyField[float]
    sm_occupancy_percent: OccupancyField[float]
    dram_bandwidth_percent: OccupancyField[float]
    interval_s: OccupancyField[float]

    @classmethod
    def unknown(cls, reason: str) -> CounterReading:
        """No value, and why."""
        unknown: OccupancyField[float] = OccupancyField.unknown(reason)
        return cls(
            sm_active_percent=unknown, sm_occupancy_percent=unknown, dram_bandwidth_percent=unknown, interval_s=unknown
        )


class HardwareCounters:
    """Reads the counters of one device; keeps the last sample as the beginning of the next average."""

    def __init__(
        self, nvml: Any, handles: DeviceHandles, *, clock: Callable[[], float], sleep: Callable[[float], None]
    ) -> None:
        """Nothing is sampled yet.

        Args:
            nvml: the started `pynvml` module.
            handles: the device.
            clock: seconds.
            sleep: waits that many seconds.
        """
        self._nvml = nvml
        self._handles = handles
        self._clock = clock
        self._sleep = sleep
        self._last: Any = None
        self._last_at_s = 0.0

    def read(self) -> CounterReading:
        """Averages since the last reading; the first reading, and one after a long pause, waits 100 ms for a pair.

        Raises:
            NVMLError: if the device refuses a sample.
        """
        if not self._nvml.nvmlGpmQueryDeviceSupport(self._handles.parent).isSupportedDevice:
            return CounterReading.unknown(f"{_SOURCE}: the device has none; Hopper and newer do")
        try:
            if self._last is None or self._clock() - self._last_at_s > _MAX_SPACING_S:
                self._keep(self._sample())
            missing_s = self._last_at_s + MIN_SPACING_S - self._clock()
            if missing_s > 0:
                self._sleep(missing_s)
            sample = self._sample()
        except Exception:
            self.free()
            raise
        interval_s = self._clock() - self._last_at_s
        try:
            return self._averages(sample, interval_s)
        finally:
            self._keep(sample)

    def free(self) -> None:
        """Give the kept sample back to NVML; the next reading begins anew."""
        last, self._last = self._last, None
        if last is not None:
            self._nvml.nvmlGpmSampleFree(last)

    def _keep(self, sample: Any) -> None:
        last, self._last, self._last_at_s = self._last, sample, self._clock()
        if last is not None:
            self._nvml.nvmlGpmSampleFree(last)

    def _sample(self) -> Any:
        nvml, handles = self._nvml, self._handles
        sample = nvml.nvmlGpmSampleAlloc()
        try:
            if handles.is_mig:
                instance = nvml.nvmlDeviceGetGpuInstanceId(handles.device)
                nvml.nvmlGpmMigSampleGet(handles.parent, instance, sample)
            else:
                nvml.nvmlGpmSampleGet(handles.device, sample)
        except Exception:
            nvml.nvmlGpmSampleFree(sample)
            raise
        return sample

    def _averages(self, sample: Any, interval_s: float) -> CounterReading:
        nvml = self._nvml
        request = nvml.c_nvmlGpmMetricsGet_t()
        request.version = nvml.NVML_GPM_METRICS_GET_VERSION
        wanted = (
            nvml.NVML_GPM_METRIC_SM_UTIL,
            nvml.NVML_GPM_METRIC_SM_OCCUPANCY,
            nvml.NVML_GPM_METRIC_DRAM_BW_UTIL,
        )
        request.numMetrics = len(wanted)
        request.sample1, request.sample2 = self._last, sample
        for index, metric in enumerate(wanted):
            request.metrics[index].metricId = metric
        nvml.nvmlGpmMetricsGet(request)
        active, occupancy, bandwidth = (self._percent(request.metrics[index]) for index in range(len(wanted)))
        return CounterReading(
            sm_active_percent=active,
            sm_occupancy_percent=occupancy,
            dram_bandwidth_percent=bandwidth,
            interval_s=positive_field(interval_s, "between the two samples"),
        )

    def _percent(self, metric: Any) -> OccupancyField[float]:
        if metric.nvmlReturn != self._nvml.NVML_SUCCESS:  # each metric has a verdict of its own
            return OccupancyField.unknown(f"{_SOURCE}: {error_words(self._nvml.NVMLError(metric.nvmlReturn))}")
        return percent_field(metric.value, _SOURCE)
