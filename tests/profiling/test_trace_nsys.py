"""nsys around the program: how it is called, what counts as a report, and that nothing is left running."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from profiling.trace import nsys
from profiling.trace.nsys import NsysError, nsys_command, run_nsys
from runtime import Mode
from scheduler import nvtx_markers
from tests.support.fake_machine import wait_until
from tests.support.fake_nsys import FakeNsys
from tests.support.fake_nvtx import FakeNvtx
from tests.support.table_runtime import Rig, build_rig, similar_draft, table_target
from tests.support.watched_model import Gate


class TestCommand:
    def test_it_is_the_one_that_nsys_documents(self) -> None:
        command = nsys_command(["--gamma", "3"], Path("/tmp/run.nsys-rep"), cuda_graph_trace=False)
        assert command == [
            *("nsys", "profile", "-t", "cuda,nvtx,osrt", "-s", "none"),
            *("--capture-range=cudaProfilerApi", "--capture-range-end=stop"),
            *("--force-overwrite=true", "-o", "/tmp/run.nsys-rep"),
            *(sys.executable, "-m", "profiling.trace", "--under-nsys", "--gamma", "3"),
        ]

    def test_graphs_are_looked_into_on_request(self) -> None:
        plain = nsys_command([], Path("a.nsys-rep"), cuda_graph_trace=False)
        looking = nsys_command([], Path("a.nsys-rep"), cuda_graph_trace=True)
        assert set(looking) - set(plain) == {"--cuda-graph-trace=node"}
        assert looking.index("--cuda-graph-trace=node") < looking.index(sys.executable)

    def test_a_percent_sign_is_no_placeholder(self) -> None:
        command = nsys_command([], Path("100%.nsys-rep"), cuda_graph_trace=False)
        assert command[command.index("-o") + 1] == "100%%.nsys-rep"

    def test_the_child_does_not_print_the_command_again(self) -> None:
        command = nsys_command(["--print-command", "--torch"], Path("a.nsys-rep"), cuda_graph_trace=False)
        assert command[command.index("--under-nsys") :] == ["--under-nsys", "--torch"]


class Runner:
    """Runs a made-up nsys."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.folder = folder
        self.report = folder / "run.nsys-rep"
        self._monkeypatch = monkeypatch

    def __call__(self, body: str, *, on_line: Callable[[str], None] | None = None) -> Path:
        FakeNsys(self._monkeypatch, self.folder, body)
        return run_nsys(nsys_command([], self.report, cuda_graph_trace=False), self.report, on_line=on_line)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Runner:
    return Runner(monkeypatch, tmp_path)


class TestReport:
    @pytest.mark.parametrize(
        ("body", "name"),
        [
            ('echo report > "$report"', "run.nsys-rep"),
            ('echo report > "$report.nsys-rep"', "run.nsys-rep.nsys-rep"),
            ('echo report > "${report%.nsys-rep}.qdrep"', "run.qdrep"),
        ],
    )
    def test_it_counts_where_it_was_seen(self, run: Runner, body: str, name: str) -> None:
        assert run(body) == run.folder / name

    @pytest.mark.parametrize("body", ["true", ': > "$report"', "echo done"])
    def test_nothing_written_is_a_failure(self, run: Runner, body: str) -> None:
        with pytest.raises(NsysError, match=r"without writing .*run\.nsys-rep") as caught:
            run(body)
        assert caught.value.status == 1

    def test_an_old_report_is_none_of_this_run(self, run: Runner) -> None:
        run.report.write_text("yesterday's")
        with pytest.raises(NsysError, match="without writing"):
            run("true")
        assert run.report.read_text() == "yesterday's"

    def test_an_old_report_may_be_replaced(self, run: Runner) -> None:
        run.report.write_text("yesterday's")
        assert run('echo a report of today > "$report"') == run.report

    @pytest.mark.parametrize(("body", "status"), [("exit 3", 3), ("kill -9 $$", 137)])
    def test_its_own_status_is_passed_on_whatever_was_written(self, run: Runner, body: str, status: int) -> None:
        with pytest.raises(NsysError, match=f"ended with status {status}") as caught:
            run(f'echo half > "$report"; {body}')
        assert caught.value.status == status

    def test_what_cannot_be_started_is_one_line(self, tmp_path: Path) -> None:
        with pytest.raises(NsysError, match="cannot be started: No such file"):
            run_nsys([str(tmp_path / "nsys"), "profile"], tmp_path / "run.nsys-rep")

    def test_its_lines_can_be_listened_to(self, run: Runner) -> None:
        lines: list[str] = []
        run('printf "one\\ntwo\\377\\n"; echo report > "$report"', on_line=lines.append)
        assert lines == ["one", "two\ufffd"]


def state_of(pid: int) -> str:
    """The state letter of a process (proc(5)); nothing where it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes through /proc")
class TestEndings:
    BODY = "{trap}sleep 600 & echo $! > sleeper.part; mv sleeper.part sleeper; while true; do wait; sleep 0.01; done"

    def end_while_it_runs(
        self,
        run: Runner,
        number: signal.Signals,
        *,
        trap: str = "",
        on_line: Callable[[str], None] | None = None,
    ) -> int:
        """Send this process a signal once nsys and its child run; returns the child's process number."""
        noted = run.folder / "sleeper"

        def interrupt() -> None:
            wait_until(noted.exists)
            os.kill(os.getpid(), number)

        thread = threading.Thread(target=interrupt)
        thread.start()
        try:
            run(f"cd {run.folder}\n{self.BODY.format(trap=trap)}", on_line=on_line)
        finally:
            thread.join()
        raise AssertionError("nsys ended by itself")

    def check_over(self, run: Runner) -> None:
        sleeper = int((run.folder / "sleeper").read_text())
        wait_until(lambda: state_of(sleeper) in ("", "Z"))

    def test_an_interrupt_ends_nsys_and_its_child(self, run: Runner) -> None:
        with pytest.raises(KeyboardInterrupt):
            self.end_while_it_runs(run, signal.SIGINT)
        self.check_over(run)

    def test_interrupted_it_may_print_what_it_likes_and_write_what_it_has(self, run: Runner) -> None:
        """More than a pipe holds, though nobody listens any more."""
        says = "i=0; while [ $i -lt 3000 ]; do echo line $i of a table that is as wide as this; i=$((i+1)); done"
        trap = f"trap '{says}; echo report > \"$report\"; exit 0' INT; "
        with pytest.raises(KeyboardInterrupt):
            self.end_while_it_runs(run, signal.SIGINT, trap=trap, on_line=lambda line: None)
        assert run.report.read_text() == "report\n"
        self.check_over(run)

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
    def test_so_does_what_ends_this_process(self, run: Runner, number: signal.Signals) -> None:
        before = signal.getsignal(number)
        with pytest.raises(SystemExit) as caught:
            self.end_while_it_runs(run, number)
        assert caught.value.code == 128 + number
        assert signal.getsignal(number) is before
        self.check_over(run)

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_a_signal_in_the_middle_of_the_start_leaves_nothing_running(
        self, run: Runner, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        start = subprocess.Popen

        def start_slowly(*arguments: Any, **options: Any) -> subprocess.Popen[str]:
            process = start(*arguments, **options)
            wait_until((run.folder / "sleeper").exists)
            os.kill(os.getpid(), number)
            return process

        monkeypatch.setattr(subprocess, "Popen", start_slowly)
        with pytest.raises((KeyboardInterrupt, SystemExit)):
            run(f"cd {run.folder}\n{self.BODY.format(trap='')}")
        self.check_over(run)

    def test_who_does_not_listen_is_killed(self, run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(nsys, "_PATIENCE_S", dict.fromkeys(nsys._PATIENCE_S, 0.05))
        with pytest.raises(KeyboardInterrupt):
            self.end_while_it_runs(run, signal.SIGINT, trap="trap '' INT TERM; ")
        self.check_over(run)


class TestRanges:
    """What nsys would see of a request that comes to nothing."""

    @pytest.fixture
    def fake(self, monkeypatch: pytest.MonkeyPatch) -> FakeNvtx:
        fake = FakeNvtx()
        monkeypatch.setitem(sys.modules, "nvtx", fake)
        return fake

    def rig(self) -> Rig:
        target = table_target()
        return build_rig(target, similar_draft(target), mode=Mode.PIPELINED, gamma=3)

    @pytest.mark.parametrize("side", ["target", "draft"])
    async def test_an_error_leaves_none_open(self, fake: FakeNvtx, side: str) -> None:
        rig = self.rig()
        async with rig.runtime as runtime:
            model = getattr(rig, side)
            model.fail_at(6, OSError("out of luck"))
            runtime.start_recording(nvtx_markers())
            with pytest.raises(OSError, match="out of luck"):
                await runtime.generate([5, 6, 7], max_tokens=40, temperature=0)
            await runtime.stop_recording()
        assert fake.open == {}
        assert {"round", "commit", "verify", "draft"} <= {item["message"] for item in fake.closed}

    async def test_a_cancelled_request_leaves_none_open(self, fake: FakeNvtx) -> None:
        rig = self.rig()
        async with rig.runtime as runtime:
            gate = Gate(rig.target, call=5)
            runtime.start_recording(nvtx_markers())
            task = asyncio.create_task(runtime.generate([5, 6, 7], max_tokens=40, temperature=0))
            await asyncio.to_thread(gate.wait_reached)
            assert fake.open != {}
            task.cancel()
            gate.open()
            with pytest.raises(asyncio.CancelledError):
                await task
            await runtime.stop_recording()
        assert fake.open == {}
        assert {item["message"] for item in fake.closed} >= {"round", "verify"}
