"""How the probe polls: at most every interval, never on the caller's time, and anew after a lost device."""

from __future__ import annotations

import asyncio
import functools
import gc
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest

from scheduler import OccupancyProbe
from tests.support.fake_machine import FakeMachine, busy_gpu, fake_machine, wait_until
from tests.support.fake_nvml import FakeNvml

READ = "nvmlDeviceGetMemoryInfo"


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeMachine]:
    with fake_machine(monkeypatch, tmp_path) as machine:
        yield machine


def num_readings(nvml: FakeNvml) -> int:
    return nvml.calls.count(READ)


def has_read(probe: OccupancyProbe, nvml: FakeNvml, number: int) -> bool:
    """Ask for a reading, which does nothing while one is under way, and say whether there have been so many."""
    probe.latest()
    return num_readings(nvml) >= number


def poll(probe: OccupancyProbe, nvml: FakeNvml) -> threading.Thread:
    """Have the probe's thread take its first reading; gives that thread."""
    before = set(threading.enumerate())
    wait_until(functools.partial(has_read, probe, nvml, 1))
    (thread,) = [thread for thread in set(threading.enumerate()) - before if thread.name == "occupancy"]
    return thread


def test_it_polls_no_faster_than_the_interval(machine: FakeMachine) -> None:
    nvml = machine.plug([busy_gpu()])
    probe = machine.open_probe(interval_s=0.5)
    first = probe.read()
    for _ in range(40):
        machine.clock.sleep(0.01)
        assert probe.read() is first
        assert probe.latest() is first
    assert num_readings(nvml) == 1
    machine.clock.sleep(0.11)
    assert probe.read() is not first
    assert num_readings(nvml) == 2


@pytest.mark.parametrize(("interval_s", "error"), [(0.05, ValueError), (-1, ValueError), ("1", TypeError)])
def test_an_interval_below_100_ms_is_refused(machine: FakeMachine, interval_s: float, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"interval_s.*0\.1"):
        OccupancyProbe.for_device(interval_s=interval_s)


def test_latest_has_a_thread_refresh_it(machine: FakeMachine) -> None:
    nvml = machine.plug([busy_gpu()])
    probe = machine.open_probe()
    assert "no reading" in probe.latest().memory_free_bytes.reason
    wait_until(lambda: probe.latest().memory_free_bytes.known)
    assert num_readings(nvml) == 1
    nvml.gpus[0].free_bytes = 1 << 30
    assert probe.latest().memory_free_bytes.value == 100 << 30
    machine.clock.sleep(1.0)
    wait_until(lambda: probe.latest().memory_free_bytes.value == 1 << 30)
    assert num_readings(nvml) == 2


def test_latest_never_reads_on_the_callers_thread(machine: FakeMachine) -> None:
    nvml = machine.plug([busy_gpu()])
    probe = machine.open_probe()
    nvml.threads.clear()
    for number in range(1, 4):
        machine.clock.sleep(1.0)
        wait_until(functools.partial(has_read, probe, nvml, number))
    assert len(nvml.threads) == 1
    assert threading.get_ident() not in nvml.threads


async def test_the_event_loop_goes_on_while_nvml_is_slow(machine: FakeMachine) -> None:
    nvml = machine.plug([busy_gpu()])
    probe = machine.open_probe()
    nvml.delay_s = 0.05  # about a second for all calls of a reading
    started = time.monotonic()
    num_ticks, slowest_call_s = 0, 0.0
    while not probe.latest().memory_free_bytes.known:
        before = time.monotonic()
        probe.latest()
        probe.describe()
        slowest_call_s = max(slowest_call_s, time.monotonic() - before)
        num_ticks += 1
        await asyncio.sleep(0.005)
    took_s = time.monotonic() - started
    nvml.delay_s = 0.0
    assert num_readings(nvml) == 1
    assert slowest_call_s < took_s / 2
    assert num_ticks > 10


def test_closing_does_not_wait_for_a_slow_nvml(machine: FakeMachine) -> None:
    nvml = machine.plug([busy_gpu()])
    probe = machine.open_probe()
    nvml.delay_s = 0.1
    probe.latest()
    wait_until(lambda: "nvmlDeviceGetUtilizationRates" in nvml.calls)
    probe.close()
    assert nvml.num_users == 1  # the reading still needs it
    nvml.delay_s = 0.0
    wait_until(lambda: nvml.num_users == 0)
    assert nvml.num_open_samples == 0


def test_after_closing_nothing_is_asked_any_more(machine: FakeMachine) -> None:
    nvml = machine.plug([busy_gpu()])
    probe = machine.open_probe()
    last = probe.read()
    probe.close()
    probe.close()
    num_calls = len(nvml.calls)
    machine.clock.sleep(10.0)
    assert probe.read() is last
    assert probe.latest() is last
    assert not probe.available
    assert "closed" in probe.describe()
    assert len(nvml.calls) == num_calls
    assert nvml.num_users == 0


def test_its_thread_ends_with_it(machine: FakeMachine) -> None:
    nvml = machine.plug([busy_gpu()])
    probe = machine.open_probe()
    thread = poll(probe, nvml)
    assert thread.daemon
    probe.close()
    thread.join(timeout=20.0)
    assert not thread.is_alive()


def test_a_forgotten_probe_keeps_neither_its_thread_nor_nvml(machine: FakeMachine) -> None:
    nvml = machine.plug([busy_gpu()])
    probe = machine.open_probe()
    thread = poll(probe, nvml)
    machine.probes.clear()
    del probe
    gc.collect()
    thread.join(timeout=20.0)
    assert not thread.is_alive()
    assert nvml.num_users == 0


def test_several_probes_share_one_start(machine: FakeMachine) -> None:
    nvml = machine.plug([busy_gpu(), busy_gpu(uuid="GPU-other")])
    first, second = machine.open_probe(nvml.gpus[0].uuid), machine.open_probe("GPU-other")
    assert first.read().device_uuid.value != second.read().device_uuid.value
    assert nvml.calls.count("nvmlInit") == 1
    first.close()
    machine.clock.sleep(1.0)
    assert second.read().device_uuid.value == "GPU-other"
    second.close()
    assert nvml.calls.count("nvmlShutdown") == 1


def test_threads_may_ask_at_once(machine: FakeMachine) -> None:
    nvml = machine.plug([busy_gpu()])
    probe = machine.open_probe()
    errors: list[BaseException] = []

    def ask() -> None:
        try:
            for _ in range(50):
                machine.clock.sleep(0.05)
                assert probe.read().memory_total_bytes.known
                probe.latest()
                with probe.own_work():
                    probe.describe()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert min(nvml.spacings_s) >= 0.0999


@pytest.mark.parametrize("function", ["nvmlDeviceGetUtilizationRates", "nvmlDeviceGetPowerUsage"])
@pytest.mark.parametrize(
    "code", [pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED, pynvml.NVML_ERROR_DRIVER_NOT_LOADED]
)
def test_a_lost_device_is_opened_anew_after_a_while(machine: FakeMachine, function: str, code: int) -> None:
    nvml = machine.plug([busy_gpu()])
    probe = machine.open_probe()
    probe.read()
    nvml.failures[function] = code
    machine.clock.sleep(1.0)
    assert probe.read().memory_free_bytes.known  # the fields that still answered are kept
    assert not probe.available
    assert "tried again after 5 s" in probe.reason
    nvml.failures.clear()
    machine.clock.sleep(1.0)
    assert not probe.read().memory_free_bytes.known
    assert nvml.num_starts == 1  # not yet
    machine.clock.sleep(5.0)
    assert probe.read().gpu_percent.known
    assert probe.available
    assert nvml.num_starts == 2


def test_a_device_that_answers_nothing_counts_as_lost(machine: FakeMachine) -> None:
    nvml = machine.plug([busy_gpu()])
    probe = machine.open_probe()
    for function in {name for name in dir(nvml) if name.startswith(("nvmlDeviceGet", "nvmlGpm"))}:
        nvml.failures[function] = pynvml.NVML_ERROR_UNKNOWN
    probe.read()
    assert not probe.available
    assert "no field can be read" in probe.reason
    nvml.failures.clear()
    machine.clock.sleep(5.1)
    assert probe.read().memory_free_bytes.known
    assert nvml.num_starts == 2


def test_a_device_that_stays_lost_is_not_hammered(machine: FakeMachine) -> None:
    gpu = busy_gpu()
    nvml = machine.plug([gpu])
    nvml.comes_back = False
    probe = machine.open_probe()
    nvml.lose(gpu)
    for _ in range(300):
        machine.clock.sleep(0.25)
        assert not any(field.known for field in probe.read().measured().values())
        assert not probe.available
        assert "lost" in probe.reason
    assert 10 <= nvml.num_starts <= 16  # 75 s, a try each 5 s
    nvml.comes_back = True
    machine.clock.sleep(5.1)
    assert probe.read().memory_free_bytes.known


def test_a_loss_on_one_device_does_not_cost_another_its_probe(machine: FakeMachine) -> None:
    lost, well = busy_gpu(), busy_gpu(uuid="GPU-well")
    nvml = machine.plug([lost, well])
    nvml.comes_back = False
    first, second = machine.open_probe(lost.uuid), machine.open_probe(well.uuid)
    first.read()
    second.read()
    nvml.lose(lost)
    for _ in range(40):
        machine.clock.sleep(0.3)
        first.read()
        assert second.read().memory_free_bytes.known
    assert not first.available
    assert second.available
    assert nvml.num_starts > 2


def test_two_probes_of_one_lost_device_do_not_egg_each_other_on(machine: FakeMachine) -> None:
    gpu = busy_gpu()
    nvml = machine.plug([gpu])
    nvml.comes_back = False
    probes = [machine.open_probe(), machine.open_probe()]
    for probe in probes:
        probe.read()
    nvml.lose(gpu)
    for _ in range(300):
        machine.clock.sleep(0.25)
        for probe in probes:
            probe.read()
    assert nvml.num_starts <= 2 * 16
    nvml.comes_back = True
    machine.clock.sleep(5.1)
    assert all(probe.read().memory_free_bytes.known for probe in probes[::-1])


def test_a_driver_that_comes_late_is_found(machine: FakeMachine) -> None:
    nvml = machine.plug([busy_gpu()])
    nvml.failures["nvmlInit"] = pynvml.NVML_ERROR_DRIVER_NOT_LOADED
    probe = machine.open_probe()
    assert not probe.available
    nvml.failures.clear()
    machine.clock.sleep(5.1)
    probe.latest()
    wait_until(lambda: probe.available)
    wait_until(lambda: probe.latest().memory_free_bytes.known)


def test_own_work_is_told_apart_by_when_a_reading_was_asked_for(machine: FakeMachine) -> None:
    machine.plug([busy_gpu()])
    probe = machine.open_probe()
    machine.clock.sleep(2.0)
    assert probe.read().own_idle_s == pytest.approx(2.0)
    with probe.own_work():
        machine.clock.sleep(1.0)
        with probe.own_work():
            pass
        assert probe.read().own_idle_s is None
    machine.clock.sleep(0.5)
    assert probe.read().own_idle_s == pytest.approx(0.5)
    machine.clock.sleep(1.0)
    probe.latest()  # asked for while idle, taken while working
    with probe.own_work():
        wait_until(lambda: probe.latest().own_idle_s == pytest.approx(1.5))
