"""Which NVML device is CUDA's.

Owns the rules of CUDA_VISIBLE_DEVICES (CUDA programming guide, environment variables): NVML numbers all devices
of the machine in bus order, CUDA numbers the visible ones, by default the fastest first. Knows nothing of what
is read from a device.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from scheduler.occupancy.nvml_library import NvmlUnavailableError, error_words

_VISIBLE = "CUDA_VISIBLE_DEVICES"
_ORDER = "CUDA_DEVICE_ORDER"


@dataclass(frozen=True, kw_only=True)
class DeviceHandles:
    """NVML's handles of the device that CUDA uses."""

    device: Any
    """The device, or the MIG instance."""
    parent: Any
    """The whole device; the same handle where it is not partitioned."""
    is_mig: bool


def find_device(nvml: Any, uuid: str | None) -> DeviceHandles:
    """Find the device with this UUID, or CUDA's first one.

    Args:
        nvml: the started `pynvml` module.
        uuid: with or without `GPU-` or `MIG-`; None asks CUDA_VISIBLE_DEVICES for its first entry.

    Raises:
        NvmlUnavailableError: if there is no such device, or it cannot be told which one it is.
    """
    try:
        device = _first_visible(nvml) if uuid is None else _by_full_uuid(nvml, uuid)
        return _with_parent(nvml, device)
    except NvmlUnavailableError:
        raise
    except Exception as error:  # whatever a foreign library does here, the runtime works without it
        raise NvmlUnavailableError(f"the device cannot be opened: {error_words(error)}") from error


def _by_full_uuid(nvml: Any, uuid: str) -> Any:
    names = [uuid] if uuid.startswith(("GPU-", "MIG-")) else [f"GPU-{uuid}", f"MIG-{uuid}"]
    for name in names:
        try:
            return nvml.nvmlDeviceGetHandleByUUID(name)
        except (nvml.NVMLError_NotFound, nvml.NVMLError_InvalidArgument):
            continue
    raise NvmlUnavailableError(f"NVML knows no device with the UUID {uuid}")


def _first_visible(nvml: Any) -> Any:
    num_devices = nvml.nvmlDeviceGetCount()
    if num_devices == 0:
        raise NvmlUnavailableError("the driver sees no GPU")
    visible = os.environ.get(_VISIBLE)
    if visible is None:
        return _by_index(nvml, 0, num_devices)
    entry = visible.split(",")[0].strip()  # CUDA stops at the first entry it cannot use
    if entry.startswith(("GPU-", "MIG-")):
        return _by_prefix(nvml, entry, num_devices)
    if entry.isdecimal() and int(entry) < num_devices:
        return _by_index(nvml, int(entry), num_devices)
    raise NvmlUnavailableError(f"{_VISIBLE}={visible!r} hides every one of the {num_devices} device(s)")


def _by_index(nvml: Any, index: int, num_devices: int) -> Any:
    handles = [nvml.nvmlDeviceGetHandleByIndex(number) for number in range(num_devices)]
    in_bus_order = num_devices == 1 or os.environ.get(_ORDER) == "PCI_BUS_ID"
    if not in_bus_order and len({nvml.nvmlDeviceGetName(handle) for handle in handles}) > 1:
        raise NvmlUnavailableError(
            f"CUDA numbers devices of different models by speed, NVML by bus: number {index} may be another one; "
            f"give the device's UUID, or set {_ORDER}=PCI_BUS_ID"
        )
    return handles[index]


def _by_prefix(nvml: Any, prefix: str, num_devices: int) -> Any:
    parents = [nvml.nvmlDeviceGetHandleByIndex(number) for number in range(num_devices)]
    candidates = (
        parents if prefix.startswith("GPU-") else [mig for parent in parents for mig in _instances(nvml, parent)]
    )
    matches = [handle for handle in candidates if nvml.nvmlDeviceGetUUID(handle).startswith(prefix)]
    if len(matches) == 1:
        return matches[0]
    if not matches and prefix.startswith("MIG-"):
        return _by_full_uuid(nvml, prefix)  # the older form MIG-GPU-<uuid>/<instance>/<instance>
    number = "no device" if not matches else f"{len(matches)} devices"
    raise NvmlUnavailableError(f"{_VISIBLE} begins with {prefix!r}, which fits {number}")


def _instances(nvml: Any, parent: Any) -> list[Any]:
    """Handles of a device's MIG instances; empty where it is not partitioned."""
    try:
        mode, _ = nvml.nvmlDeviceGetMigMode(parent)
        if mode != nvml.NVML_DEVICE_MIG_ENABLE:
            return []
        most = nvml.nvmlDeviceGetMaxMigDeviceCount(parent)
    except (nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound):
        return []
    instances = []
    for index in range(most):
        try:
            instances.append(nvml.nvmlDeviceGetMigDeviceHandleByIndex(parent, index))
        except (nvml.NVMLError_NotFound, nvml.NVMLError_InvalidArgument):
            continue  # places may be empty
    return instances


def _with_parent(nvml: Any, device: Any) -> DeviceHandles:
    if _is_instance(nvml, device):
        parent = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device)
        return DeviceHandles(device=device, parent=parent, is_mig=True)
    instances = _instances(nvml, device)
    if instances:  # a process gets one instance of a partitioned device, the first unless told otherwise
        return DeviceHandles(device=instances[0], parent=device, is_mig=True)
    return DeviceHandles(device=device, parent=device, is_mig=False)


def _is_instance(nvml: Any, device: Any) -> bool:
    try:
        answer = nvml.nvmlDeviceIsMigDeviceHandle(device)
    except (nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound):
        return False
    return bool(int(getattr(answer, "value", answer)))  # nvidia-ml-py gives the C integer itself
