"""Which device the probe opens, and what it says where there is none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from uuid import UUID

import pynvml
import pytest

from scheduler import OccupancyProbe
from tests.support.fake_machine import FakeMachine, busy_gpu, fake_machine
from tests.support.fake_nvml import FakeGpu

FIRST = "GPU-aaaaaaaa-0000-4000-8000-000000000001"
SECOND = "GPU-aabbbbbb-0000-4000-8000-000000000002"
INSTANCE = "MIG-cccccccc-0000-4000-8000-000000000003"
OTHER_INSTANCE = "MIG-dddddddd-0000-4000-8000-000000000004"


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeMachine]:
    with fake_machine(monkeypatch, tmp_path) as machine:
        yield machine


def two_alike() -> list[FakeGpu]:
    return [busy_gpu(uuid=FIRST), busy_gpu(uuid=SECOND)]


def partitioned() -> list[FakeGpu]:
    instances = [busy_gpu(uuid=INSTANCE, instance_id=3), busy_gpu(uuid=OTHER_INSTANCE, instance_id=4)]
    return [busy_gpu(uuid=FIRST, instances=instances)]


def opened(machine: FakeMachine, uuid: object = None) -> str:
    """UUID of the device that was opened, or why none was."""
    probe = machine.open_probe(uuid)
    return str(probe.read().device_uuid.value) if probe.available else probe.reason


@pytest.mark.parametrize("uuid", [SECOND, SECOND.removeprefix("GPU-"), UUID(SECOND.removeprefix("GPU-"))])
def test_a_uuid_with_and_without_its_prefix(machine: FakeMachine, uuid: object) -> None:
    machine.plug(two_alike())
    machine.set_variable("CUDA_VISIBLE_DEVICES", "0")  # a UUID needs no help from it
    assert opened(machine, uuid) == SECOND


@pytest.mark.parametrize("uuid", [OTHER_INSTANCE, OTHER_INSTANCE.removeprefix("MIG-")])
def test_the_uuid_of_an_instance(machine: FakeMachine, uuid: str) -> None:
    machine.plug(partitioned())
    assert opened(machine, uuid) == OTHER_INSTANCE


def test_a_uuid_that_no_device_has(machine: FakeMachine) -> None:
    machine.plug(two_alike())
    assert "no device with the UUID GPU-x" in opened(machine, "GPU-x")


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, FIRST),
        ("0", FIRST),
        ("1", SECOND),
        ("1,0", SECOND),
        (" 1 , 0", SECOND),
        (SECOND, SECOND),
        ("GPU-aab", SECOND),
        (f"GPU-aaa,{SECOND}", FIRST),
    ],
)
def test_cuda_visible_devices_is_honoured(machine: FakeMachine, visible: str | None, expected: str) -> None:
    machine.plug(two_alike())
    if visible is not None:
        machine.set_variable("CUDA_VISIBLE_DEVICES", visible)
    assert opened(machine) == expected


@pytest.mark.parametrize("visible", ["", "-1", "-1,0", "2", "NoDevFiles", "all", " ", ",0"])
def test_cuda_visible_devices_can_hide_all(machine: FakeMachine, visible: str) -> None:
    machine.plug(two_alike())
    machine.set_variable("CUDA_VISIBLE_DEVICES", visible)
    assert "CUDA_VISIBLE_DEVICES" in opened(machine)
    assert "hides" in opened(machine)


@pytest.mark.parametrize(("prefix", "number"), [("GPU-aa", "2 devices"), ("GPU-ff", "no device")])
def test_a_prefix_must_fit_one_device(machine: FakeMachine, prefix: str, number: str) -> None:
    machine.plug(two_alike())
    machine.set_variable("CUDA_VISIBLE_DEVICES", prefix)
    assert number in opened(machine)


def test_numbers_of_unlike_devices_need_the_bus_order(machine: FakeMachine) -> None:
    machine.plug([busy_gpu(uuid=FIRST, name="NVIDIA T400"), busy_gpu(uuid=SECOND)])
    machine.set_variable("CUDA_VISIBLE_DEVICES", "0")
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in opened(machine)
    machine.set_variable("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    assert opened(machine) == FIRST


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, INSTANCE),
        ("0", INSTANCE),
        (FIRST, INSTANCE),
        (OTHER_INSTANCE, OTHER_INSTANCE),
        ("MIG-ddd", OTHER_INSTANCE),
    ],
)
def test_a_partitioned_device_means_its_first_instance_unless_another_is_named(
    machine: FakeMachine, visible: str | None, expected: str
) -> None:
    machine.plug(partitioned())
    if visible is not None:
        machine.set_variable("CUDA_VISIBLE_DEVICES", visible)
    assert opened(machine) == expected


def test_the_older_name_of_an_instance(machine: FakeMachine) -> None:
    older = f"MIG-{FIRST}/3/0"
    parent, instance = partitioned()[0], busy_gpu(uuid=older, instance_id=3)
    parent.instances = [instance]
    machine.plug([parent])
    machine.set_variable("CUDA_VISIBLE_DEVICES", older)
    assert opened(machine) == older


@pytest.mark.parametrize("code", [pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND])
def test_drivers_that_know_nothing_of_partitions(machine: FakeMachine, code: int) -> None:
    nvml = machine.plug(two_alike())
    nvml.failures["nvmlDeviceGetMigMode"] = nvml.failures["nvmlDeviceIsMigDeviceHandle"] = code
    assert opened(machine) == FIRST


def test_no_device(machine: FakeMachine) -> None:
    machine.plug([])
    assert opened(machine) == "the driver sees no GPU"


def test_no_module(machine: FakeMachine) -> None:
    machine.set_module(None)
    assert opened(machine).endswith("pip install nvidia-ml-py")


def test_another_module_of_that_name(machine: FakeMachine) -> None:
    module = ModuleType("pynvml")
    module.__file__ = "/somewhere/pynvml.py"
    machine.set_module(module)
    assert "/somewhere/pynvml.py is not nvidia-ml-py" in opened(machine)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, "no NVIDIA driver library"),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "driver is not loaded"),
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "different versions"),
        (pynvml.NVML_ERROR_NO_PERMISSION, "no permission"),
    ],
)
def test_a_driver_that_does_not_start_is_named(machine: FakeMachine, code: int, words: str) -> None:
    nvml = machine.plug(two_alike())
    nvml.failures["nvmlInit"] = code
    probe = machine.open_probe()
    assert not probe.available
    assert words in probe.reason
    assert words in probe.describe()
    assert words in probe.latest().describe()


def test_the_installed_module_on_this_machine() -> None:
    """With a driver the device is read, without one there is a reason; either way nothing is raised."""
    with OccupancyProbe.for_device() as probe:
        occupancy = probe.read()
        assert probe.reason
        assert probe.available == occupancy.device_uuid.known
        assert all(field.reason for field in occupancy.measured().values())
