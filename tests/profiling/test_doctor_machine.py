"""The doctor on memory that grows, on crowded machines and GPUs, and where nobody can tell."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pynvml
import pytest
import torch

from models import MemoryEstimate
from profiling.doctor import other_load
from profiling.doctor.check import Finding, Verdict
from profiling.doctor.memory import judge_growth
from profiling.doctor.memory_gauge import HeldMemory, anonymous_bytes, memory_reader
from profiling.doctor.other_load import OtherLoad, busy_seconds, sample_other_load
from profiling.doctor.plan import ALL_CHECKS
from runtime import Mode
from scheduler import OccupancyProbe
from tests.support.doctor_pairs import IDLE, diagnose, pair_of
from tests.support.fake_machine import FakeMachine, busy_gpu, fake_machine
from tests.support.table_model import TableCache, TableModel
from tests.support.table_runtime import VOCAB_SIZE, build_rig, similar_draft, table_target

MEBIBYTE = 1 << 20
PER_TOKEN = 46_080
"""Bytes of keys and values in a small model."""


class LeakingModel(TableModel):
    """Keeps something of every call."""

    def __init__(self, num_bytes: int) -> None:
        super().__init__(vocab_size=VOCAB_SIZE, order=2, seed=5, sharpness=3.0)
        self._num_bytes = num_bytes
        self._kept: list[torch.Tensor] = []

    def forward(self, token_ids_T: torch.Tensor, cache: TableCache, *, num_logits: int) -> torch.Tensor:
        self._kept.append(torch.zeros(self._num_bytes, dtype=torch.uint8))
        return super().forward(token_ids_T, cache, num_logits=num_logits)


def held(tensor_bytes: int, process_bytes: int | None) -> HeldMemory:
    return HeldMemory(tensor_bytes=tensor_bytes, process_bytes=process_bytes, source="planted")


class TestMemoryGrowth:
    def test_a_model_that_keeps_what_it_made(self) -> None:
        (finding,) = diagnose(pair_of(build_rig(LeakingModel(64 << 10), mode=Mode.AUTO)), "memory-growth")
        assert finding.verdict is Verdict.FAIL
        assert "something keeps" in finding.advice
        growth = finding.figures["tensor_growth_bytes"]
        assert len(growth) == 2, "the short text was not written a third time"
        assert min(growth) >= 48 * (64 << 10)

    def test_a_pair_that_keeps_nothing(self) -> None:
        target = table_target()
        rig = build_rig(target, similar_draft(target), mode=Mode.AUTO)
        (finding,) = diagnose(pair_of(rig), "memory-growth")
        assert all(abs(growth) < MEBIBYTE for growth in finding.figures["tensor_growth_bytes"])
        assert finding.figures["num_tokens"] == 48

    @pytest.mark.parametrize(
        ("tensors", "process", "verdict"),
        [
            (0, 0, Verdict.OK),
            (-5 * MEBIBYTE, 10 * MEBIBYTE, Verdict.OK),
            (0, None, Verdict.OK),
            (2 * MEBIBYTE, 0, Verdict.WARN),
            (0, 20 * MEBIBYTE, Verdict.WARN),
            (2000 * PER_TOKEN, None, Verdict.FAIL),
            (0, 2000 * PER_TOKEN, Verdict.FAIL),
            (0, 2000 * PER_TOKEN - 1, Verdict.WARN),
        ],
    )
    def test_how_much_is_too_much(self, tensors: int, process: int | None, verdict: Verdict) -> None:
        before = held(50 * MEBIBYTE, 100 * MEBIBYTE)
        after = held(50 * MEBIBYTE + tensors, None if process is None else 100 * MEBIBYTE + process)
        finding = judge_growth([before, after], num_tokens=2000, bytes_per_token=PER_TOKEN)
        assert finding.verdict is verdict
        assert ("unknown" in finding.measured) == (process is None)

    @pytest.mark.parametrize(
        ("steps", "verdict"),
        [
            # An allocator's step, once.
            ((20 * MEBIBYTE, 0), Verdict.OK),
            ((20 * MEBIBYTE,), Verdict.WARN),
            ((20 * MEBIBYTE, 20 * MEBIBYTE), Verdict.FAIL),
            ((64 * PER_TOKEN - 1, 20 * MEBIBYTE), Verdict.WARN),
        ],
    )
    def test_a_short_text_tells_when_it_is_written_again(self, steps: tuple[int, ...], verdict: Verdict) -> None:
        readings = [held(0, total) for total in itertools.accumulate(steps, initial=100 * MEBIBYTE)]
        assert judge_growth(readings, num_tokens=64, bytes_per_token=PER_TOKEN).verdict is verdict


class TestMemoryEstimate:
    ESTIMATE = MemoryEstimate(
        weight_bytes=600 * MEBIBYTE,
        cache_bytes=300 * MEBIBYTE,
        working_bytes=100 * MEBIBYTE,
        context_length=512,
        cache_bytes_per_token=MEBIBYTE,
    )

    def found(self, now: HeldMemory, estimate: MemoryEstimate | None = ESTIMATE) -> Finding:
        surroundings = dataclasses.replace(IDLE, memory=held(0, 100 * MEBIBYTE))
        pair = pair_of(
            build_rig(table_target(), mode=Mode.AUTO),
            read_memory=lambda: now,
            surroundings=surroundings,
            memory_estimate=estimate,
        )
        (finding,) = diagnose(pair, "memory-estimate")
        return finding

    def test_within(self) -> None:
        finding = self.found(held(0, 1100 * MEBIBYTE))
        assert finding.verdict is Verdict.OK
        assert "the pair holds 1,000.0 MiB" in finding.measured

    def test_above(self) -> None:
        finding = self.found(held(0, 1700 * MEBIBYTE))
        assert finding.verdict is Verdict.WARN
        assert "admission" in finding.advice

    def test_nobody_can_tell(self) -> None:
        assert self.found(held(0, None)).verdict is Verdict.SKIPPED
        unknown = self.found(held(0, 100 * MEBIBYTE), None)
        assert unknown.verdict is Verdict.SKIPPED
        assert "transformers" in unknown.measured

    def test_what_linux_tells(self, tmp_path: Path) -> None:
        status = tmp_path / "status"
        status.write_text("Name:\tpython\nRssAnon:\t    2048 kB\nRssFile:\t 100 kB\n")
        assert anonymous_bytes(status)[0] == 2 * MEBIBYTE
        status.write_text("Name:\tpython\n")
        assert anonymous_bytes(status) == (None, f"{status} has no RssAnon")
        missing, reason = anonymous_bytes(tmp_path / "none")
        assert missing is None
        assert "cannot be read" in reason

    def test_tensors_are_counted_on_a_cpu(self) -> None:
        read = memory_reader(torch.device("cpu"))
        before = read().tensor_bytes
        kept = torch.zeros(3 * MEBIBYTE, dtype=torch.uint8)
        assert read().tensor_bytes - before == kept.nbytes


class TestCores:
    @pytest.mark.parametrize(
        ("others", "verdict"), [(0.0, Verdict.OK), (0.5, Verdict.OK), (0.6, Verdict.WARN), (None, Verdict.SKIPPED)]
    )
    def test_others_before_the_work(self, others: float | None, verdict: Verdict) -> None:
        load = OtherLoad(num_cores=others, reason="nobody tells")
        pair = pair_of(build_rig(table_target(), mode=Mode.AUTO), surroundings=dataclasses.replace(IDLE, others=load))
        (finding,) = diagnose(pair, "cores")
        assert finding.verdict is verdict
        assert ("do not trust" in finding.advice) == (verdict is Verdict.WARN)
        assert ("nobody tells" in finding.measured) == (others is None)

    def test_what_linux_counts(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(os, "sched_getaffinity", lambda process: {1}, raising=False)
        monkeypatch.setattr(os, "sysconf", lambda name: 100)
        statistics = tmp_path / "stat"
        statistics.write_text(
            "cpu  900 0 0 900 0 0 0 0 0 0\ncpu0 700 0 0 700 0 0 0 0 0 0\ncpu1 200 10 20 5000 70 30 5 35 100 0\nintr 7\n"
        )
        # 200 + 10 + 20 + 30 + 5 + 35 hundredths of a second, on the core that is ours.
        assert busy_seconds(statistics) == 3.0

    @pytest.mark.parametrize("text", [None, "", "cpu0 0 0 0 0 0 0 0 0\n", "cpu0 what\n"])
    def test_where_nobody_tells(self, text: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0}, raising=False)
        statistics = tmp_path / "stat"
        if text is not None:
            statistics.write_text(text)
        load = asyncio.run(sample_other_load(0.0, statistics))
        assert load.num_cores is None
        assert str(statistics) in load.reason

    def test_our_own_work_is_not_others(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        counted_s, own_s, now_s = iter((10.0, 13.0)), iter((1.0, 2.0)), iter((100.0, 104.0))
        monkeypatch.setattr(other_load, "busy_seconds", lambda statistics: next(counted_s))
        monkeypatch.setattr(other_load.time, "process_time", lambda: next(own_s))
        monkeypatch.setattr(other_load.time, "perf_counter", lambda: next(now_s))

        async def at_once(seconds: float) -> None:
            """No time passes but what is planted."""

        monkeypatch.setattr(other_load.asyncio, "sleep", at_once)
        sampling = other_load.sample_other_load(0.0)
        with pytest.raises(StopIteration) as ended:
            sampling.send(None)
        assert ended.value.value.num_cores == 0.5


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeMachine]:
    with fake_machine(monkeypatch, tmp_path) as machine:
        yield machine


def gpu_finding(probe: OccupancyProbe | None) -> Finding:
    """What is found of the GPU, and that the checks before and behind it run all the same."""
    pair = pair_of(build_rig(table_target(), mode=Mode.AUTO), probe=probe)
    tokenizers, gpu, cores = diagnose(pair, "tokenizers", "gpu", "cores")
    assert tokenizers.verdict is cores.verdict is Verdict.OK
    return gpu


class TestGpu:
    def test_others_on_the_gpu(self, machine: FakeMachine) -> None:
        machine.plug([busy_gpu()])
        finding = gpu_finding(machine.open_probe())
        assert finding.verdict is Verdict.WARN
        assert "2 other processes" in finding.measured
        assert "end them" in finding.advice

    def test_alone_on_the_gpu(self, machine: FakeMachine) -> None:
        machine.plug([busy_gpu(compute=[], graphics=[], mps=[])])
        finding = gpu_finding(machine.open_probe())
        assert finding.verdict is Verdict.OK
        assert "no other process" in finding.measured

    def test_no_pynvml(self, machine: FakeMachine) -> None:
        machine.set_module(None)
        finding = gpu_finding(machine.open_probe())
        assert finding.verdict is Verdict.SKIPPED
        assert "nvidia-ml-py" in finding.measured

    @pytest.mark.parametrize("code", [pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, pynvml.NVML_ERROR_LIBRARY_NOT_FOUND])
    def test_a_driver_that_does_not_answer(self, machine: FakeMachine, code: int) -> None:
        machine.plug([busy_gpu()]).failures["nvmlInit"] = code
        finding = gpu_finding(machine.open_probe())
        assert finding.verdict is Verdict.SKIPPED
        assert finding.measured.startswith("NVML gives no reading: ")

    def test_no_device(self, machine: FakeMachine) -> None:
        machine.plug([])
        finding = gpu_finding(machine.open_probe())
        assert finding.verdict is Verdict.SKIPPED

    def test_a_driver_that_does_not_tell_processes(self, machine: FakeMachine) -> None:
        machine.plug([busy_gpu(compute=None, graphics=None, mps=None, samples=None)])
        finding = gpu_finding(machine.open_probe())
        assert finding.verdict is Verdict.SKIPPED
        assert "not known whether others" in finding.measured

    def test_on_the_cpu(self) -> None:
        assert "run on the CPU" in gpu_finding(None).measured


def test_batches_are_answered_and_not_measured() -> None:
    (finding,) = diagnose(pair_of(build_rig(table_target(), mode=Mode.AUTO)), "batch")
    assert finding.verdict is Verdict.OK
    assert "one request is served at a time" in finding.measured


def test_every_check_of_a_healthy_pair_has_something_to_say() -> None:
    target = table_target()
    rig = build_rig(target, similar_draft(target, share=0.05), mode=Mode.AUTO, with_ngram=True)
    names = [check.name for check in ALL_CHECKS]
    findings: dict[str, Any] = dict(zip(names, diagnose(pair_of(rig, surroundings=IDLE), *names), strict=True))
    assert all(finding.measured for finding in findings.values())
    failed = [name for name, finding in findings.items() if finding.verdict is Verdict.FAIL]
    # Tables cost next to nothing beside the rounds around them, so times say nothing of speculation.
    assert set(failed) <= {"speed-up", "verify-cost", "rollback"}
    skipped = {name for name, finding in findings.items() if finding.verdict is Verdict.SKIPPED}
    assert {"gpu", "memory-estimate", "cache-addresses"} <= skipped
    for finding in findings.values():
        assert bool(finding.advice) == (finding.verdict in (Verdict.WARN, Verdict.FAIL))
