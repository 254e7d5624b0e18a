"""A stand-in for the module `pynvml` at its boundary: NVIDIA's own names, structures and errors, made-up devices.

Everything that is not a function (constants, error classes, C structures) is the installed module's own. The
functions keep its names and parameters (tests/scheduler/test_occupancy_fake.py compares them), answer for `FakeGpu`s,
and note misuse that a real driver might punish with a crash in `FakeNvml.misuse`.
"""

from __future__ import annotations

import ctypes
import functools
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import pynvml

GIBIBYTE = 1 << 30


@dataclass(kw_only=True)
class FakeProcess:
    """A process in one of a device's lists."""

    pid: int
    usedGpuMemory: int | None = GIBIBYTE  # NVML's name


@dataclass(kw_only=True)
class FakeSample:
    """How much of a device's time a process had."""

    pid: int
    sm_percent: int
    age_s: float = 0.2


@dataclass(kw_only=True)
class FakeGpu:
    """A device, or an instance of a partitioned one; None means that the driver does not support the question."""

    uuid: str = "GPU-11111111-aaaa-bbbb-cccc-000000000001"
    name: str = "NVIDIA H200"
    total_bytes: int | None = 141 * GIBIBYTE
    free_bytes: int = 100 * GIBIBYTE
    gpu_percent: int | None = 37
    memory_percent: int = 21
    compute: list[FakeProcess] | None = field(default_factory=list)
    graphics: list[FakeProcess] | None = field(default_factory=list)
    mps: list[FakeProcess] | None = field(default_factory=list)
    samples: list[FakeSample] | None = field(default_factory=list)
    power_milliwatts: int | None = 345_000
    temperature: int | None = 54
    clocks_mhz: dict[int, int] | None = field(default_factory=lambda: {1: 1980, 2: 3201})
    counters: dict[int, float] | None = field(default_factory=lambda: {2: 61.5, 3: 23.25, 10: 47.75})
    counter_errors: dict[int, int] = field(default_factory=dict)
    instances: list[FakeGpu] | None = None
    """Not None: the device is partitioned (MIG)."""
    instance_id: int | None = None
    """Not None: this is such an instance."""
    lost: bool = False


@dataclass(frozen=True)
class FakeHandle:
    """What NVML gives for a device; worthless after NVML was stopped."""

    gpu: FakeGpu
    start: int

    def __hash__(self) -> int:
        return hash((id(self.gpu), self.start))


class FakeNvml(ModuleType):
    """The module; put it into `sys.modules["pynvml"]`."""

    def __init__(self, gpus: Sequence[FakeGpu], *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__("pynvml")
        for name, value in vars(pynvml).items():
            if not name.startswith(("nvml", "__")):
                setattr(self, name, value)
        self.gpus = list(gpus)
        self.clock = clock
        self.failures: dict[str, int | Exception] = {}
        """By function: the error code, or another exception, that it ends with."""
        self.delay_s = 0.0
        """How long each call blocks, as a busy driver's do."""
        self.comes_back = True
        """Whether a lost device is there again after NVML was stopped and started."""
        self.empty_samples_code = 6
        """How the driver says that no process has a sample: NVML_ERROR_NOT_FOUND, or 0 and an empty list."""
        self.calls: list[str] = []
        self.threads: set[int] = set()
        """Identifiers of the threads that called."""
        self.misuse: list[str] = []
        self.spacings_s: list[float] = []
        """Times between the two samples of each question about counters."""
        self.num_users = 0
        self.num_starts = 0
        self._samples: dict[int, tuple[FakeGpu, float]] = {}
        for name in dir(type(self)):
            if name.startswith("nvml"):
                setattr(self, name, self._watched(name, getattr(self, name)))

    def lose(self, gpu: FakeGpu) -> None:
        """The device falls off the bus; until NVML is started anew every call on it says so."""
        gpu.lost = True

    @property
    def num_open_samples(self) -> int:
        """Samples that were allocated and not freed."""
        return len(self._samples)

    def nvmlInit(self) -> None:
        self.num_users += 1
        if self.num_users == 1:
            self.num_starts += 1
            for gpu in self.gpus:
                gpu.lost = gpu.lost and not self.comes_back

    def nvmlShutdown(self) -> None:
        if self._samples:
            self.misuse.append("NVML was stopped with samples open")
        self.num_users -= 1

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeHandle:
        if not 0 <= index < len(self.gpus):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return self._handle(self.gpus[index])

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> FakeHandle:
        for gpu in [*self.gpus, *(instance for parent in self.gpus for instance in parent.instances or [])]:
            if gpu.uuid == uuid:
                return self._handle(gpu)
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)

    def nvmlDeviceGetName(self, handle: FakeHandle) -> str:
        return self._gpu(handle).name

    def nvmlDeviceGetUUID(self, handle: FakeHandle) -> str:
        return self._gpu(handle).uuid

    def nvmlDeviceGetMemoryInfo(self, handle: FakeHandle, version: int | None = None) -> Any:
        gpu = self._gpu(handle)
        total = _supported(gpu.total_bytes)
        return pynvml.c_nvmlMemory_t(total=total, free=gpu.free_bytes, used=(total - gpu.free_bytes) % 2**64)

    def nvmlDeviceGetUtilizationRates(self, handle: FakeHandle) -> Any:
        gpu = self._gpu(handle)
        return pynvml.c_nvmlUtilization_t(gpu=_supported(gpu.gpu_percent), memory=gpu.memory_percent)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: FakeHandle) -> list[FakeProcess]:
        return list(_supported(self._gpu(handle).compute))

    def nvmlDeviceGetGraphicsRunningProcesses(self, handle: FakeHandle) -> list[FakeProcess]:
        return list(_supported(self._gpu(handle).graphics))

    def nvmlDeviceGetMPSComputeRunningProcesses(self, handle: FakeHandle) -> list[FakeProcess]:
        return list(_supported(self._gpu(handle).mps))

    def nvmlDeviceGetProcessUtilization(self, handle: FakeHandle, timeStamp: int) -> list[Any]:
        now_us = time.time_ns() // 1000
        samples = [
            pynvml.c_nvmlProcessUtilizationSample_t(
                pid=sample.pid, timeStamp=now_us - int(sample.age_s * 1e6), smUtil=sample.sm_percent
            )
            for sample in _supported(self._gpu(handle).samples)
        ]
        recent = [sample for sample in samples if sample.timeStamp > timeStamp]
        if not recent:
            raise pynvml.NVMLError(self.empty_samples_code)
        return recent

    def nvmlDeviceGetPowerUsage(self, handle: FakeHandle) -> int:
        return int(_supported(self._gpu(handle).power_milliwatts))

    def nvmlDeviceGetTemperature(self, handle: FakeHandle, sensor: int) -> int:
        return int(_supported(self._gpu(handle).temperature))

    def nvmlDeviceGetClockInfo(self, handle: FakeHandle, type: int) -> int:
        return int(_supported(self._gpu(handle).clocks_mhz)[type])

    def nvmlDeviceIsMigDeviceHandle(self, device: FakeHandle) -> ctypes.c_uint:
        return ctypes.c_uint(self._gpu(device).instance_id is not None)  # the installed module gives the C integer

    def nvmlDeviceGetMigMode(self, device: FakeHandle) -> list[int]:
        partitioned = int(self._gpu(device).instances is not None)
        return [partitioned, partitioned]

    def nvmlDeviceGetMaxMigDeviceCount(self, device: FakeHandle) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, device: FakeHandle, index: int) -> FakeHandle:
        instances = self._gpu(device).instances or []
        if not 1 <= index <= len(instances):  # the first place is empty here
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return self._handle(instances[index - 1])

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, migDevice: FakeHandle) -> FakeHandle:
        instance = self._gpu(migDevice)
        return self._handle(next(gpu for gpu in self.gpus if instance in (gpu.instances or [])))

    def nvmlDeviceGetGpuInstanceId(self, device: FakeHandle) -> int:
        return int(_supported(self._gpu(device).instance_id))

    def nvmlGpmQueryDeviceSupport(self, device: FakeHandle) -> Any:
        return pynvml.c_nvmlGpmSupport_t(version=1, isSupportedDevice=self._gpu(device).counters is not None)

    def nvmlGpmSampleAlloc(self) -> Any:
        address = 4096 * (len(self.calls) + 1)
        self._samples[address] = (FakeGpu(), float("nan"))
        return ctypes.cast(address, pynvml.c_nvmlGpmSample_t)

    def nvmlGpmSampleFree(self, gpmSample: Any) -> None:
        if self._samples.pop(_address(gpmSample), None) is None:
            self.misuse.append("a sample was freed twice")

    def nvmlGpmSampleGet(self, device: FakeHandle, gpmSample: Any) -> Any:
        gpu = self._gpu(device)
        if gpu.instances is not None or gpu.instance_id is not None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        self._samples[_address(gpmSample)] = (gpu, self.clock())
        return gpmSample

    def nvmlGpmMigSampleGet(self, device: FakeHandle, gpuInstanceId: int, gpmSample: Any) -> Any:
        for instance in self._gpu(device).instances or []:
            if instance.instance_id == gpuInstanceId:
                self._samples[_address(gpmSample)] = (instance, self.clock())
                return gpmSample
        raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)

    def nvmlGpmMetricsGet(self, metricsGet: Any) -> Any:
        if metricsGet.version != pynvml.NVML_GPM_METRICS_GET_VERSION:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH)
        pair = [self._samples.get(_address(sample)) for sample in (metricsGet.sample1, metricsGet.sample2)]
        if pair[0] is None or pair[1] is None or pair[0][0] is not pair[1][0]:
            self.misuse.append("counters were asked for without two samples of one device")
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        gpu = pair[0][0]
        self.spacings_s.append(pair[1][1] - pair[0][1])
        for metric in metricsGet.metrics[: metricsGet.numMetrics]:
            metric.nvmlReturn = gpu.counter_errors.get(metric.metricId, 0)
            metric.value = 0.0 if metric.nvmlReturn else _supported(gpu.counters)[metric.metricId]
        return metricsGet

    def _handle(self, gpu: FakeGpu) -> FakeHandle:
        if gpu.lost:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return FakeHandle(gpu, self.num_starts)

    def _gpu(self, handle: FakeHandle) -> FakeGpu:
        if handle.start != self.num_starts:
            self.misuse.append("a handle outlived NVML")
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        if handle.gpu.lost:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return handle.gpu

    def _watched(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*arguments: Any) -> Any:
            self.calls.append(name)
            self.threads.add(threading.get_ident())
            if self.delay_s:
                time.sleep(self.delay_s)
            failure = self.failures.get(name)
            if isinstance(failure, Exception):
                raise failure
            if failure is not None:
                raise _binding_error(name, failure)
            if self.num_users == 0 and name != "nvmlInit":
                raise pynvml.NVMLError(pynvml.NVML_ERROR_UNINITIALIZED)
            return function(*arguments)

        return call


_UNVERSIONED = frozenset(
    {
        "nvmlDeviceGetComputeRunningProcesses",
        "nvmlDeviceGetGraphicsRunningProcesses",
        "nvmlDeviceGetMPSComputeRunningProcesses",
    }
)


def _binding_error(name: str, code: int) -> Exception:
    """The exception that the installed module raises for a driver's code."""
    if name in _UNVERSIONED and code == pynvml.NVML_ERROR_FUNCTION_NOT_FOUND:
        error: Exception = pynvml.NVMLLibraryMismatchError("pyNVML version does not match the NVML lib version")
    else:
        error = pynvml.NVMLError(code)
    return error


def _supported(value: Any) -> Any:
    if value is None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
    return value


def _address(sample: Any) -> int:
    return ctypes.cast(sample, ctypes.c_void_p).value or 0
