"""Other processes on the device: how many, how much memory, how much of its time.

Owns who counts as another process, and when the list is known to be incomplete. Knows nothing of what follows
from it.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scheduler.occupancy.field import OccupancyField, count_field, percent_field
from scheduler.occupancy.nvml_library import error_code, under_wsl

PROCESS_FOLDER = Path("/proc")
_INITIAL_PID_NAMESPACE = "pid:[4026531836]"
"""Linux gives the machine's own PID namespace this fixed number (PROC_PID_INIT_INO)."""

_SAMPLE_WINDOW_S = 1.5
"""NVML averages over 1/6 to 1 second, depending on the device; older samples are of no interest."""

_NO_SAMPLES = 6
"""NVML_ERROR_NOT_FOUND: no process has a sample in the window."""


@dataclass(frozen=True, kw_only=True)
class OtherProcesses:
    """What the process lists say."""

    number: OccupancyField[int]
    memory_bytes: OccupancyField[int]


def list_other_processes(nvml: Any, device: Any) -> OtherProcesses:
    """Count the processes that have work on the device, without this one and its descendants.

    Raises:
        NVMLError: if the compute list cannot be had, or another list for another reason than that this device
            has none of the kind.
    """
    listed = list(nvml.nvmlDeviceGetComputeRunningProcesses(device))
    missing = []
    for kind, function in (
        ("graphics", "nvmlDeviceGetGraphicsRunningProcesses"),
        ("MPS", "nvmlDeviceGetMPSComputeRunningProcesses"),
    ):
        try:
            listed += getattr(nvml, function)(device)
        except nvml.NVMLError_NotSupported:
            missing.append(kind)
    source = "NVML's process lists" + (f" (there is none for {' and '.join(missing)})" if missing else "")
    memory_by_pid: dict[int, int | None] = {}
    for process in listed:  # a process with compute and graphics stands in both lists with all its memory
        known = memory_by_pid.get(process.pid, 0)
        used = process.usedGpuMemory
        memory_by_pid[process.pid] = None if known is None or used is None else max(known, used)
    others, caveat = _others(set(memory_by_pid))
    if others is None:
        return OtherProcesses(number=OccupancyField.unknown(caveat), memory_bytes=OccupancyField.unknown(caveat))
    number = count_field(len(others), source + caveat)
    amounts = [memory_by_pid[pid] for pid in others]
    known_amounts = [amount for amount in amounts if amount is not None]
    if len(known_amounts) < len(amounts):
        reason = "the driver does not tell how much memory a process uses (WDDM, WSL, or no permission)"
        return OtherProcesses(number=number, memory_bytes=OccupancyField.unknown(reason))
    return OtherProcesses(number=number, memory_bytes=count_field(sum(known_amounts), source + caveat))


def other_sm_percent(nvml: Any, device: Any) -> OccupancyField[float]:
    """Share of time in which other processes' kernels ran, in percent, over the last second or so.

    Raises:
        NVMLError: if the device does not tell.
    """
    since_us = time.time_ns() // 1000 - int(_SAMPLE_WINDOW_S * 1e6)
    try:
        samples = nvml.nvmlDeviceGetProcessUtilization(device, since_us)
    except nvml.NVMLError as error:
        if error_code(error) not in {0, _NO_SAMPLES}:  # the binding raises "success" for an empty list
            raise
        samples = []
    latest = {sample.pid: sample for sample in sorted(samples, key=lambda sample: sample.timeStamp)}
    if not latest:
        return OccupancyField.unknown("NVML has no sample of any process from the last second")
    others, caveat = _others(set(latest))
    if others is None:
        return OccupancyField.unknown(caveat)
    shares = [latest[pid].smUtil for pid in others]
    if any(share > 100 for share in shares):
        return OccupancyField.unknown("a process's share is reported as more than 100 %")
    return percent_field(min(100, sum(shares)), "NVML's samples by process" + caveat)


def _others(pids: set[int]) -> tuple[set[int] | None, str]:
    """Those of `pids` that are not ours, with a caveat; None, with the reason, where that cannot be told."""
    others = {pid for pid in pids if not _is_own(pid)}
    hidden = _hidden_processes()
    if hidden is None:
        return others, ""
    # Where only part of the processes is visible, or under foreign numbers, "none" would be a guess. A list
    # that has this process under its own number is at least in the numbers that it knows.
    if others and len(others) < len(pids):
        return others, f"; at least, as {hidden}"
    return None, hidden


def _is_own(pid: int) -> bool:
    """Whether `pid` is this process or descends from it; processes that have ended are not ours."""
    own = os.getpid()
    seen: set[int] = set()
    while pid > 1 and pid not in seen:
        if pid == own:
            return True
        seen.add(pid)
        try:
            # The name before the last parenthesis may hold anything; state and parent follow it.
            pid = int((PROCESS_FOLDER / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return False
    return pid == own


def _hidden_processes() -> str | None:
    """Why the lists may lack processes or number them otherwise; None where they are complete."""
    if under_wsl():
        return "under the Windows Subsystem for Linux the processes of Windows are not listed"
    try:
        namespace = os.readlink(PROCESS_FOLDER / "self" / "ns" / "pid")
    except OSError:
        return None  # not Linux: there are no such namespaces
    if namespace == _INITIAL_PID_NAMESPACE:
        return None
    return "this process has a PID namespace of its own (a container), where other containers' processes are hidden"
