"""The parts of the GPU check: running them whatever becomes of one, the driver in place of a GPU's, comparing texts."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from profiling import gpu_check
from profiling.gpu_checks import runner, text_equality
from profiling.gpu_checks.bench import GpuBench
from profiling.gpu_checks.check import Budget, Check, Finding, Kind
from profiling.gpu_checks.equality import request_of
from profiling.gpu_checks.gauge import HostGauge, HostReadRefused
from profiling.gpu_checks.host_driver import CYCLES_PER_S, HostDriver
from profiling.gpu_checks.rig import PLAIN, decode
from profiling.gpu_checks.scripted_model import ScriptedModel, draft_script, target_script
from profiling.gpu_checks.text_equality import explain_difference
from scheduler import CudaStream, PinnedRing, PinnedSlot


class TestRunner:
    def run(self, monkeypatch: pytest.MonkeyPatch, folder: Path, *runs: Callable[..., Any]) -> dict[str, Any]:
        """The program with checks `check-0`, `check-1`, ... in place of its own."""
        checks = tuple(
            Check(name=f"check-{number}", question="?", kind=Kind.CORRECTNESS, budget_s=1, run=run)
            for number, run in enumerate(runs)
        )
        monkeypatch.setattr(gpu_check, "ALL_CHECKS", checks)
        path = folder / "record.json"
        gpu_check.main(["--dry-run", "--out", str(path)])
        record = json.loads(path.read_text())
        return {check["name"]: check for check in record["checks"]}

    @staticmethod
    async def fine(bench: GpuBench, budget: Budget) -> Finding:
        return Finding(summary="fine", figures={"one": 1})

    def test_what_a_check_stumbles_over_is_its_result(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        async def stumble(bench: GpuBench, budget: Budget) -> Finding:
            raise LookupError("planted")

        found = self.run(monkeypatch, tmp_path, stumble, self.fine)
        assert found["check-0"]["status"] == "failed"
        assert found["check-0"]["summary"] == "LookupError: planted"
        assert "in stumble" in found["check-0"]["faults"][0]
        assert found["check-1"]["status"] == "passed"

    def test_after_the_device_failed_nothing_runs(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        async def kill(bench: GpuBench, budget: Budget) -> Finding:
            def fail() -> None:
                raise RuntimeError("CUDA error: an illegal memory access\nmore")

            monkeypatch.setattr(bench.gauge, "synchronize", fail)
            raise RuntimeError("CUDA error")

        found = self.run(monkeypatch, tmp_path, kill, self.fine)
        assert found["check-1"]["status"] == "skipped"
        assert found["check-1"]["summary"] == (
            "not run: the device failed in check-0 (CUDA error: an illegal memory access)"
        )

    def test_the_record_is_on_disk_while_a_check_runs(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        seen: list[dict[str, Any]] = []

        async def look(bench: GpuBench, budget: Budget) -> Finding:
            seen.append(json.loads((tmp_path / "record.json").read_text()))
            return Finding(summary="looked")

        self.run(monkeypatch, tmp_path, self.fine, look)
        assert [(check["name"], check["status"]) for check in seen[0]["checks"]] == [
            ("check-0", "passed"),
            ("check-1", "running"),
        ]
        assert seen[0]["passed"] is False
        assert list(tmp_path.iterdir()) == [tmp_path / "record.json"]

    def test_a_check_that_awaits_for_ever(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setattr(runner, "_PATIENCE", 0.0)
        monkeypatch.setattr(runner, "_PATIENCE_S", 0.05)

        async def hang(bench: GpuBench, budget: Budget) -> Finding:
            await asyncio.get_running_loop().create_future()
            raise AssertionError

        # The watchdog stays away: the event loop is not stuck.
        monkeypatch.setattr(runner.Runner, "_give_up", lambda self, check, started_s: None)
        found = self.run(monkeypatch, tmp_path, hang, self.fine)
        assert found["check-0"]["status"] == "failed"
        assert "did not end within" in found["check-0"]["faults"][0]
        assert found["check-1"]["status"] == "passed"

    def test_a_check_that_is_stuck_in_a_call(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setattr(runner, "_PATIENCE", 0.0)
        monkeypatch.setattr(runner, "_PATIENCE_S", 0.02)
        released = threading.Event()
        left: list[tuple[int, dict[str, Any]]] = []

        def leave(status: int) -> None:
            left.append((status, json.loads((tmp_path / "record.json").read_text())))
            released.set()

        monkeypatch.setattr(runner.os, "_exit", leave)

        async def block(bench: GpuBench, budget: Budget) -> Finding:
            assert released.wait(30)
            return Finding(summary="released")

        self.run(monkeypatch, tmp_path, block)
        ((status, record),) = left
        assert status == 1
        assert record["checks"][0]["status"] == "failed"
        assert "cannot be interrupted" in record["checks"][0]["faults"][0]

    def test_a_budget_is_spent_and_says_on_what_not(self) -> None:
        budget = Budget(0.0)
        assert list(budget.spend(range(5), "seeds", least=2)) == [0, 1]
        assert budget.cut_short == ["2 of 5 seeds"]
        budget = Budget(60.0)
        assert list(budget.spend("abc", "letters")) == ["a", "b", "c"]
        assert budget.cut_short == []


class TestTextEquality:
    bench = GpuBench.dry()

    @pytest.mark.parametrize("seed", [0, 1])
    async def test_the_wanted_token_wins(self, seed: int) -> None:
        bench = self.bench
        pair = bench.small_pair()
        request = request_of(bench, seed, max_tokens=4)
        output = await decode(bench, pair.target, None, PLAIN, request)
        wanted = output.token_ids
        assert explain_difference(pair.target, request, wanted, wanted) == (None, False)
        assert explain_difference(pair.target, request, wanted, wanted[:2]) == ("2 tokens instead of 4", False)
        other = (*wanted[:2], (wanted[2] + 1) % 600, wanted[3])
        fault, is_tie = explain_difference(pair.target, request, wanted, other)
        assert fault is not None
        assert f"token 2 is {other[2]} instead of {wanted[2]}, which wins by" in fault
        assert not is_tie
        gap = text_equality.gap_at(pair.target, request, wanted[:2], wanted[2], other[2])
        assert gap > text_equality.LARGEST_TIE

    def test_a_tie_is_no_fault(self, monkeypatch: pytest.MonkeyPatch) -> None:
        request = request_of(self.bench, 1, max_tokens=2)
        pair = self.bench.small_pair()
        monkeypatch.setattr(text_equality, "LARGEST_TIE", 1e6)
        assert explain_difference(pair.target, request, (1, 2), (1, 3)) == (None, True)


class TestHostDriver:
    def test_a_sleep_holds_events_and_copies_back(self) -> None:
        driver = HostDriver()
        stream = CudaStream("one", driver, timing=True)
        ring = PinnedRing(driver, num_slots=1, num_bytes=8)
        value = torch.tensor([7])
        start = stream.record()

        def work() -> PinnedSlot:
            driver.sleep(int(0.3 * CYCLES_PER_S))
            return ring.copy(value)

        launch = stream.launch(work)
        end = stream.record()
        assert not end.done()
        end.synchronize()
        assert launch.result().read().tolist() == [7]
        assert end.elapsed_ms_since(start) >= 300
        stream.close()

    def test_a_wait_carries_lateness_over(self) -> None:
        driver = HostDriver()
        first, second = (CudaStream(name, driver, timing=True) for name in ("first", "second"))
        start = first.record()
        first.launch(lambda: driver.sleep(int(0.3 * CYCLES_PER_S)))
        free = second.record()
        second.wait(first.record())
        second.launch(lambda: None)
        end = second.record()
        assert free.done()
        assert not end.done()
        end.synchronize()
        assert end.elapsed_ms_since(start) >= 300

    def test_work_of_the_host_counts_as_the_devices(self) -> None:
        driver = HostDriver()
        stream = CudaStream("one", driver, timing=True)
        start = stream.record()
        stream.launch(lambda: time.sleep(0.02))
        end = stream.record()
        end.synchronize()
        assert end.elapsed_ms_since(start) >= 20

    @pytest.mark.parametrize("call", [lambda driver: driver.sleep(1), lambda driver: driver.copy_to_host(None, None)])
    def test_outside_a_launch_there_is_no_stream(self, call: Callable[[HostDriver], None]) -> None:
        with pytest.raises(RuntimeError, match="call it inside one"):
            call(HostDriver())


def test_scripts_are_right_as_often_as_planted() -> None:
    script = target_script(4000, 100, seed=1)
    often, seldom = (draft_script(script, 100, acceptance=share, seed=2) for share in (0.8, 0.5))
    right = [[drafted == token_id for drafted, token_id in zip(own, script, strict=True)] for own in (often, seldom)]
    assert [round(sum(own) / len(own), 1) for own in right] == [0.8, 0.5]
    assert all(higher for higher, lower in zip(*right, strict=True) if lower)
    assert max(often) < 100


def test_scripted_rows_stand_where_they_are_asked_for() -> None:
    decoder = GpuBench.dry().small_pair().target
    script = target_script(40, decoder.vocab_size, seed=3)
    model = ScriptedModel(decoder, script)
    cache = model.new_cache(30)
    model.forward(torch.tensor(script[:7]), cache, num_logits=0)
    rows_RV = model.forward(torch.tensor(script[7:10]), cache, num_logits=2)
    assert rows_RV.argmax(-1).tolist() == script[9:11]
    row_RV = model.forward_at(torch.tensor(script[10:12]), torch.tensor([10, 11]), cache, key_length=12, num_logits=1)
    assert row_RV.argmax(-1).tolist() == script[12:13]


@pytest.mark.parametrize("name", ["__bool__", "__int__", "tolist", "cpu", "nonzero", "unique", "__getitem__"])
def test_kinds_of_host_reads(name: str) -> None:
    value = torch.tensor([1])
    read = {"__getitem__": lambda: value[value > 0]}.get(name, lambda: getattr(value, name)())
    with HostGauge().forbid_host_reads(), pytest.raises(HostReadRefused):
        read()
    read()
