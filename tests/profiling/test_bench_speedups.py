"""Speed over plain decoding, prompt by prompt: the arithmetic by hand, the plot, and a whole run on a tiny target."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from models import DraftDesign, DraftTarget, MissingDependencyError, open_checkpoint
from profiling import bench
from profiling.bench import main
from profiling.bench_plot import write_plot
from profiling.bench_run import Run
from profiling.bench_speedups import format_speedups, prompt_speedups, summarise_speedups
from profiling.bench_summary import summarise
from profiling.peers.plans import REFERENCE
from profiling.prompts import BenchPrompt, PromptKind
from tests.support.bench_labels import label_of
from tests.support.draft_folders import write_random_draft
from tests.support.tiny_checkpoint import write_tiny_folder

PLAIN, AUTO = "slipstream float16, plain", "slipstream float16, auto"


def run(system: str, tpot_ms: float, *, prompt: int = 0, kind: PromptKind = PromptKind.CODE, **others: object) -> Run:
    """One run; on one prompt all systems write the same tokens."""
    fields: dict[str, object] = {"threads": 1, "ttft_ms": 5.0, "token_ids": (prompt, 7), **others}
    return Run(label=label_of(system), tpot_ms=tpot_ms, prompt=prompt, kind=kind, **fields)  # type: ignore[arg-type]  # by name


def both(plain_ms: float, auto_ms: float, **place: object) -> list[Run]:
    drafts = {"ngram": (8, 6)} if auto_ms < plain_ms else {"ngram": (4, 0), "small": (10, 5)}
    return [run(PLAIN, plain_ms, **place), run(AUTO, auto_ms, drafts=drafts, **place)]  # type: ignore[arg-type]  # by name


def four_pairs() -> list[Run]:
    return [
        *both(10, 5),
        *both(20, 25, prompt=1),
        *both(10, 4, kind=PromptKind.COPY),
        *both(12, 12, temperature=0.8),
    ]


def test_each_prompt_is_compared_with_its_own_plain_run_at_its_own_temperature() -> None:
    speedups = prompt_speedups([*four_pairs(), run(REFERENCE.name, 50)])
    assert [(one.temperature, one.kind, one.prompt, one.speedup) for one in speedups] == [
        (0, "code", 0, 2),
        (0, "code", 1, 0.8),
        (0, "copy", 0, 2.5),
        (0.8, "code", 0, 1),
    ]
    assert {one.system for one in speedups} == {AUTO}
    assert all(one.identical_to_plain for one in speedups)
    assert [row.speedup_over_plain for row in summarise(four_pairs()) if row.system == AUTO] == [1.4, 2.5, 1]


def test_a_peers_speculation_is_told_over_its_own_plain_decoding() -> None:
    lookup = REFERENCE.name.replace("plain", "prompt lookup 10")
    (one,) = prompt_speedups([run(PLAIN, 10), run(REFERENCE.name, 50), run(lookup, 40, token_ids=(0, 8))])
    assert (one.system, one.speedup, one.identical_to_plain) == (lookup, 1.25, False)


def test_medians_and_lowest_values_by_kind_and_over_all() -> None:
    rows = summarise_speedups(prompt_speedups(four_pairs()))
    assert {(row.temperature, row.kind): (len(row.speedups), row.median, row.lowest) for row in rows} == {
        (0, "code"): (2, 1.4, 0.8),
        (0, "copy"): (1, 2.5, 2.5),
        (0, None): (3, 2, 0.8),
        (0.8, "code"): (1, 1, 1),
        (0.8, None): (1, 1, 1),
        (None, "code"): (3, 1, 0.8),
        (None, "copy"): (1, 2.5, 2.5),
        (None, None): (4, 1.5, 0.8),
    }
    code = rows[0]
    assert code.drafts == {"ngram": (12, 6), "small": (10, 5)}
    header, first, *others = format_speedups(rows).splitlines()
    assert len(others) == 7
    assert " ".join(first.split("float16, auto")[1].split()) == "1.40 0.80 2.00 0.80 ngram 6/12, small 5/10"
    assert header.split()[0] == "threads"
    assert others[-1].split()[:3] == ["1", "all", "all"]
    assert "4 runs" in others[-1]


def test_one_temperature_and_kind_need_no_row_over_all() -> None:
    (row,) = summarise_speedups(prompt_speedups(both(10, 5)))
    assert (row.temperature, row.kind) == (0, "code")


def test_other_tokens_are_told() -> None:
    (one,) = prompt_speedups([run(PLAIN, 10), run(AUTO, 5, token_ids=(0, 8))])
    assert one.as_dict()["identical_to_plain"] is False
    assert one.as_dict()["speedup"] == 2


def test_there_is_a_dot_for_each_prompt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    from matplotlib.axes import Axes

    dots: list[float] = []
    draw = Axes.plot

    def noted(self: Axes, *values: list[float], **style: object) -> object:
        dots.extend(values[1])
        return draw(self, *values, **style)

    monkeypatch.setattr(Axes, "plot", noted)
    path = tmp_path / "bench.png"
    write_plot(prompt_speedups(four_pairs()), path)
    assert sorted(dots) == [0.8, 1, 2, 2.5]
    assert path.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="no speed-up to draw"):
        write_plot([], path)


def test_a_missing_matplotlib_is_told_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.delattr(bench, "measure")
    with pytest.raises(MissingDependencyError, match=r"slipstream\[plot\]', or leave out --out-dir$"):
        main(["--out-dir", str(tmp_path)])


@pytest.fixture
def same_threads() -> Iterator[None]:
    """A run sets the number of threads of the whole process."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("same_threads")
def test_drafts_are_compared_at_two_temperatures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A whole run with a tiny target, n-grams alone, a distilled draft alone, and both together."""
    pytest.importorskip("matplotlib")

    def short_prompts(kind: PromptKind) -> tuple[BenchPrompt, ...]:
        return (BenchPrompt(kind=kind, messages=({"role": "user", "content": f"{kind} ab ab ab"},)),)

    monkeypatch.setattr(bench, "bench_prompts", short_prompts)
    target = write_tiny_folder(tmp_path / "target")
    with open_checkpoint(target) as checkpoint:
        draft = write_random_draft(tmp_path / "small", DraftTarget.of(checkpoint), DraftDesign.FEATURE)
    arguments = ["--target", str(target), "--threads", "1", "--weights", "float32", "--prompts", "1"]
    arguments += ["--max-tokens", "24", "--rounds", "0", "--no-peers", "--temperatures", "0", "0.8"]
    arguments += ["--drafts", f"ngram,{draft}", "ngram", str(draft), "--out-dir", str(tmp_path / "out")]
    assert main(arguments) == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert {path.suffix for path in (tmp_path / "out").iterdir()} == {".json", ".png"}
    assert json.loads(next((tmp_path / "out").glob("*.json")).read_text()) == report
    assert list(report["drafts"]) == ["ngram+small", "ngram", "small"]
    prompts = report["prompts"]
    systems = {f"slipstream float32, auto with {label} draft" for label in report["drafts"]}
    systems.add("slipstream float32, sequential with ngram+small draft")
    assert {(one["system"], one["kind"], one["temperature"]) for one in prompts} == {
        (system, kind.value, temperature) for system in systems for kind in PromptKind for temperature in (0, 0.8)
    }
    assert len(prompts) == len(systems) * 3 * 2
    assert all(one["identical_to_plain"] and one["speedup"] > 0 and one["decision"] for one in prompts)
    assert not any(set(one["drafts"]) - {"ngram"} for one in prompts if one["system"].endswith("with ngram draft"))
    assert all(row["lowest"] <= row["median"] for row in report["speedups"])
