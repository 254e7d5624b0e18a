"""What follows from a reading: who is let in, and when overlap is turned off."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from models.errors import InsufficientMemoryError
from scheduler import Occupancy, check_admission, overlap_advice
from tests.support.fake_machine import STRANGER, FakeMachine, busy_gpu, fake_machine
from tests.support.fake_nvml import FakeProcess, FakeSample

UNKNOWN = Occupancy.unknown("no driver", taken_at_s=0.0, own_idle_s=10.0)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeMachine]:
    with fake_machine(monkeypatch, tmp_path) as machine:
        yield machine


def reading(machine: FakeMachine, *, idle_s: float | None, **changes: Any) -> Occupancy:
    """A reading of a device with these changes, while this process works (None) or has been idle for so long."""
    machine.plug([busy_gpu(**changes)])
    probe = machine.open_probe()
    if idle_s is None:
        with probe.own_work():
            return probe.read()
    machine.clock.sleep(idle_s)
    return probe.read()


def test_what_fits_is_let_in(machine: FakeMachine) -> None:
    occupancy = reading(machine, idle_s=0.0)
    check_admission(0, occupancy)
    check_admission(100 << 30, occupancy)


def test_what_does_not_fit_is_refused_with_figures_and_a_way_out(machine: FakeMachine) -> None:
    with pytest.raises(InsufficientMemoryError) as caught:
        check_admission((100 << 30) + (1 << 20), reading(machine, idle_s=0.0))
    message = str(caught.value)
    for words in ("102,401 MiB", "102,400 MiB are free", "NVIDIA H200", "other processes hold 3,072 MiB", "shorter"):
        assert words in message


def test_unknown_memory_lets_everything_in() -> None:
    check_admission(1 << 60, UNKNOWN)


@pytest.mark.parametrize(("required", "error"), [(-1, ValueError), (1.5, TypeError), (True, TypeError)])
def test_a_bad_amount_is_refused(required: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="required_bytes"):
        check_admission(required, UNKNOWN)


def test_others_kernels_turn_overlap_off_even_while_we_work(machine: FakeMachine) -> None:
    advice = overlap_advice(reading(machine, idle_s=None))
    assert not advice.allowed
    assert "28 %" in advice.reason
    assert "by process" in advice.reason


def test_our_own_work_does_not(machine: FakeMachine) -> None:
    own = FakeSample(pid=os.getpid(), sm_percent=98)
    advice = overlap_advice(
        reading(machine, idle_s=None, gpu_percent=99, samples=[own, FakeSample(pid=STRANGER, sm_percent=4)])
    )
    assert advice.allowed
    assert advice.known
    assert "4 %" in advice.reason


def test_a_device_that_is_busy_while_we_are_idle_is_busy_for_others(machine: FakeMachine) -> None:
    advice = overlap_advice(reading(machine, idle_s=3.0, gpu_percent=60, samples=None, compute=None))
    assert not advice.allowed
    assert advice.known
    assert "60 % busy while this process was idle" in advice.reason


def test_hidden_processes_outweigh_harmless_visible_ones(machine: FakeMachine) -> None:
    advice = overlap_advice(
        reading(machine, idle_s=3.0, gpu_percent=60, samples=[FakeSample(pid=STRANGER, sm_percent=1)])
    )
    assert not advice.allowed


@pytest.mark.parametrize("idle_s", [None, 0.0, 0.9])
def test_utilisation_that_may_be_our_own_decides_nothing(machine: FakeMachine, idle_s: float | None) -> None:
    advice = overlap_advice(reading(machine, idle_s=idle_s, gpu_percent=100, samples=None))
    assert advice.allowed
    assert not advice.known
    assert "not known whether they work" in advice.reason


def test_an_idle_device_is_free(machine: FakeMachine) -> None:
    advice = overlap_advice(reading(machine, idle_s=3.0, gpu_percent=0, samples=[]))
    assert advice.allowed
    assert "0 % busy while this process was idle" in advice.reason


def test_nobody_else_is_there(machine: FakeMachine) -> None:
    own = FakeProcess(pid=os.getpid())
    advice = overlap_advice(reading(machine, idle_s=None, gpu_percent=100, samples=None, compute=[own], graphics=[]))
    assert advice.allowed
    assert advice.known
    assert "no other process" in advice.reason


def test_what_is_not_known_is_said() -> None:
    advice = overlap_advice(UNKNOWN)
    assert advice.allowed
    assert not advice.known
    assert advice.reason == "not known whether others use the device: no driver"


@pytest.mark.parametrize("busy_percent", [28.0, 28.1])
def test_the_threshold_counts_as_busy(machine: FakeMachine, busy_percent: float) -> None:
    occupancy = reading(machine, idle_s=None)
    assert overlap_advice(occupancy, busy_percent=busy_percent).allowed == (busy_percent > 28.0)


@pytest.mark.parametrize("busy_percent", [0.0, 101.0, float("nan")])
def test_a_bad_threshold_is_refused(busy_percent: float) -> None:
    with pytest.raises(ValueError, match="busy_percent"):
        overlap_advice(UNKNOWN, busy_percent=busy_percent)
