"""A whole benchmark with peers on a tiny target: made-up libraries beside our own runtime, one of them missing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from profiling import bench
from profiling.bench import main
from profiling.prompts import BenchPrompt, PromptKind
from tests.support.fake_peers import install_fake_peers
from tests.support.tiny_checkpoint import write_tiny_gguf


@pytest.fixture
def few_short_prompts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """And the number of threads of this process as it was."""
    before = torch.get_num_threads()

    def short_prompts(kind: PromptKind) -> tuple[BenchPrompt, ...]:
        return (BenchPrompt(kind=kind, messages=({"role": "user", "content": f"{kind} ab ab ab"},)),)

    monkeypatch.setattr(bench, "bench_prompts", short_prompts)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("few_short_prompts")
def test_peers_are_measured_missing_or_lost_and_the_report_says_which(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """llama.cpp's lookup writes other tokens than its plain decoding; the latter dies at the last prompt.

    OpenVINO is not there. What they are asked: a trial, a prompt that warms up, and one prompt of each kind, plain
    decoding each of these twice; before all but the trial a few tokens that wake them.
    """
    pytest.importorskip("matplotlib")
    (tmp_path / "fakes").mkdir()
    install_fake_peers(tmp_path / "fakes", monkeypatch, fault="other,die:12", missing=("openvino_genai",))
    target, out = write_tiny_gguf(tmp_path / "tiny.gguf"), tmp_path / "out"
    arguments = (
        f"--target {target} --threads 1 --weights float32 --prompts 1 --max-tokens 16 --rounds 0 --out-dir {out}"
    )
    named = "--drafts ngram --peers llama.cpp openvino --lookup-tokens 4"
    assert main([*arguments.split(), *named.split()]) == 0
    *shown, last = capsys.readouterr().out.splitlines()
    report = json.loads(last)

    plain, lookup = "llama.cpp F32, plain", "llama.cpp F32, prompt lookup 4"
    rows = {(row["system"], row["kind"]): row for row in report["rows"]}
    answered = {"code", "chat"}
    assert {kind for system, kind in rows if system == plain} == answered
    assert {kind for system, kind in rows if system == lookup} == {*answered, "copy"}
    assert {kind for system, kind in rows if system == "slipstream float32, plain"} == {*answered, "copy"}
    for kind in answered:
        assert rows[plain, kind]["identical_to_plain"] is True
        assert rows[lookup, kind]["identical_to_plain"] is False
    assert all(row["tokens_per_s"] > 0 and row["num_runs"] == 1 for row in report["rows"])
    assert all(row["peak_memory_bytes"] is None or row["peak_memory_bytes"] > 1e6 for row in report["rows"])

    states = {record["system"]: (record["state"], record["reason"]) for record in report["peers"]}
    died = ("failed", "its process ended with exit status 3: out of luck")
    missing = ("missing", "openvino-genai is not installed; pip install 'slipstream[bench]'")
    absent = [f"openvino F32, {mode}" for mode in ("plain", "assisted by its first 1 layer", "prompt lookup 4")]
    assert states == {plain: died, lookup: ("measured", ""), **dict.fromkeys(absent, missing)}
    assert sum(line.endswith(missing[1]) for line in shown) == 3
    assert sum(line.endswith(died[1]) for line in shown) == 1
    assert sum(line.endswith("TOKENS DIFFER") for line in shown) == 2
    assert any("the share of prompts on which a greedy text equals" in line for line in shown)

    assert {(one["peer"], one["kind"]) for one in report["standings"]} == {
        ("llama.cpp", kind) for kind in (*answered, "copy")
    }
    assert all(
        one["noise"] > 0 and one["own_system"].startswith("slipstream float32, auto") for one in report["standings"]
    )
    assert "Ahead of whom, behind whom, where:" in shown
    assert sum("version 9.1; n_batch 512" in line for line in shown) == 2
    assert len(report["aims"]) == 3
    assert report["aims"][2]["outcome"] == "not measured"
    assert sorted(path.suffix for path in out.iterdir()) == [".json", ".png", ".png"]
