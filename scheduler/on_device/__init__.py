"""Rounds in device tensors of fixed shapes: no launch looks at a value on the host."""

from scheduler.on_device.judge import DeviceVerdict, HostVerdict, VerdictLayout, judge_on_device
from scheduler.on_device.law import CountRows, DeviceCounts, DeviceLaw
from scheduler.on_device.noise_table import NoiseTable, purposes_of
from scheduler.on_device.residency import DeviceResidency

__all__ = [
    "CountRows",
    "DeviceCounts",
    "DeviceLaw",
    "DeviceResidency",
    "DeviceVerdict",
    "HostVerdict",
    "NoiseTable",
    "VerdictLayout",
    "judge_on_device",
    "purposes_of",
]
