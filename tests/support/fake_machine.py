"""A machine with made-up devices and processes: NVML, /proc, CUDA's variables and the clock are stand-ins."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from scheduler import OccupancyProbe
from scheduler.occupancy import processes
from tests.support.fake_nvml import FakeGpu, FakeNvml, FakeProcess, FakeSample

OWN_CHILD, OWN_GRANDCHILD, STRANGER, PAINTER = 70_001, 70_002, 80_001, 80_002
"""Process numbers: two that descend from this one, and two that do not."""

_MOST_WAITING_S = 20.0
_INITIAL_NAMESPACE = "pid:[4026531836]"


class FakeClock:
    """Time that passes when somebody sleeps."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


class FakeMachine:
    """What a test changes about the machine, and the probes that it opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.clock = FakeClock()
        self.probes: list[OccupancyProbe] = []
        self.nvml = FakeNvml([], clock=self.clock)
        self._monkeypatch = monkeypatch
        self._proc = folder / "proc"
        monkeypatch.setattr(processes, "PROCESS_FOLDER", self._proc)
        for variable in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
            monkeypatch.delenv(variable, raising=False)
        (self._proc / "self" / "ns").mkdir(parents=True)
        self.put_into_namespace(_INITIAL_NAMESPACE)
        self.set_kernel("6.8.0-generic")
        self.add_process(OWN_CHILD, parent=os.getpid(), name="a) S 1 (b")
        self.add_process(OWN_GRANDCHILD, parent=OWN_CHILD)
        self.add_process(STRANGER, parent=1, name="a (b) S 1")
        self.add_process(PAINTER, parent=STRANGER)
        self.plug([])

    def plug(self, gpus: Sequence[FakeGpu]) -> FakeNvml:
        """The machine has these devices."""
        self.nvml.gpus = list(gpus)
        self._monkeypatch.setitem(sys.modules, "pynvml", self.nvml)
        return self.nvml

    def set_module(self, module: object) -> None:
        """What `import pynvml` finds; None where there is none."""
        self._monkeypatch.setitem(sys.modules, "pynvml", module)

    def set_variable(self, name: str, value: str) -> None:
        """Set an environment variable."""
        self._monkeypatch.setenv(name, value)

    def set_kernel(self, release: str) -> None:
        """What the kernel calls its version."""
        uname = platform.uname()._replace(release=release)
        self._monkeypatch.setattr(platform, "uname", lambda: uname)

    def put_into_namespace(self, name: str) -> None:
        """The PID namespace that this process lives in."""
        link = self._proc / "self" / "ns" / "pid"
        link.unlink(missing_ok=True)
        link.symlink_to(name)

    def add_process(self, pid: int, *, parent: int, name: str = "python") -> None:
        """A process that /proc knows."""
        (self._proc / str(pid)).mkdir(parents=True)
        (self._proc / str(pid) / "stat").write_text(f"{pid} ({name}) S {parent} 1 1 0 -1")

    def open_probe(self, uuid: object = None, **settings: Any) -> OccupancyProbe:
        """A probe on this machine's clock."""
        probe = OccupancyProbe.for_device(uuid, clock=self.clock, sleep=self.clock.sleep, **settings)
        self.probes.append(probe)
        return probe


@contextmanager
def fake_machine(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Iterator[FakeMachine]:
    """A machine without devices; afterwards everything that probes took from NVML must have been given back."""
    machine = FakeMachine(monkeypatch, folder)
    yield machine
    for probe in machine.probes:
        probe.close()
    wait_until(lambda: machine.nvml.num_users == 0)
    assert machine.nvml.misuse == []
    assert machine.nvml.num_open_samples == 0


def busy_gpu(**changes: Any) -> FakeGpu:
    """A Hopper with this process's work and others'; no true value of it is 0."""
    gpu = FakeGpu(
        compute=[
            FakeProcess(pid=os.getpid(), usedGpuMemory=8 << 30),
            FakeProcess(pid=OWN_GRANDCHILD, usedGpuMemory=4 << 30),
            FakeProcess(pid=STRANGER, usedGpuMemory=2 << 30),
        ],
        graphics=[
            FakeProcess(pid=STRANGER, usedGpuMemory=2 << 30),
            FakeProcess(pid=PAINTER, usedGpuMemory=1 << 30),
        ],
        samples=[
            FakeSample(pid=os.getpid(), sm_percent=40),
            FakeSample(pid=STRANGER, sm_percent=30),
            FakeSample(pid=STRANGER, sm_percent=25, age_s=0.1),
            FakeSample(pid=PAINTER, sm_percent=3),
        ],
    )
    for name, value in changes.items():
        setattr(gpu, name, value)
    return gpu


def wait_until(condition: Callable[[], bool]) -> None:
    """Give other threads time to make the condition true."""
    deadline_s = time.monotonic() + _MOST_WAITING_S
    while not condition():
        assert time.monotonic() < deadline_s, "it never came true"
        time.sleep(0.001)
