"""Counters beside a recording: what is read, how often, and what is said where nothing can be."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from profiling.trace import counters
from profiling.trace.counters import Counter, CounterReader, CounterReadings, reading_counters
from scheduler import Occupancy
from tests.support.fake_machine import FakeMachine, busy_gpu, fake_machine


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeMachine]:
    with fake_machine(monkeypatch, tmp_path) as made:
        yield made


def no_device() -> Occupancy:
    return Occupancy.unknown("it runs on the CPU", taken_at_s=time.monotonic())


def values_of(readings: CounterReadings) -> dict[Counter, float]:
    return {counter: value for reading in readings.readings for counter, value in reading.values.items()}


def test_a_gpu_is_read_and_placed_on_the_hosts_clock(machine: FakeMachine) -> None:
    machine.plug([busy_gpu()])
    probe = machine.open_probe()
    occupancy = probe.read()
    # The probe's clock stands elsewhere; as far as this reader knows it is the machine's own.
    moved: Any = occupancy
    readings = CounterReadings()
    before_ms = time.perf_counter() * 1e3
    object.__setattr__(moved, "taken_at_s", time.monotonic() - 0.05)
    CounterReader(lambda: moved, readings).read()
    after_ms = time.perf_counter() * 1e3
    device = [reading for reading in readings.readings if Counter.GPU_BUSY in reading.values]
    assert [reading.values for reading in device] == [
        {
            Counter.DEVICE_MEMORY: 41 * 1024,
            Counter.GPU_BUSY: 37,
            Counter.SM_OCCUPANCY: 23.25,
            Counter.DRAM_BANDWIDTH: 47.75,
        }
    ]
    # By as much as passes between a look at the one clock and at the other, it may be placed wrongly.
    slack_ms = after_ms - before_ms + 0.5
    assert device[0].at_ms == pytest.approx(before_ms - 50, abs=slack_ms)
    assert readings.missing() == {}


def test_fields_that_a_device_does_not_have_are_left_out_with_the_reason(machine: FakeMachine) -> None:
    machine.plug([busy_gpu(counters=None, gpu_percent=None)])
    readings = CounterReadings()
    CounterReader(machine.open_probe().read, readings).read()
    values = values_of(readings)
    assert Counter.DEVICE_MEMORY in values
    assert not {Counter.SM_OCCUPANCY, Counter.GPU_BUSY} & set(values)
    missing = readings.missing()
    assert set(missing) == {"GPU busy", "SM occupancy", "DRAM bandwidth"}
    assert all(missing.values())


def test_without_a_device_there_is_the_reason_and_no_zero() -> None:
    readings = CounterReadings()
    CounterReader(no_device, readings).read()
    assert set(values_of(readings)) == {Counter.PROCESS_MEMORY}
    assert values_of(readings)[Counter.PROCESS_MEMORY] > 10
    assert set(readings.missing().values()) == {"it runs on the CPU"}


def test_a_reading_that_is_known_already_is_not_noted_again(machine: FakeMachine) -> None:
    machine.plug([busy_gpu()])
    probe = machine.open_probe()
    readings = CounterReadings()
    reader = CounterReader(probe.read, readings)
    for _ in range(3):
        reader.read()
    assert sum(Counter.GPU_BUSY in reading.values for reading in readings.readings) == 1
    machine.clock.sleep(1.0)
    reader.read()
    assert sum(Counter.GPU_BUSY in reading.values for reading in readings.readings) == 2


@pytest.mark.parametrize("content", [None, "", "12"])
def test_a_system_that_tells_no_memory_is_told_of(
    content: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "statm"
    if content is not None:
        file.write_text(content)
    monkeypatch.setattr(counters, "PROCESS_MEMORY_FILE", file)
    readings = CounterReadings()
    CounterReader(no_device, readings).read()
    assert readings.readings == []
    assert str(file) in readings.missing()["process memory"]


async def test_nvml_is_asked_no_more_often_than_it_has_news(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its figures change every 100 ms at most (nvmlDeviceGetUtilizationRates: between 1 s and 1/6 s)."""
    pauses_s: list[float] = []
    num_asked = 0
    pause = asyncio.sleep

    async def sleep(delay_s: float) -> None:
        pauses_s.append(delay_s)
        await pause(0)

    def occupancy() -> Occupancy:
        nonlocal num_asked
        num_asked += 1
        return no_device()

    monkeypatch.setattr(asyncio, "sleep", sleep)
    async with reading_counters(occupancy):
        for _ in range(20):
            await pause(0)
    assert len(pauses_s) > 5
    assert min(pauses_s) >= 0.1
    # Between two looks there is a pause; the last one comes when the block is over.
    assert num_asked == len(pauses_s) + 1


async def test_a_look_that_fails_ends_the_reading_aloud_and_not_the_request(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(counters, "INTERVAL_S", 0.0)
    looks = iter([no_device()])

    def occupancy() -> Occupancy:
        if (look := next(looks, None)) is None:
            raise LookupError("the device fell off the bus")
        return look

    async with reading_counters(occupancy) as readings:
        for _ in range(20):
            await asyncio.sleep(0)
    (record,) = caplog.records
    assert "their counters end early: the device fell off the bus" in record.getMessage()
    assert readings.missing()["GPU busy"] == "reading failed: the device fell off the bus"
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.parametrize(("interval_s", "least", "most"), [(3600.0, 2, 2), (0.0, 4, 1000)])
async def test_it_is_read_first_and_last_and_at_intervals(
    interval_s: float, least: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counters, "INTERVAL_S", interval_s)
    async with reading_counters(no_device) as readings:
        for _ in range(50):
            await asyncio.sleep(0)
        num_meanwhile = len(readings.readings)
    assert len(readings.readings) == num_meanwhile + 1
    assert least <= len(readings.readings) <= most
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_the_reading_ends_with_what_it_stood_beside() -> None:
    with pytest.raises(ZeroDivisionError):
        async with reading_counters(no_device):
            raise ZeroDivisionError
    assert asyncio.all_tasks() == {asyncio.current_task()}
