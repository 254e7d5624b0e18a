"""The GPU check, run dry: every check passes, and each of them notices a fault in what it checks."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from models import Decoder
from profiling import gpu_check
from profiling.gpu_checks import rejection
from profiling.gpu_checks.bench import GpuBench, layer_bytes, table_bytes
from profiling.gpu_checks.check import CannotRun, CheckResult, Kind
from profiling.gpu_checks.host_driver import HostDriver
from profiling.gpu_checks.model_calls import bytes_moved
from profiling.gpu_checks.plan import ALL_CHECKS
from profiling.gpu_checks.record import FORMAT
from scheduler import CudaEvent, CudaStream, DeviceMemory, PinnedRing
from scheduler.on_device import NoiseTable
from scheduler.on_device import target as target_module
from scheduler.on_device.chain import DeviceChain
from scheduler.on_device.target import DeviceTarget
from scheduler.streams.cuda.awaiting import Awaited, PollingWaiter
from scheduler.transforms import scaled

pytestmark = pytest.mark.timeout(600)

NAMES = [check.name for check in ALL_CHECKS]
CORRECTNESS = {check.name for check in ALL_CHECKS if check.kind is Kind.CORRECTNESS}


def dry_run(folder: Path, *options: str) -> tuple[int, dict[str, Any]]:
    path = folder / "record.json"
    status = gpu_check.main(["--dry-run", "--out", str(path), *options])
    return status, json.loads(path.read_text())


def faults_of(folder: Path, name: str) -> str:
    """What a check says that is to fail; empty if it passed."""
    status, record = dry_run(folder, "--only", name)
    (check,) = record["checks"]
    assert status == (1 if check["status"] == "failed" else 0)
    assert record["passed"] == (status == 0)
    return "\n".join(check["faults"])


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    status, record = dry_run(tmp_path_factory.mktemp("gpu"))
    assert status == 0, record
    return record


class TestDryRun:
    def test_every_check_runs_and_is_right(self, record: dict[str, Any]) -> None:
        found = {check["name"]: check["status"] for check in record["checks"]}
        assert found == {name: "passed" if name in CORRECTNESS else "measured" for name in NAMES}
        assert list(found) == NAMES
        assert record["skipped"] == []
        assert record["passed"] is True
        assert record["dry_run"] is True
        assert record["format"] == FORMAT

    def test_each_check_says_what_it_did(self, record: dict[str, Any]) -> None:
        keys = {field.name for field in dataclasses.fields(CheckResult)}
        for check in record["checks"]:
            assert set(check) == keys
            assert check["summary"]
            assert check["figures"]
            assert check["faults"] == []
            assert check["took_s"] > 0

    def test_machine_and_device_are_named(self, record: dict[str, Any]) -> None:
        assert {"processor", "python", "torch", "date", "command"} <= record["machine"].keys()
        assert {"name", "uuid", "cuda", "driver", "capability", "total_bytes"} <= record["device"].keys()
        assert record["device"]["driver"]

    def test_drafts_of_all_kinds_were_at_work(self, record: dict[str, Any]) -> None:
        figures = figures_of(record, "equality")
        assert 0 < figures["num_accepted"] < figures["num_proposed"]
        assert figures["num_hits"] > 0
        assert figures["twin_acceptance"] == 1.0
        assert figures["num_ties"] == 0

    def test_planted_acceptance_orders_the_rows(self, record: dict[str, Any]) -> None:
        rows = figures_of(record, "planted")["rows"]
        assert rows[0]["tokens_a_round"] == 1
        assert rows[0]["speed_up"] == 1
        by_system: dict[str, list[float]] = {}
        for row in rows[1:]:
            by_system.setdefault(row["system"].partition(",")[0], []).append(row["accepted_share"])
        assert set(by_system) == {"sequential", "pipelined"}
        for shares in by_system.values():
            assert shares == sorted(shares)
            assert shares[0] < shares[-1] <= 1

    def test_a_call_is_timed_in_three_ways(self, record: dict[str, Any]) -> None:
        figures = figures_of(record, "lane-costs")
        for name in ("draft step", *(f"verify {width}" for width in range(1, 10))):
            for way in ("eager_ms", "queued_ms", "host_ms"):
                spread = figures[name][way]
                assert 0 < spread["low"] <= spread["median"] <= spread["high"]

    def test_what_a_verify_reads(self) -> None:
        bench = GpuBench.dry()
        target = bench.large_pair().target
        config = target.config
        matrices = 2 * (config.hidden_size * config.vocab_size)
        per_layer = config.hidden_size * (
            config.hidden_size * 2 + 2 * config.num_kv_heads * config.head_dim + 3 * config.intermediate_size
        )
        assert bytes_moved(target, 0) == matrices + 2 * config.num_layers * per_layer
        # Norms, biases and the embedding are all that is left out.
        left_out = target.num_weight_bytes - bytes_moved(target, 0) - matrices
        assert 0 < left_out < 0.03 * target.num_weight_bytes


def figures_of(record: dict[str, Any], name: str) -> dict[str, Any]:
    (check,) = [check for check in record["checks"] if check["name"] == name]
    figures: dict[str, Any] = check["figures"]
    return figures


def misjudge(monkeypatch: pytest.MonkeyPatch) -> None:
    """Judge each token of a block by the row beside its own."""
    judge = target_module.judge_on_device

    def misplaced(law: Any, noise: Any, logits_RV: torch.Tensor, **options: Any) -> Any:
        return judge(law, noise, logits_RV.roll(1, 0), **options)

    monkeypatch.setattr(target_module, "judge_on_device", misplaced)


class TestPlantedFaults:
    @pytest.mark.parametrize("name", ["equality", "churn", "planted"])
    def test_a_judgement_by_the_wrong_row(self, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        misjudge(monkeypatch)
        assert {"equality": "instead of", "churn": "instead of", "planted": "not the script's"}[name] in faults_of(
            tmp_path, name
        )

    def test_a_wait_that_is_left_out(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(CudaStream, "wait", lambda self, event: None)
        faults = faults_of(tmp_path, "streams")
        assert "did not wait" in faults
        assert "raised LookupError, nothing, nothing" in faults

    def test_events_that_pass_at_once(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(CudaEvent, "done", lambda self: True)
        assert "passed after" in faults_of(tmp_path, "streams")

    def test_an_await_that_blocks(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def block(self: PollingWaiter, point: Awaited) -> Any:
            point.wait_error()
            yield from ()

        monkeypatch.setattr(PollingWaiter, "wait_for", block)
        faults = faults_of(tmp_path, "streams")
        assert "awaiting by poll held the event loop up" in faults
        assert "awaiting by thread" not in faults

    def test_stale_work_that_runs(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        launch = CudaStream.launch
        monkeypatch.setattr(
            CudaStream,
            "launch",
            lambda self, work, **options: launch(self, work, **{**options, "generation": None}),
        )
        assert "of an old and a new generation ran ['old', 'new']" in faults_of(tmp_path, "streams")

    def test_a_position_that_is_off(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        forward_at = Decoder.forward_at
        monkeypatch.setattr(
            Decoder,
            "forward_at",
            lambda self, ids_T, positions_T, cache, **options: forward_at(
                self, ids_T, (positions_T - 1).clamp(min=0), cache, **options
            ),
        )
        faults = faults_of(tmp_path, "logits")
        assert "float32, at given positions: logits differ from float64" in faults
        assert "one block" not in faults

    def test_a_host_read(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        drawn = DeviceChain._drawn

        def looked_at(self: DeviceChain, log_weights_1V: torch.Tensor) -> torch.Tensor:
            token_id = drawn(self, log_weights_1V)
            assert token_id.item() >= 0
            return token_id

        monkeypatch.setattr(DeviceChain, "_drawn", looked_at)
        faults = faults_of(tmp_path, "host-reads")
        assert "pipelined, gamma 4, lead 4: a launch called item, which waits for the device" in faults
        assert "plain" not in faults

    def test_one_copy_too_many(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        copy = PinnedRing.copy

        def twice(self: PinnedRing, source: torch.Tensor) -> Any:
            copy(self, source).release()
            return copy(self, source)

        monkeypatch.setattr(PinnedRing, "copy", twice)
        assert "plain: 24 copies in 12 rounds" in faults_of(tmp_path, "host-reads")

    def test_a_test_that_accepts_too_much(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(
            NoiseTable,
            "uniform_R",
            lambda self, purpose, positions_R: torch.zeros_like(positions_R, dtype=torch.float64),
        )
        faults = faults_of(tmp_path, "rejection")
        assert "judgement: total variation" in faults
        assert "sequential, gamma 3: total variation" in faults
        assert "pipelined, gamma 3, lead 3: total variation" in faults

    def test_a_q_that_did_not_draw(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        judge = rejection.judge_on_device

        def misled(*arguments: Any, draft_probabilities: list[torch.Tensor], **options: Any) -> Any:
            wrong = [scaled(row_V.log(), 0.0, 0.3).softmax(-1) for row_V in draft_probabilities]
            return judge(*arguments, draft_probabilities=wrong, **options)

        monkeypatch.setattr(rejection, "judge_on_device", misled)
        assert "judgement: total variation" in faults_of(tmp_path, "rejection")

    def test_a_leak(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        judge = DeviceTarget.judge
        kept = []

        def leaky(self: DeviceTarget, decoding: Any, history: Any, plan: Any, forwarded: Any, *rest: Any) -> Any:
            kept.append(forwarded.logits_RV)
            return judge(self, decoding, history, plan, forwarded, *rest)

        monkeypatch.setattr(DeviceTarget, "judge", leaky)
        faults = faults_of(tmp_path, "memory")
        assert kept
        assert "plain: allocated_bytes grew by" in faults
        assert "pipelined, gamma 4, lead 4: allocated_bytes grew by" in faults

    def test_a_ring_that_forgets_its_readers(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(PinnedRing, "_check_free", lambda self, index: None)
        faults = faults_of(tmp_path, "ring")
        assert "still unread" in faults
        assert "still on its way" in faults

    def test_a_ring_that_takes_the_wrong_slot(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def settled(self: PinnedRing, index: int) -> None:
            self._events[index] = None
            self._slots[index] = None

        monkeypatch.setattr(PinnedRing, "num_slots", property(lambda self: 1))
        monkeypatch.setattr(PinnedRing, "_check_free", settled)
        assert "were not what the device had written" in faults_of(tmp_path, "ring")


class TestProgram:
    def test_without_a_gpu_it_says_so(self, capsys: pytest.CaptureFixture[str]) -> None:
        if torch.cuda.is_available():
            pytest.skip("there is a GPU")
        assert gpu_check.main([]) == 2
        told = capsys.readouterr()
        assert told.out == ""
        assert len(told.err.strip().splitlines()) == 1
        assert "no GPU to check" in told.err
        assert "--dry-run" in told.err

    def test_what_does_not_fit_is_listed(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        status, record = dry_run(tmp_path, "--minutes", "0.01")
        assert status == 0
        assert record["skipped"] == NAMES
        assert all("give more --minutes" in check["summary"] for check in record["checks"])
        table = capsys.readouterr().out
        assert all(f"skipped  {name} " in table for name in NAMES)

    @pytest.mark.parametrize("minutes", ["0", "-1", "nan"])
    def test_minutes_are_checked(self, minutes: str, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit):
            gpu_check.main(["--dry-run", "--minutes", minutes])
        assert "--minutes must be above 0" in capsys.readouterr().err

    def test_failures_come_first(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(PinnedRing, "_check_free", lambda self, index: None)
        status, record = dry_run(tmp_path, "--only", "bandwidth", "streams", "ring")
        assert status == 1
        assert [check["name"] for check in record["checks"]] == ["streams", "ring", "bandwidth"]
        lines = capsys.readouterr().out.splitlines()
        assert lines[0].startswith("failed   ring")
        assert "! a copy went into a slot" in lines[1]
        assert [line.split()[1] for line in lines if line.startswith(("passed", "measured"))] == [
            "streams",
            "bandwidth",
        ]

    def test_it_needs_no_test_library_and_no_transformers(self) -> None:
        program = (
            "import sys\n"
            "for name in ('pytest', 'pytest_asyncio', 'hypothesis', 'transformers', 'matplotlib', 'tests'):\n"
            "    sys.modules[name] = None\n"
            "from profiling.gpu_check import main\n"
            "sys.exit(main(['--dry-run', '--only', 'equality', 'ring', 'occupancy']))\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert "passed   equality" in done.stdout

    def test_budgets_fit_into_the_default_minutes(self) -> None:
        assert sum(check.budget_s for check in ALL_CHECKS) < 60 * gpu_check.DEFAULT_MINUTES

    def test_a_target_that_does_not_fit_is_cut(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def with_room(share: float) -> GpuBench:
            bench = GpuBench.dry()
            config = bench.sizes.large_target
            whole_bytes = 2 * table_bytes(config) + config.num_layers * layer_bytes(config)
            free_bytes = int(share * whole_bytes / 0.6)
            monkeypatch.setattr(
                HostDriver, "memory", lambda self: DeviceMemory(free_bytes=free_bytes, total_bytes=free_bytes)
            )
            return bench

        assert with_room(1.01).large_pair().target.config.num_layers == 4
        assert 1 <= with_room(0.8).large_pair().target.config.num_layers < 4
        with pytest.raises(CannotRun, match="hold no layer"):
            with_room(0.01).large_pair()

    def test_small_memory_skips_and_says_why(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(HostDriver, "memory", lambda self: DeviceMemory(free_bytes=1000, total_bytes=1000))
        status, record = dry_run(tmp_path, "--only", "planted")
        assert status == 0
        assert record["skipped"] == ["planted"]
        assert "hold no layer" in record["checks"][0]["summary"]
