"""The gamma sweep as a program: its command line, its report, its page, and one small run of the real thing."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch

from profiling.sweep import __main__ as program
from profiling.sweep.__main__ import main
from profiling.sweep.answering import Answerer
from profiling.sweep.journal import UNFINISHED
from profiling.sweep.lock import FolderInUseError, folder_lock
from profiling.sweep.page import sweep_page
from profiling.sweep.plots import write_plots
from profiling.sweep.report import SweepReport, cells_of
from profiling.sweep.run import Cell, SweepRun, Turn
from profiling.sweep.settings import parse_arguments
from runtime import MissingDependencyError, Runtime, TokenStream
from tests.support import tiny_checkpoint
from tests.support.sweeps import planted_runs, settings_of
from tests.support.tiny_checkpoint import write_tiny_gguf
from tests.support.tiny_tokenizers import byte_level_metadata

MACHINE = {"processor": 'made <up> & "quoted"', "command": "python -m profiling.sweep --target '<b>&'"}
LOADED = {"target": "<script>alert(1)</script> & co", "draft": ["a<b"], "weights": "float32", "device": "cpu"}


def report_of(**changes: Any) -> SweepReport:
    settings = settings_of([2, 4, 6], num_prompts=5)
    runs = changes.pop("runs", None) or planted_runs(settings, {2: 1.3, 4: 1.5, 6: 1.2})
    loaded = changes.pop("loaded", LOADED)
    return SweepReport.of(runs, settings=settings, machine={**MACHINE, **changes}, loaded=loaded)


class Page(HTMLParser):
    """Checks that tags are closed as they were opened, and collects what is shown."""

    VOID = ("meta", "img")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []
        self.images: list[str] = []
        self.num_rows = 0
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.num_rows += tag == "tr"
        if tag == "img":
            self.images.append(dict(attrs)["src"] or "")
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


class TestPage:
    def test_is_well_formed_and_shows_foreign_text_as_text(self) -> None:
        text = sweep_page(report_of(), {})
        page = Page(text)
        assert page.open == []
        assert "<script>" not in text
        shown = " ".join(page.text)
        for foreign in (LOADED["target"], "a<b", MACHINE["processor"], MACHINE["command"]):
            assert str(foreign) in shown
        assert "batch size 1" in shown
        report = report_of()
        assert all(found.text in shown for found in report.recommendations if found.kind == "all")

    def test_says_whose_the_other_figures_are(self) -> None:
        text = sweep_page(report_of(), {})
        assert text.index("somebody else's figures") < text.index("<td>28</td>")
        assert "Not measured here" in text

    def test_has_a_row_for_each_cell_and_marks_what_is_recommended(self) -> None:
        report = report_of()
        page = Page(sweep_page(report, {}))
        # Its own head and rows, those of the example, and what it ran on.
        assert page.num_rows == 1 + 4 * 8 + 1 + 5 + len(MACHINE) - 1 + len(LOADED)
        marked = re.findall(r'<tr class="best">.*?</tr>', sweep_page(report, {}))
        assert len(marked) == 4 * 2
        assert all("<td>4</td>" in row for row in marked)

    def test_shouts_where_an_output_differs(self) -> None:
        runs = planted_runs(settings_of(num_prompts=5), {2: 1.3, 4: 1.5, 6: 1.2})
        runs[3] = replace(runs[3], token_ids=(1, 2, 3))
        report = report_of(runs=runs)
        assert 'class="alarm">OUTPUTS DIFFER: 1 of 135' in sweep_page(report, {})
        assert 'class="alarm"' not in sweep_page(report_of(), {})
        assert sum(line.endswith("OUTPUTS DIFFER") for line in report.as_text().splitlines()) == 2
        assert report.is_broken

    def test_on_a_gpu_a_near_tie_is_no_fault(self) -> None:
        runs = planted_runs(settings_of(num_prompts=5), {2: 1.3, 4: 1.5, 6: 1.2})
        runs[3] = replace(runs[3], token_ids=(1, 2, 3))
        report = report_of(runs=runs, loaded={**LOADED, "device": "cuda:0"})
        assert not report.is_broken
        assert "134 of 135 outputs are identical to plain decoding's. On cuda:0" in report.as_text()
        assert "OUTPUTS DIFFER" not in report.as_text()
        assert sum(line.endswith("some outputs differ") for line in report.as_text().splitlines()) == 2
        assert 'class="alarm"' not in sweep_page(report, {})
        assert report.as_dict({})["identical"] is False

    def test_plots_become_part_of_it(self, tmp_path: Path) -> None:
        pytest.importorskip("matplotlib")
        plots = write_plots(report_of(), tmp_path, "today-sweep")
        assert [path.name for path in plots.values()] == [
            f"today-sweep-{what}.png" for what in ("speedup", "position", "length")
        ]
        assert all(path.read_bytes().startswith(b"\x89PNG") for path in plots.values())
        images = Page(sweep_page(report_of(), plots)).images
        assert len(images) == 3
        assert all(image.startswith("data:image/png;base64,iVBOR") for image in images)


class TestReport:
    def test_the_table_has_a_line_for_each_row_with_dashes_for_what_is_unknown(self) -> None:
        report = report_of()
        lines = report.as_text().splitlines()
        table = lines[2 : 3 + len(report.rows)]
        assert len({len(line.rstrip()) for line in table}) == 1
        assert lines[0].endswith("batch size 1, 24 tokens an answer, 5 prompt(s) of each kind.")
        plain, two = (cells_of(row) for row in report.rows[:2])
        assert plain == ("0", "code", "plain", "-", "-", "-", "1.00", "1.00", "1.00", "20.10")
        assert cells_of(report.rows[7])[:4] == ("0", "code", "auto", "adaptive")
        assert two == ("0", "code", "sequential", "2", "50 %", "2.00", "1.30", "1.30", "1.30", "15.46")

    def test_a_busy_machine_is_noticed(self) -> None:
        runs = planted_runs(settings_of(), {2: 1.3, 4: 1.5, 6: 1.2}, noise=0.2)
        assert "That is much" in report_of(runs=runs).noise_in_words
        assert "That is much" not in report_of().noise_in_words

    def test_everything_can_be_written_as_json(self) -> None:
        written = json.loads(json.dumps(report_of().as_dict({})))
        assert written["batch_size"] == 1
        assert written["identical"] is True
        assert written["noise"]["median"] == pytest.approx(0.01)
        assert len(written["rows"]) == 4 * 8
        overall = [found for found in written["recommendations"] if found["kind"] == "all" and found["over_all_modes"]]
        assert [(found["mode"], found["gamma"]) for found in overall] == [("sequential", 4)]


class TestArguments:
    @pytest.mark.parametrize(
        ("arguments", "complaint"),
        [
            (["--gammas", "0"], "--gammas must be 1 to 15, got 0"),
            (["--gammas", "4", "16"], "--gammas must be 1 to 15, got 4 16"),
            (["--gammas"], "--gammas"),
            (["--modes", "plain"], "--modes"),
            (["--modes", "auto"], "--modes"),
            (["--prompts", "7"], "--prompts must be 1 to 6"),
            (["--prompts", "0"], "--prompts must be 1 to 6"),
            (["--max-tokens", "21"], "--max-tokens must be at least 22, two rounds of gamma 10, got 21"),
            (
                ["--gammas", "2", "--max-tokens", "17"],
                "--max-tokens must be at least 18, two rounds of gamma 8, got 17",
            ),
            (["--temperatures", "-1"], "temperature"),
            (["--temperatures", "nan"], "temperature"),
            (["--kinds", "poem"], "--kinds"),
            (["--draft", "none"], "--draft none names no draft"),
            (["--draft", "ngram,"], "draft may not be empty"),
            (["--draft", "ngram", "--draft", "ngram"], "twice"),
            (["--draft", "auto,ngram"], "draft 'auto' chooses all"),
            (["--threads", "0"], "threads"),
            (["--device", "gpu"], "device"),
            (["--weights", "int4"], "--weights"),
            (["--out-dir", "README.md/sweep"], "--out-dir"),
            (["--speed", "4"], "unrecognized"),
        ],
    )
    def test_bad_ones_end_before_anything_is_loaded(
        self, arguments: list[str], complaint: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.delattr(program, "_measure")
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 2
        *_, last = capsys.readouterr().err.splitlines()
        assert complaint in last

    def test_quick_measures_less_of_what_was_not_said(self) -> None:
        full, quick = (parse_arguments(arguments).settings for arguments in ([], ["--quick"]))
        assert full.gammas == (2, 4, 6, 8, 10)
        assert quick.num_prompts < full.num_prompts
        assert quick.max_tokens < full.max_tokens
        told = parse_arguments(["--quick", "--gammas", "3", "1", "3", "--prompts", "2"]).settings
        assert (told.gammas, told.num_prompts, told.max_tokens) == ((1, 3), 2, quick.max_tokens)

    def test_drafts_may_be_repeated_or_have_commas(self) -> None:
        for arguments in (["--draft", "ngram,early-exit:2"], ["--draft", "ngram", "--draft", "early-exit:2"]):
            assert parse_arguments(arguments).settings.as_dict()["draft"] == ["ngram", "early-exit:2"]

    def test_a_runtime_is_loaded_for_all_modes_and_no_smaller_gamma_than_by_default(self) -> None:
        options = parse_arguments(["--gammas", "4", "2", "--modes", "sequential"]).settings.load_options()
        assert (options["mode"], options["max_gamma"]) == ("auto", 8)
        assert parse_arguments([]).settings.load_options()["max_gamma"] == 10


@pytest.fixture
def same_threads() -> Iterator[None]:
    """A run sets the number of threads of the whole process."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def command(tmp_path: Path, same_threads: None) -> list[str]:
    """A sweep of seven cells on a checkpoint of a few kilobytes, one prompt of two kinds."""
    target = write_tiny_gguf(tmp_path / "tiny.gguf", max_position_embeddings=1024)
    pair = ["--target", str(target), "--draft", "ngram,early-exit:1", "--weights", "float32", "--threads", "2"]
    extent = [
        "--gammas",
        "1",
        "3",
        "--prompts",
        "1",
        "--kinds",
        "code",
        "chat",
        "--max-tokens",
        "20",
        "--device",
        "cpu",
    ]
    return [*pair, *extent, "--out-dir", str(tmp_path / "out")]


class TestRunning:
    def test_a_small_sweep_that_is_interrupted_and_gone_on_with(
        self, command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Interrupted in its second prompt; the same command ends it, and then another one begins anew."""
        pytest.importorskip("matplotlib")
        out, answered = tmp_path / "out", list[tuple[Turn, Cell]]()
        real_answer = Answerer.answer

        async def answer(self: Answerer, turn: Turn, cell: Cell) -> SweepRun:
            if len(answered) == 9:
                raise KeyboardInterrupt
            answered.append((turn, cell))
            return await real_answer(self, turn, cell)

        monkeypatch.setattr(Answerer, "answer", answer)
        with pytest.raises(KeyboardInterrupt):
            main([*command, "--temperatures", "0.8"])
        assert f"9 runs are kept in {out / UNFINISHED}; the same command goes on" in capsys.readouterr().err

        asked: list[dict[str, Any]] = []
        real_stream = Runtime.stream

        def stream(self: Runtime, prompt: Any, **options: Any) -> TokenStream:
            asked.append(options)
            return real_stream(self, prompt, **options)

        monkeypatch.setattr(Answerer, "answer", real_answer)
        monkeypatch.setattr(Runtime, "stream", stream)
        assert main([*command, "--temperatures", "0.8"]) == 0
        timed = [options for options in asked if options["max_tokens"] == 20]
        speculating = {(mode, gamma) for mode in ("sequential", "pipelined") for gamma in (1, 3)}
        assert Counter((options["mode"], options["gamma"]) for options in timed) == {
            ("plain", None): 2,
            ("auto", None): 1,
            **dict.fromkeys(speculating, 1),
        }
        assert {(options["temperature"], options["seed"]) for options in timed} == {(0.8, 1)}
        printed = capsys.readouterr()
        assert "going on: 7 of 14 runs were made before" in printed.err
        *_, last = printed.out.splitlines()
        report = json.loads(last)
        assert (report["num_runs"], report["identical"], report["batch_size"]) == (14, True, 1)
        assert report["loaded"]["draft"] == ["ngram", "tiny (first 1 layers)"]
        assert {(row["mode"], row["gamma"]) for row in report["rows"]} == {
            ("plain", None),
            ("auto", None),
            *speculating,
        }
        assert all(row["tpot_ms"] > 0 and row["lowest_speedup"] > 0 for row in report["rows"])
        proposing = [row for row in report["rows"] if row["gamma"] == 3]
        assert all(len(row["acceptance_rate_per_position"]) == 3 for row in proposing)
        name = Path(report["files"]["json"]).stem
        assert {path.name for path in out.iterdir()} == {
            f"{name}{ending}" for ending in (".json", ".html", ".jsonl", "-speedup.png", "-position.png", "-length.png")
        }
        assert json.loads((out / f"{name}.json").read_text()) == report
        assert len((out / f"{name}.jsonl").read_text().splitlines()) == 1 + 14
        assert len(Page((out / f"{name}.html").read_text()).images) == 3

    def test_without_matplotlib_it_says_so_first_or_leaves_plots_out(
        self, command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
        with monkeypatch.context() as patch:
            patch.delattr(program, "_measure")
            with pytest.raises(MissingDependencyError, match=r"pip install 'slipstream\[plot\]', or give --no-plots"):
                main(command)
        assert main([*command, "--no-plots", "--kinds", "code", "--modes", "sequential"]) == 0
        report = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert set(report["files"]) == {"json", "html", "jsonl"}
        assert Page(Path(report["files"]["html"]).read_text()).images == []

    def test_a_base_model_without_a_chat_template_reads_plain_text(
        self, command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(
            tiny_checkpoint,
            "byte_level_metadata",
            lambda: {name: value for name, value in byte_level_metadata().items() if name != "tokenizer.chat_template"},
        )
        write_tiny_gguf(tmp_path / "tiny.gguf", max_position_embeddings=1024)
        assert main([*command, "--no-plots", "--kinds", "code", "--modes", "sequential"]) == 0
        assert json.loads(capsys.readouterr().out.splitlines()[-1])["identical"] is True

    def test_a_mode_that_a_runtime_does_not_have_is_left_out_or_refused(
        self, command: list[str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        """One thread is no choice to make."""
        alone = [*command, "--no-plots", "--kinds", "code", "--threads", "1"]
        assert main([*alone, "--modes", "pipelined"]) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("error: nothing can overlap here, so there is no pipelined mode to measure; it takes")
        assert main(alone) == 0
        printed = capsys.readouterr()
        assert "note: nothing can overlap here, so there is no pipelined mode to measure" in printed.err
        report = json.loads(printed.out.splitlines()[-1])
        assert {row["mode"] for row in report["rows"]} == {"plain", "sequential", "auto"}
        assert report["recommendations"][-1]["text"].startswith("too few runs to recommend anything: 1 cannot")

    def test_a_folder_that_another_sweep_writes_to_is_refused(self, command: list[str], tmp_path: Path) -> None:
        (tmp_path / "out").mkdir()
        with folder_lock(tmp_path / "out"), pytest.raises(FolderInUseError, match="name another --out-dir"):
            main([*command, "--no-plots"])

    def test_a_context_without_room_is_refused_in_one_line(
        self, command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main([*command, "--max-tokens", "900"]) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert re.fullmatch(r"error: .* no room for 900 behind prompt 1 of kind code.*--max-tokens.*", line)
        assert not (tmp_path / "out" / UNFINISHED).exists()
