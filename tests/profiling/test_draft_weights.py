"""What a draft loses by fewer bits: the program on a tiny target, and its figures against ones by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from models import Decoder, DraftDesign, WeightKind, bind_draft, open_draft, open_model
from models.linear import has_packed_kinds
from profiling.draft_weights import answer, main, measure, proposals_of
from tests.support.draft_folders import write_random_draft
from tests.support.tiny_checkpoint import write_tiny_folder

pytestmark = pytest.mark.skipif(not has_packed_kinds(torch.device("cpu")), reason="float16 and int8 need FBGEMM")


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_folder(tmp_path_factory.mktemp("target"), max_position_embeddings=512)


@pytest.mark.parametrize("design", DraftDesign)
def test_figures_are_those_of_one_call_after_another(design: DraftDesign, target: Path, tmp_path: Path) -> None:
    with open_model(target, weights=WeightKind.FLOAT32) as opened:
        assert opened.as_target is not None
        draft = open_draft(write_random_draft(tmp_path, opened.as_target, design, num_layers=1), opened.as_target)
        model = opened.load().model
    assert isinstance(model, Decoder)
    given = answer(model, range(3, 40), 9)
    assert len(given.token_ids_T) == len(given.logits_TV) == len(given.features_TE) == 37 + 8
    assert given.token_ids_T[37:].tolist() == given.logits_TV[36:44].argmax(-1).tolist()
    figures = measure(model, draft, [given], num_steps=2)
    assert [row.weights for row in figures] == ["float16", "int8"]
    logits_TV = proposals_of(bind_draft(draft, model, weights=WeightKind.FLOAT32), given)[36:]
    minima = torch.minimum(logits_TV.softmax(-1), given.logits_TV[36:].softmax(-1)).sum(-1)
    float16, int8 = figures
    assert float16.num_tokens == int8.num_tokens == 9
    assert float16.acceptance == pytest.approx(float(minima.mean()), abs=1e-5)
    assert float16.acceptance != int8.acceptance == pytest.approx(float16.acceptance, abs=0.05)
    assert min(float16.step_ms, int8.step_ms) > 0


def test_the_program_prints_and_writes_what_it_found(
    target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with open_model(target) as opened:
        assert opened.as_target is not None
        folder = write_random_draft(tmp_path / "draft", opened.as_target, DraftDesign.FEATURE)
    out = tmp_path / "weights.json"
    arguments = ["--prompts", "1", "--tokens", "4", "--steps", "2", "--out", str(out)]
    assert main([str(folder), "--target", str(target), *arguments]) == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert report == json.loads(out.read_text())
    assert [row["num_tokens"] for row in report["rows"]] == [12] * 2


def test_numbers_out_of_range_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["somewhere", "--prompts", "7"])
    assert "--prompts must be 1 to 6" in capsys.readouterr().err
