"""What a reading says, and that a field that cannot be read is unknown: never 0, and never at the cost of others."""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pynvml
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduler import Occupancy
from tests.support.fake_machine import OWN_CHILD, PAINTER, STRANGER, FakeMachine, busy_gpu, fake_machine
from tests.support.fake_nvml import FakeGpu, FakeNvml, FakeProcess, FakeSample

ERROR_CODES = sorted(
    {value for name, value in vars(pynvml).items() if name.startswith("NVML_ERROR_") and isinstance(value, int)}
)
COUNTERS = {"sm_active_percent", "sm_occupancy_percent", "dram_bandwidth_percent", "counter_interval_s"}
PROCESSES = {"num_other_processes", "memory_other_bytes"}
FIELDS_OF: dict[str, set[str]] = {
    "nvmlDeviceGetName": {"device_name"},
    "nvmlDeviceGetUUID": {"device_uuid"},
    "nvmlDeviceGetMemoryInfo": {"memory_total_bytes", "memory_free_bytes", "memory_used_bytes"},
    "nvmlDeviceGetUtilizationRates": {"gpu_percent", "memory_percent"},
    "nvmlDeviceGetComputeRunningProcesses": PROCESSES,
    "nvmlDeviceGetGraphicsRunningProcesses": PROCESSES,
    "nvmlDeviceGetMPSComputeRunningProcesses": PROCESSES,
    "nvmlDeviceGetProcessUtilization": {"other_sm_percent"},
    "nvmlDeviceGetPowerUsage": {"power_w"},
    "nvmlDeviceGetTemperature": {"temperature_celsius"},
    "nvmlDeviceGetClockInfo": {"sm_clock_mhz", "memory_clock_mhz"},
    "nvmlGpmQueryDeviceSupport": COUNTERS,
    "nvmlGpmSampleAlloc": COUNTERS,
    "nvmlGpmSampleGet": COUNTERS,
    "nvmlGpmMetricsGet": COUNTERS,
}
OPENING = {"nvmlInit", "nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex"}
OPTIONAL_LISTS = {"nvmlDeviceGetGraphicsRunningProcesses", "nvmlDeviceGetMPSComputeRunningProcesses"}


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeMachine]:
    with fake_machine(monkeypatch, tmp_path) as machine:
        yield machine


def reading_of(machine: FakeMachine, gpu: FakeGpu) -> Occupancy:
    machine.plug([gpu])
    return machine.open_probe().read()


def unknown_fields(occupancy: Occupancy) -> set[str]:
    return {name for name, field in occupancy.measured().items() if not field.known}


def assert_honest(occupancy: Occupancy) -> None:
    """On a device where nothing is 0, a 0 is a lie; whatever is unknown has a reason."""
    for name, field in occupancy.measured().items():
        assert field.value is None or field.value, f"{name} is {field.value!r}"
        assert field.reason, name


def test_the_fake_has_the_names_and_parameters_of_the_installed_module() -> None:
    names = [name for name in dir(FakeNvml) if name.startswith("nvml")]
    assert len(names) > 20
    for name in names:
        fake = list(inspect.signature(getattr(FakeNvml, name)).parameters)[1:]
        assert fake == list(inspect.signature(getattr(pynvml, name)).parameters), name


def test_every_field_of_a_busy_hopper(machine: FakeMachine) -> None:
    occupancy = reading_of(machine, busy_gpu())
    assert {name: field.value for name, field in occupancy.measured().items()} == {
        "device_name": "NVIDIA H200",
        "device_uuid": "GPU-11111111-aaaa-bbbb-cccc-000000000001",
        "memory_total_bytes": 141 << 30,
        "memory_free_bytes": 100 << 30,
        "memory_used_bytes": 41 << 30,
        "num_other_processes": 2,
        "memory_other_bytes": 3 << 30,
        "other_sm_percent": 28.0,
        "gpu_percent": 37.0,
        "memory_percent": 21.0,
        "power_w": 345.0,
        "temperature_celsius": 54,
        "sm_clock_mhz": 1980.0,
        "memory_clock_mhz": 3201.0,
        "sm_active_percent": 61.5,
        "sm_occupancy_percent": 23.25,
        "dram_bandwidth_percent": 47.75,
        "counter_interval_s": pytest.approx(0.1),
    }
    words = occupancy.describe()
    assert words.startswith("NVIDIA H200: 100.0 of 141.0 GiB free, 37 % busy, 2 other processes with 3.0 GiB")


@pytest.mark.parametrize("function", sorted(FIELDS_OF))
def test_a_failing_call_costs_its_own_fields_only_and_none_becomes_0(machine: FakeMachine, function: str) -> None:
    nvml = machine.plug([busy_gpu()])
    for code in ERROR_CODES:
        nvml.failures.clear()
        probe = machine.open_probe()
        nvml.failures[function] = code
        occupancy = probe.read()
        assert_honest(occupancy)
        none_of_the_kind = function in OPTIONAL_LISTS and code == pynvml.NVML_ERROR_NOT_SUPPORTED
        assert unknown_fields(occupancy) == (set() if none_of_the_kind else FIELDS_OF[function]), code
        probe.close()
    assert len(ERROR_CODES) > 25


@pytest.mark.parametrize("function", sorted(OPENING))
def test_a_failure_to_open_makes_everything_unknown_with_that_reason(machine: FakeMachine, function: str) -> None:
    nvml = machine.plug([busy_gpu()])
    for code in ERROR_CODES:
        nvml.failures[function] = code
        probe = machine.open_probe()
        occupancy = probe.read()
        assert_honest(occupancy)
        assert unknown_fields(occupancy) == set(occupancy.measured())
        assert not probe.available
        assert probe.reason
        assert {field.reason for field in occupancy.measured().values()} == {probe.reason}
        probe.close()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    failures=st.dictionaries(st.sampled_from(sorted(FIELDS_OF)), st.sampled_from(ERROR_CODES)),
    unsupported=st.sets(st.sampled_from(["gpu_percent", "compute", "samples", "power_milliwatts", "total_bytes"])),
    counter_errors=st.dictionaries(st.sampled_from([2, 3, 10]), st.sampled_from(ERROR_CODES)),
)
def test_any_set_of_failures_leaves_an_honest_reading(
    machine: FakeMachine, failures: dict[str, int], unsupported: set[str], counter_errors: dict[int, int]
) -> None:
    nvml = machine.plug([busy_gpu(counter_errors=counter_errors, **dict.fromkeys(unsupported))])
    nvml.failures.clear()
    with machine.open_probe() as probe:
        nvml.failures.update(failures)
        for _ in range(2):  # the second averages over the first one's sample
            assert_honest(probe.read())
            machine.clock.sleep(1.0)
    nvml.failures.clear()


@pytest.mark.parametrize(
    ("changes", "unknown"),
    [
        ({"free_bytes": 2**64 - 1}, {"memory_free_bytes", "memory_used_bytes"}),
        ({"total_bytes": 2**64 - 1}, {"memory_total_bytes"}),
        ({"total_bytes": 0}, {"memory_total_bytes", "memory_free_bytes", "memory_used_bytes"}),
        ({"gpu_percent": 2**32 - 1}, {"gpu_percent"}),
        ({"memory_percent": 101}, {"memory_percent"}),
        ({"power_milliwatts": 0}, {"power_w"}),
        ({"power_milliwatts": 2**32 - 1}, {"power_w"}),
        ({"temperature": 2**32 - 1}, {"temperature_celsius"}),
        ({"clocks_mhz": {1: 0, 2: 2**32 - 1}}, {"sm_clock_mhz", "memory_clock_mhz"}),
        ({"counters": {2: math.nan, 3: -1.0, 10: 100.5}}, COUNTERS - {"counter_interval_s"}),
        ({"counter_errors": {3: pynvml.NVML_ERROR_NOT_SUPPORTED}}, {"sm_occupancy_percent"}),
        ({"samples": [FakeSample(pid=STRANGER, sm_percent=2**32 - 1)]}, {"other_sm_percent"}),
        ({"samples": []}, {"other_sm_percent"}),
        ({"samples": [FakeSample(pid=STRANGER, sm_percent=70, age_s=60)]}, {"other_sm_percent"}),
        ({"graphics": [FakeProcess(pid=PAINTER, usedGpuMemory=None)]}, {"memory_other_bytes"}),
    ],
)
def test_a_value_that_means_not_available_is_unknown(
    machine: FakeMachine, changes: dict[str, Any], unknown: set[str]
) -> None:
    occupancy = reading_of(machine, busy_gpu(**changes))
    assert unknown_fields(occupancy) == unknown
    assert_honest(occupancy)


def test_an_empty_list_that_the_binding_reports_as_an_error_named_success_is_no_failure(machine: FakeMachine) -> None:
    machine.nvml.empty_samples_code = pynvml.NVML_SUCCESS
    occupancy = reading_of(machine, busy_gpu(samples=[]))
    assert "no sample" in occupancy.other_sm_percent.reason


def test_a_true_zero_is_a_value(machine: FakeMachine) -> None:
    own = FakeProcess(pid=os.getpid())
    occupancy = reading_of(
        machine,
        busy_gpu(compute=[own], graphics=[], gpu_percent=0, samples=[FakeSample(pid=os.getpid(), sm_percent=90)]),
    )
    assert occupancy.num_other_processes.value == 0
    assert occupancy.memory_other_bytes.value == 0
    assert occupancy.other_sm_percent.value == 0.0
    assert occupancy.gpu_percent.value == 0.0
    assert "no other process" in occupancy.describe()


def test_descendants_are_not_others(machine: FakeMachine) -> None:
    occupancy = reading_of(machine, busy_gpu(compute=[FakeProcess(pid=OWN_CHILD)], graphics=[]))
    assert occupancy.num_other_processes.value == 0


def test_clients_of_a_shared_context_server_count(machine: FakeMachine) -> None:
    occupancy = reading_of(machine, busy_gpu(compute=[], graphics=[], mps=[FakeProcess(pid=STRANGER)]))
    assert occupancy.num_other_processes.value == 1


def test_a_container_does_not_claim_that_nobody_else_is_there(machine: FakeMachine) -> None:
    machine.put_into_namespace("pid:[4026532999]")
    own = FakeProcess(pid=os.getpid())
    gpu = busy_gpu(compute=[own], graphics=[], samples=[FakeSample(pid=os.getpid(), sm_percent=5)])
    occupancy = reading_of(machine, gpu)
    assert unknown_fields(occupancy) == {*PROCESSES, "other_sm_percent"}
    assert "container" in occupancy.num_other_processes.reason
    assert "other processes unknown" in occupancy.describe()


def test_a_container_that_lists_foreign_numbers_does_not_count_itself(machine: FakeMachine) -> None:
    machine.put_into_namespace("pid:[4026532999]")
    occupancy = reading_of(machine, busy_gpu(compute=[FakeProcess(pid=424_242)], graphics=[]))
    assert occupancy.num_other_processes.value is None


def test_a_container_that_sees_itself_and_others_counts_at_least_these(machine: FakeMachine) -> None:
    machine.put_into_namespace("pid:[4026532999]")
    occupancy = reading_of(machine, busy_gpu())
    assert occupancy.num_other_processes.value == 2
    assert "at least" in occupancy.num_other_processes.reason


def test_the_subsystem_for_linux_names_itself_where_fields_are_missing(machine: FakeMachine) -> None:
    machine.set_kernel("5.15.153.1-microsoft-standard-WSL2")
    occupancy = reading_of(machine, busy_gpu(compute=None, graphics=None, mps=None, samples=None, counters=None))
    assert unknown_fields(occupancy) == {*PROCESSES, "other_sm_percent", *COUNTERS}
    assert "Windows Subsystem for Linux" in occupancy.num_other_processes.reason
    assert "Windows Subsystem for Linux" in occupancy.other_sm_percent.reason
    assert occupancy.memory_free_bytes.value == 100 << 30


def test_the_subsystem_for_linux_does_not_claim_that_windows_is_idle(machine: FakeMachine) -> None:
    machine.set_kernel("5.15.153.1-microsoft-standard-WSL2")
    occupancy = reading_of(machine, busy_gpu(compute=[FakeProcess(pid=os.getpid())], graphics=[]))
    assert occupancy.num_other_processes.value is None


def test_before_hopper_there_are_no_counters(machine: FakeMachine) -> None:
    occupancy = reading_of(machine, busy_gpu(counters=None))
    assert unknown_fields(occupancy) == COUNTERS
    assert "Hopper" in occupancy.sm_occupancy_percent.reason


def test_counters_are_averaged_since_the_last_reading_and_never_over_less_than_100_ms(machine: FakeMachine) -> None:
    nvml = machine.plug([busy_gpu()])
    probe = machine.open_probe()
    for pause_s in (0.0, 0.25, 0.7, 50.0):  # after the long pause a fresh pair is taken
        machine.clock.sleep(pause_s)
        probe.read()
    assert nvml.spacings_s == pytest.approx([0.1, 0.25, 0.7, 0.1])


def test_old_bindings_without_a_function_cost_its_fields_only(machine: FakeMachine) -> None:
    nvml = machine.plug([busy_gpu()])
    nvml.failures["nvmlGpmQueryDeviceSupport"] = AttributeError("module 'pynvml' has no such function")
    nvml.failures["nvmlDeviceGetPowerUsage"] = OSError("access violation")
    occupancy = machine.open_probe().read()
    assert unknown_fields(occupancy) == {*COUNTERS, "power_w"}
    assert "access violation" in occupancy.power_w.reason


def test_an_instance_of_a_partitioned_device(machine: FakeMachine) -> None:
    instance = busy_gpu(
        uuid="MIG-22222222-aaaa-bbbb-cccc-000000000007",
        name="NVIDIA H200 MIG 1g.18gb",
        instance_id=7,
        total_bytes=18 << 30,
        free_bytes=10 << 30,
        gpu_percent=None,
        graphics=None,
        samples=None,
        power_milliwatts=None,
        temperature=None,
        clocks_mhz=None,
    )
    other = busy_gpu(uuid="MIG-33333333-aaaa-bbbb-cccc-000000000008", instance_id=8)
    machine.plug([FakeGpu(instances=[other, instance])])
    occupancy = machine.open_probe(instance.uuid).read()
    assert occupancy.device_name.value == instance.name
    assert occupancy.memory_total_bytes.value == 18 << 30
    assert occupancy.memory_used_bytes.value == 8 << 30
    assert unknown_fields(occupancy) == {"gpu_percent", "memory_percent", "other_sm_percent"}
    assert "MIG" in occupancy.gpu_percent.reason
    assert occupancy.sm_occupancy_percent.value == 23.25  # through the instance's own sample call
    assert "whole device" in occupancy.power_w.reason
