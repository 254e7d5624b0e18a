"""The program: a tiny pair traced end to end, under a made-up nsys and without, and what is refused beforehand."""

from __future__ import annotations

import gzip
import json
import os
import shlex
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from profiling.trace import bandwidth, program
from profiling.trace.arguments import DEFAULT_PROMPT, TraceArguments, parse_arguments
from profiling.trace.capture import TracedPair
from profiling.trace.program import main
from runtime import ContextLengthError, LoadSettings
from tests.support.chrome_format import read_trace
from tests.support.fake_nsys import FakeNsys
from tests.support.fake_nvtx import FakeNvtx
from tests.support.table_runtime import build_rig, similar_draft, table_target
from tests.support.tiny_checkpoint import write_tiny_gguf

PROMPT = "naïve 日本語 🙂 hello"
Say = Callable[[], tuple[str, str]]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gguf(tmp_path_factory.mktemp("pair") / "tiny.gguf")


@pytest.fixture
def options(target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a short trace of the tiny pair is asked for with; the default name would lie in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    pair = ["--target", str(target), "--draft", "early-exit:1", "--gamma", "3", "--threads", "2"]
    # Enough to be timed; how fast the memory is does not matter here.
    monkeypatch.setattr(bandwidth, "_CPU_BYTES", 1 << 20)
    return [*pair, "--max-tokens", "12", "--prompt", PROMPT]


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a trace of two tables in memory is asked for with; they take the place of whatever would be loaded."""

    async def load(settings: LoadSettings, **_: object) -> TracedPair:
        model = table_target()
        rig = build_rig(model, similar_draft(model), mode=settings.mode, gamma=3)
        return TracedPair(rig.runtime, rig.engine)

    monkeypatch.setattr(TracedPair, "load", load)
    monkeypatch.chdir(tmp_path)
    return ["--max-tokens", "12", "--prompt", "hello"]


@pytest.fixture
def no_load(monkeypatch: pytest.MonkeyPatch) -> None:
    async def load(*_: object, **__: object) -> TracedPair:
        raise AssertionError("a pair is being loaded")

    monkeypatch.setattr(TracedPair, "load", load)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU, as far as torch says; who tries to use it fails."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)


@pytest.fixture
def no_nsys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))


def last_record(output: str) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(output.splitlines()[-1])
    return record


class TestChromeTrace:
    def test_one_request_from_its_prompt_to_its_files(
        self, options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], no_nsys: None
    ) -> None:
        out = tmp_path / "run.json.gz"
        assert main([*options, "--out", str(out), "--torch", "--json"]) == 0
        output, errors = capsys.readouterr()
        assert errors.splitlines() == [f"nsys is not on PATH; a Chrome trace goes to {out} instead"]
        trace = read_trace(out)
        assert trace.about["prompt"] == PROMPT
        assert {"stream target", "stream draft", "rounds", "host"} == set(trace.tracks.values())
        assert {"verify", "judge"} <= {event["name"] for event in trace.on("stream target")}
        assert {"draft", "settle"} <= {event["name"] for event in trace.on("stream draft")}
        assert {arrow.name for arrow in trace.arrows} & {"rollback", "verdict"}
        assert "proposal" in {arrow.name for arrow in trace.arrows}
        assert trace.counter("process memory")
        assert trace.about["missing_counters"]["GPU busy"] == "it runs on the CPU"
        # The recorded request alone: one prefill, and no token of what warmed up or was profiled.
        assert [event["name"] for event in trace.on("stream target")].count("resume") == 1
        rounds = trace.on("rounds")
        record = last_record(output)
        assert record["figures"]["num_requests"] == 1
        assert record["figures"]["num_rounds"] == len(rounds)
        assert record["trace"] == str(out)
        assert record["pair"]["mode"] == "pipelined"
        assert f"trace: {out} (" in output
        assert "ui.perfetto.dev" in output
        torch_trace = tmp_path / "run.torch.json.gz"
        assert record["torch_trace"] == str(torch_trace)
        operators = json.loads(gzip.decompress(torch_trace.read_bytes()))["traceEvents"]
        threads = {event["tid"] for event in operators if event.get("cat") == "cpu_op"}
        # Both workers', on which the models run.
        assert len(threads - {threading.get_native_id()}) == 2
        assert "under that profiler" in output
        assert sorted(path.name for path in tmp_path.iterdir()) == ["run.json.gz", "run.torch.json.gz"]

    def test_on_virtual_streams_with_a_picture(
        self, options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        pytest.importorskip("matplotlib")
        picture = tmp_path / "rounds.svg"
        more = ["--streams", "virtual", "--contention", "1.5", "--picture", str(picture), "--json"]
        assert main([*options, "--no-nsys", *more]) == 0
        trace = read_trace(tmp_path / "slipstream-trace.json")
        assert set(trace.tracks.values()) == {"rounds", "host", "stream target", "stream draft"}
        assert trace.about["missing_counters"]["process memory"] == "the lanes ran by a virtual clock"
        assert "<svg" in picture.read_text()
        output, errors = capsys.readouterr()
        assert errors == ""
        assert last_record(output)["picture"] == str(picture)

    @pytest.mark.parametrize(
        ("mode", "streams"),
        [
            ("plain", {"stream target"}),
            ("sequential", {"stream target (target and draft)"}),
            ("pipelined", {"stream target", "stream draft"}),
        ],
    )
    def test_every_mode_has_a_track_for_each_stream(
        self, mode: str, streams: set[str], asked: list[str], tmp_path: Path
    ) -> None:
        assert main([*asked, "--mode", mode, "--no-nsys"]) == 0
        trace = read_trace(tmp_path / "slipstream-trace.json")
        assert set(trace.tracks.values()) == {"rounds", "host"} | streams
        assert trace.on("rounds")

    @pytest.mark.parametrize(
        ("changes", "has_nsys", "has_gpu", "reason"),
        [
            (["--device", "cpu"], False, True, "nsys is not on PATH"),
            (["--device", "cpu"], True, True, "nsys is for GPUs, and the pair runs on the CPU"),
            ([], True, False, "nsys is for GPUs, and there is none that torch can use"),
            (["--torch"], True, True, "torch's profiler and nsys cannot watch at the same time"),
            (["--torch"], False, True, "nsys is not on PATH"),
            (["--torch"], True, False, "nsys is for GPUs, and there is none that torch can use"),
        ],
    )
    def test_why_nsys_is_not_called_is_one_line(
        self,
        changes: list[str],
        has_nsys: bool,
        has_gpu: bool,
        reason: str,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        async def load(*_: object, **__: object) -> TracedPair:
            raise ValueError("loaded, and no further")

        monkeypatch.setattr(TracedPair, "load", load)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
        nsys = FakeNsys(monkeypatch, tmp_path, "exit 3") if has_nsys else None
        if not has_nsys:
            monkeypatch.setenv("PATH", str(tmp_path))
        out = tmp_path / "run.nsys-rep"
        assert main(["--out", str(out), *changes]) == 1
        assert capsys.readouterr().err.splitlines() == [
            f"{reason}; a Chrome trace goes to {tmp_path / 'run.json'} instead",
            "error: loaded, and no further",
        ]
        assert nsys is None or nsys.arguments is None

    def test_a_full_disk_is_one_line_and_leaves_the_old_file(
        self,
        asked: list[str],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        out = tmp_path / "run.json"
        out.write_text("yesterday's")

        def full(source: object, destination: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "replace", full)
        assert main([*asked, "--no-nsys", "--out", str(out)]) == 1
        output, errors = capsys.readouterr()
        assert errors == f"error: {out} cannot be written: No space left on device\n"
        assert "trace:" not in output
        assert [path.name for path in tmp_path.iterdir()] == ["run.json"]
        assert out.read_text() == "yesterday's"

    @pytest.mark.parametrize("during", ["warm_up", "capture", "answer"])
    @pytest.mark.parametrize(
        "error", [torch.OutOfMemoryError("CUDA out of\nmemory"), OSError(5, "I/O error"), ValueError()]
    )
    def test_what_fails_after_loading_is_one_line_too(
        self,
        during: str,
        error: Exception,
        asked: list[str],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        async def fail(*_: object, **__: object) -> None:
            raise error

        warm_up = TracedPair.warm_up
        monkeypatch.setattr(TracedPair, during, fail)
        if during == "answer":

            async def idle(self: TracedPair) -> None:
                assert warm_up

            monkeypatch.setattr(TracedPair, "warm_up", idle)
        assert main([*asked, "--no-nsys", "--torch"]) == 1
        said = " ".join(str(error).split()) or "ValueError"
        assert capsys.readouterr().err == f"error: {said}\n"
        assert list(tmp_path.iterdir()) == []

    async def test_an_error_of_the_request_is_heard_before_one_of_its_recording(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        model = table_target()
        rig = build_rig(model, similar_draft(model), gamma=3)

        async def stop() -> None:
            raise RuntimeError("no end")

        async with rig.runtime as runtime:
            monkeypatch.setattr(runtime, "stop_recording", stop)
            with pytest.raises(ContextLengthError) as caught:
                await TracedPair(runtime, rig.engine).capture("x" * 5000, 4)
        assert caught.value.__notes__ == ["and the recording could not be ended: no end"]

    def test_what_was_written_and_is_gone_is_not_called_written(
        self,
        asked: list[str],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        monkeypatch.setattr(program, "write_atomically", lambda path, content: None)
        assert main([*asked, "--no-nsys"]) == 1
        output, errors = capsys.readouterr()
        assert errors == "error: slipstream-trace.json was written and is not there: No such file or directory\n"
        assert "trace:" not in output


class TestUnderNsys:
    def test_the_line_that_is_printed_is_the_one_that_is_run(
        self,
        asked: list[str],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
        gpu: None,
    ) -> None:
        nsys = FakeNsys(monkeypatch, tmp_path, 'echo report > "$report"')
        given = [*asked, "--cuda-graph-trace", "--out", "a name.nsys-rep"]
        assert main([*given, "--print-command"]) == 0
        (line,) = capsys.readouterr().out.splitlines()
        assert nsys.arguments is None
        assert main(given) == 0
        assert shlex.split(line) == ["nsys", *(nsys.arguments or [])]
        assert "--cuda-graph-trace=node" in line
        output = capsys.readouterr().out
        assert "trace: a name.nsys-rep (" in output
        assert "nsys-ui 'a name.nsys-rep'" in output
        assert "nsys stats 'a name.nsys-rep'" in output

    def test_the_line_is_printed_where_there_is_no_nsys(
        self, capsys: pytest.CaptureFixture[str], no_nsys: None, no_load: None, tmp_path: Path
    ) -> None:
        assert main(["--print-command", "--out", str(tmp_path / "run")]) == 0
        output, errors = capsys.readouterr()
        assert errors == "nsys is not on PATH: install Nsight Systems before this line can run\n"
        command = shlex.split(output)
        assert command[:2] == ["nsys", "profile"]
        assert command[command.index("-o") + 1] == str(tmp_path / "run.nsys-rep")
        # Who runs the line by hand ends up in the program that nsys watches, not in another nsys.
        assert parse_arguments(command[command.index("profiling.trace") + 1 :]).under_nsys

    @pytest.mark.parametrize(
        ("body", "status", "said"),
        [
            ("exit 7", 7, "error: nsys, or the program under it, ended with status 7"),
            ("true", 1, "error: nsys ended without an error and without writing"),
        ],
    )
    def test_what_nsys_did_not_do_is_one_line(
        self,
        body: str,
        status: int,
        said: str,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
        no_load: None,
        gpu: None,
    ) -> None:
        FakeNsys(monkeypatch, tmp_path, body)
        assert main(["--out", str(tmp_path / "run")]) == status
        output, errors = capsys.readouterr()
        (line,) = errors.splitlines()
        assert line.startswith(said)
        assert output == ""

    def test_figures_come_from_the_program_that_it_watches(
        self,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
        no_load: None,
        gpu: None,
    ) -> None:
        inner = json.dumps({"figures": {"num_rounds": 5}})
        body = f"echo 'a table'; echo '{{not JSON'; echo '{inner}'; echo Generated; echo report > \"$report\""
        FakeNsys(monkeypatch, tmp_path, body)
        assert main(["--out", str(tmp_path / "run"), "--json"]) == 0
        output = capsys.readouterr().out
        assert output.splitlines()[:3] == ["a table", "{not JSON", "Generated"]
        report = str(tmp_path / "run.nsys-rep")
        assert last_record(output) == {"figures": {"num_rounds": 5}, "trace": report, "format": "nsys"}

    @pytest.mark.parametrize("more", [["--print-command"], []])
    def test_without_nvtx_it_says_what_will_be_missing_and_goes_on(
        self,
        more: list[str],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
        no_load: None,
        gpu: None,
    ) -> None:
        monkeypatch.setitem(sys.modules, "nvtx", None)
        FakeNsys(monkeypatch, tmp_path, 'echo report > "$report"')
        assert main(["--out", str(tmp_path / "run"), *more]) == 0
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("nvtx is not installed, so the report will have no ranges")
        assert line.endswith("pip install 'slipstream[trace]'")


class FakeCudaProfiler:
    """CUDA's profiler interface, with a look at the ranges at either end."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, nvtx: FakeNvtx) -> None:
        self.num_ranges: list[int] = []
        self._nvtx = nvtx
        for name in ("start", "stop"):
            monkeypatch.setattr(torch.cuda.profiler, name, self._look)

    def _look(self) -> None:
        assert self._nvtx.open == {}
        self.num_ranges.append(len(self._nvtx.closed))


class TestTheWatchedProgram:
    @pytest.fixture
    def nvtx(self, monkeypatch: pytest.MonkeyPatch) -> FakeNvtx:
        nvtx = FakeNvtx()
        monkeypatch.setitem(sys.modules, "nvtx", nvtx)
        return nvtx

    @pytest.fixture
    def profiler(self, monkeypatch: pytest.MonkeyPatch, nvtx: FakeNvtx, gpu: None) -> FakeCudaProfiler:
        return FakeCudaProfiler(monkeypatch, nvtx)

    def test_all_ranges_lie_between_the_profilers_calls(
        self,
        asked: list[str],
        tmp_path: Path,
        nvtx: FakeNvtx,
        profiler: FakeCudaProfiler,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        assert main(["--under-nsys", *asked, "--device", "cpu", "--json"]) == 0
        assert profiler.num_ranges == [0, len(nvtx.closed)]
        assert nvtx.domain_name == "slipstream"
        record = last_record(capsys.readouterr().out)
        assert record["machine"]["processor"]
        rounds = [item["payload"] for item in nvtx.closed if item["message"] == "round"]
        assert rounds == list(range(record["figures"]["num_rounds"]))
        # The report is nsys's affair.
        assert list(tmp_path.iterdir()) == []

    def test_a_request_that_fails_ends_the_profiling(
        self, asked: list[str], nvtx: FakeNvtx, profiler: FakeCudaProfiler
    ) -> None:
        with pytest.raises(ContextLengthError):
            main(["--under-nsys", *asked, "--device", "cpu", "--prompt", "x" * 5000])
        assert len(profiler.num_ranges) == 2
        assert nvtx.open == {}

    def test_without_a_gpu_there_is_nothing_to_collect(
        self, capsys: pytest.CaptureFixture[str], no_load: None, tmp_path: Path
    ) -> None:
        assert main(["--under-nsys", "--out", str(tmp_path / "run")]) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("error: nsys collects between calls of CUDA's profiler")


class TestNames:
    @pytest.mark.parametrize(
        ("out", "report", "chrome", "beside"),
        [
            ("run", "run.nsys-rep", "run.json", "run.torch.json.gz"),
            ("run.json", "run.nsys-rep", "run.json", "run.torch.json.gz"),
            ("run.json.gz", "run.nsys-rep", "run.json.gz", "run.torch.json.gz"),
            ("run.nsys-rep", "run.nsys-rep", "run.json", "run.torch.json.gz"),
            ("run.trace", "run.trace.nsys-rep", "run.trace", "run.trace.torch.json.gz"),
        ],
    )
    def test_each_file_has_one_that_its_viewer_knows(
        self, out: str, report: str, chrome: str, beside: str, tmp_path: Path
    ) -> None:
        arguments = parse_arguments(["--out", str(tmp_path / out)])
        paths = (arguments.report_path, arguments.chrome_path, arguments.torch_path)
        assert paths == tuple(tmp_path / name for name in (report, chrome, beside))

    def test_what_is_asked_by_default_is_a_pipeline(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        arguments: TraceArguments = parse_arguments([])
        assert arguments.settings.mode == "pipelined"
        assert arguments.prompt == DEFAULT_PROMPT
        assert arguments.chrome_path == Path("slipstream-trace.json")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--out", "missing/run.json"], "cannot be written: name a file in a folder that exists"),
        (["--out", "folder"], "folder cannot be written"),
        (["--out", "run.nsys-rep"], "run.json cannot be written"),
        (["--max-tokens", "0"], "max_tokens"),
        (["--max-tokens", "many"], "invalid int value"),
        (["--prompt", " \n"], "--prompt is empty"),
        (["--prompt", "\udc80"], "not text that UTF-8 can write"),
        (["--gamma", "99"], "gamma must be"),
        (["--mode", "fast"], "invalid choice"),
        (["--threads", "0"], "threads must be"),
        (["--device", "tpu"], "device must be"),
        (["--draft", "ngram", "--draft", "ngram"], "twice"),
        (["--contention", "0.5", "--streams", "virtual"], "--contention must lie in [1, 1000], got 0.5"),
        (["--contention", "2"], "--contention is for simulated lanes"),
        (["--streams", "virtual", "--device", "cuda"], "--streams virtual runs on the CPU"),
        (["--print-command", "--no-nsys"], "--print-command is for nsys, and --no-nsys does without"),
        (["--print-command", "--json"], "--print-command prints a command line and no figures"),
        (["--mode", "sequential", "--num-awaited", "2"], "--num-awaited has no meaning in sequential mode"),
        (["--mode", "plain", "--max-lead", "2"], "--max-lead has no meaning in plain mode"),
        (["--out", "t.svg", "--picture", "t.svg"], "--picture t.svg is where the trace goes"),
        (["--out", "t.svg", "--picture", "./folder/../t.svg"], "is where the trace goes"),
        (["--out", "t", "--torch", "--picture", "t.torch.json.gz"], "is where the trace goes"),
        (["--print-command", "--torch"], "--print-command is for nsys, and --torch does without"),
        (["--cuda-graph-trace", "--streams", "threads"], "--cuda-graph-trace is for nsys, and --streams does without"),
        (["--promt", "x"], "unrecognized arguments"),
    ],
)
def test_wrong_usage_is_told_before_anything_is_loaded(
    arguments: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    no_load: None,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "run.json").mkdir()
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert said in capsys.readouterr().err
