"""What a distillation takes is said beforehand, and what does not fit is refused."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from models.distill import judging, program
from models.distill.arguments import parse_arguments
from models.distill.needs import Needs, check_needs, needs_of
from models.distill.plan import make_plan
from models.distill.program import DONE, FAILED, main
from models.errors import DistillationError, InsufficientMemoryError
from models.free_memory import AvailableMemory
from tests.support.distill_command import command
from tests.support.tiny_checkpoint import write_tiny_folder
from tests.support.toy_distillation import text_file

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def short_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "_ANSWER_TOKENS", 8)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_folder(tmp_path_factory.mktemp("target"), hidden_size=32, intermediate_size=48)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return text_file(tmp_path_factory.mktemp("text"))


def test_an_estimate_writes_nothing(
    target: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("models.distill.speed._SAMPLE_S", 0.01)
    out = tmp_path / "out"
    assert main(command(target, text, out, "--estimate", "--json")) == DONE
    found = json.loads(capsys.readouterr().out)
    assert found["writing_s"] == pytest.approx(6 * 36 * 24 / found["writing_tokens_per_s"])
    assert found["reading_s"] == 0
    evaluated_s = 41 * 48 * 24 / found["evaluating_tokens_per_s"]
    assert found["training_s"] == pytest.approx(2 * 6 * 36 * 24 / found["training_tokens_per_s"] + evaluated_s)
    # Two answers to each of about fifty prompts.
    assert found["judging_s"] == pytest.approx(100 * 8 / found["judging_tokens_per_s"])
    assert found["shard_bytes"] == 6 * 36 * 24 * (2 * 32 + 8)
    assert found["peak_bytes"] == max(found[f"{stage}_bytes"] for stage in ("writing", "training", "judging"))
    assert main(command(target, text, out, "--estimate")) == DONE
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["writing", "reading", "training", "judging", "memory", "disk"]
    assert not out.exists()


@pytest.mark.parametrize("estimate", [True, False])
def test_what_does_not_fit_is_refused_before_it_begins(
    estimate: bool,
    target: Path,
    text: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    little = AvailableMemory(num_bytes=1 << 20, reason="said so")
    monkeypatch.setattr(program, "available_memory", lambda _: little)
    arguments = command(target, text, tmp_path / "out", *(["--estimate"] if estimate else []))
    assert main(arguments) == FAILED
    error = capsys.readouterr().err
    assert "1 MB are free (said so)" in error
    # Of so small a target, most memory goes into the answers that it is judged by.
    assert "judging takes about" in error
    assert "--anyway" in error
    assert not (tmp_path / "out").exists()


def test_needs_grow_with_what_is_asked_for(target: Path, text: Path, tmp_path: Path) -> None:
    def needs(*more: str) -> Needs:
        plan = make_plan(parse_arguments(command(target, text, tmp_path / "out", *more)))
        return needs_of(
            plan.target.config,
            plan.writing,
            plan.training,
            num_read_tokens=0,
            num_workers=plan.num_workers,
            dtype=plan.dtype,
        )

    plain = needs()
    assert needs("--workers", "2").weight_bytes == 2 * plain.weight_bytes
    assert needs("--wave", "72").cache_bytes == 2 * plain.cache_bytes
    assert needs("--dtype", "bfloat16").weight_bytes == plain.weight_bytes // 2
    assert needs("--own-steps", "4").training_bytes > plain.training_bytes
    assert needs("--dtype", "bfloat16").judging_bytes < plain.judging_bytes
    only_judging = plain.of_judging()
    assert (only_judging.peak_bytes, only_judging.disk_bytes) == (plain.judging_bytes, 0)
    scarce = AvailableMemory(num_bytes=1 << 20, reason="said so")
    with pytest.raises(InsufficientMemoryError, match="judging takes about"):
        check_needs(only_judging, memory=scarce, free_disk_bytes=0, present_disk_bytes=0)
    assert needs("--tokens", "10000").disk_bytes > plain.disk_bytes
    unknown = AvailableMemory(num_bytes=None, reason="nobody knows")
    check_needs(plain, memory=unknown, free_disk_bytes=plain.disk_bytes, present_disk_bytes=0)
    check_needs(plain, memory=unknown, free_disk_bytes=0, present_disk_bytes=plain.disk_bytes)
    with pytest.raises(DistillationError, match=r"are missing; name another folder with --work"):
        check_needs(plain, memory=unknown, free_disk_bytes=10, present_disk_bytes=10)
    unjudged = dataclasses.replace(plain, judging_bytes=0)
    with pytest.raises(InsufficientMemoryError, match=r"(writing \(weights|training) .*have fewer --workers"):
        check_needs(unjudged, memory=scarce, free_disk_bytes=1 << 40, present_disk_bytes=0)
    barely = AvailableMemory(num_bytes=plain.peak_bytes - 1, reason="said so")
    with pytest.raises(InsufficientMemoryError):
        check_needs(plain, memory=barely, free_disk_bytes=1 << 40, present_disk_bytes=0)
