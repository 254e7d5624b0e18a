"""Perplexity against a direct sum, the table relative to float32, the program, and what packed weights really cost."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from models import WeightKind, open_model
from models.linear import has_packed_kinds
from profiling.fidelity import default_texts, main, mean_negative_log_likelihood, measure
from tests.support.tiny_checkpoint import tiny_tokenizer, write_tiny_folder

LARGEST_COST = {WeightKind.FLOAT16: 1.001, WeightKind.INT8: 1.03}
"""Perplexity relative to float32's that each kind promises to stay below."""
COARSE_GRID = (1 / 95, 96)
"""How finely activations are quantised on CPUs without VNNI instructions."""
TEXT = "the hello of the hello, the tail of a tale. " * 30

packed_kinds = pytest.mark.skipif(not has_packed_kinds(torch.device("cpu")), reason="int8 needs an x86-64 CPU")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_folder(tmp_path_factory.mktemp("tiny") / "model", max_position_embeddings=1024)


@pytest.mark.parametrize("num_tokens", [2, 63, 65, 66, 512, 513, 514, 700])
def test_nats_equal_a_direct_sum(tiny: Path, num_tokens: int) -> None:
    """Every token but the first of a window is predicted once, from its window alone."""
    with open_model(tiny, weights=WeightKind.FLOAT32) as opened:
        model = opened.load().model
    ids = tiny_tokenizer().encode(TEXT)[:num_tokens]
    assert len(ids) == num_tokens
    total, count = 0.0, 0
    for window in (ids[:512], ids[512:]):
        cache = model.new_cache(512)
        for token_id, following in pairwise(window):
            logits_RV = model.forward(torch.tensor([token_id]), cache, num_logits=1)
            total -= float(logits_RV.double().log_softmax(-1)[0, following])
            count += 1
    measured = mean_negative_log_likelihood(model, ids, "test")
    assert measured == pytest.approx(total / count, rel=1e-5)


@packed_kinds
def test_ratios_are_to_float32_of_the_same_text(tiny: Path) -> None:
    texts = {"first": TEXT, "second": TEXT.upper()}
    rows = measure(tiny, texts, [WeightKind.INT8, WeightKind.FLOAT32], max_tokens=100)
    by_key = {(row.text, row.weights): row for row in rows}
    assert by_key.keys() == {(text, kind) for text in texts for kind in ("float32", "int8")}
    for text in texts:
        exact, packed = by_key[text, "float32"], by_key[text, "int8"]
        assert exact.num_tokens == packed.num_tokens == 100
        assert exact.relative_to_float32 == 1
        assert packed.relative_to_float32 == pytest.approx(packed.perplexity / exact.perplexity)
        assert packed.perplexity != exact.perplexity
    assert by_key["first", "float32"].perplexity != by_key["second", "float32"].perplexity


@packed_kinds
def test_the_program_prints_and_writes_its_report(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, out = tmp_path / "words.txt", tmp_path / "report.json"
    text.write_text(TEXT)
    assert main(["--target", str(tiny), "--max-tokens", "80", "--out", str(out), str(text)]) == 0
    *table, last = capsys.readouterr().out.splitlines()
    report = json.loads(last)
    assert json.loads(out.read_text()) == report
    assert [(Path(row["text"]).name, row["weights"], row["num_tokens"]) for row in report["rows"]] == [
        ("words.txt", kind, 80) for kind in ("float32", "float16", "int8")
    ]
    assert len(table) == 3
    assert report["machine"]["processor"]


@pytest.mark.parametrize("arguments", [["--max-tokens", "1"], ["--max-tokens", "many"], ["no such file"]])
def test_bad_arguments_end_with_one_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "error:" in capsys.readouterr().err


def test_the_default_texts_are_long_and_unlike() -> None:
    texts = default_texts()
    assert {"language reference", "source code"} <= texts.keys()
    assert all(len(text) > 10_000 for text in texts.values())


@packed_kinds
@pytest.mark.weights
@pytest.mark.timeout(300)
@pytest.mark.parametrize("grid", [None, COARSE_GRID], ids=["this CPU's grid", "grid without VNNI"])
def test_packed_weights_cost_no_more_than_they_say(
    demo_gguf: Path, grid: tuple[float, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On about five hundred tokens of English and code together; one short text would mostly show luck.

    Forcing the grid shows its coarseness, not the saturation that it is there to prevent.
    """
    kinds = [WeightKind.FLOAT16, WeightKind.INT8]
    if grid is not None:
        kinds = [WeightKind.INT8]
        for module in ("int8_linear", "smoothing_cache"):
            monkeypatch.setattr(f"models.{module}.activation_grid", lambda: grid)
    texts = {name: default_texts()[name] for name in ("language reference", "source code")}
    rows = measure(demo_gguf, texts, kinds, max_tokens=256)
    for kind in kinds:
        ratios = [row.relative_to_float32 for row in rows if row.weights == kind.value]
        assert len(ratios) == 2
        assert math.prod(ratios) ** 0.5 < LARGEST_COST[kind], ratios
