"""The comparison of drafts: its arithmetic against numbers worked out by hand, and the program on a tiny target."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from models import DraftDesign, DraftTarget, PairError, open_checkpoint
from models.distill import Evaluation, Figures, TextKind
from profiling.draft_comparison import (
    ALL_KINDS,
    ExpectedSpeed,
    JudgedDraft,
    VerifyingLaw,
    alpha_of,
    expected_speeds,
    format_comparison,
)
from profiling.draft_costs import median_costs, with_common_target
from profiling.drafts import main
from scheduler import LaneCosts, SpeedModel, expected_tokens
from tests.support.draft_folders import write_random_draft
from tests.support.tiny_checkpoint import write_tiny_folder


def speed_model(*, draft_ms: float = 1.0, verify_ms: float = 10.0, slowdown: float = 1.2) -> SpeedModel:
    return SpeedModel(
        alone=LaneCosts(draft_ms=draft_ms, verify_ms={width: verify_ms + width for width in range(1, 10)}),
        together=LaneCosts(
            draft_ms=draft_ms * slowdown, verify_ms={width: slowdown * (verify_ms + width) for width in range(1, 10)}
        ),
    )


def judged(name: str, length: float, costs: SpeedModel) -> JudgedDraft:
    figures = Figures(
        num_tokens=100,
        acceptance=0.5,
        greedy_agreement=0.5,
        shared_noise_agreement=0.5,
        rejection_length=length,
        greedy_length=length + 0.5,
        shared_noise_length=length - 0.25,
    )
    evaluation = Evaluation(by_kind={TextKind.CHAT: figures}, overall=figures, gamma=4, num_prompts=8)
    return JudgedDraft(name=name, design="token", num_layers=1, num_head_tokens=64, evaluation=evaluation, costs=costs)


def drawn_speed(draft: JudgedDraft) -> ExpectedSpeed:
    return next(
        speed for speed in expected_speeds(draft) if (speed.kind, speed.law) == (ALL_KINDS, VerifyingLaw.REJECTION)
    )


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.75, 1.0])
def test_alpha_is_found_again(alpha: float) -> None:
    assert alpha_of(expected_tokens(4, alpha), 4) == pytest.approx(alpha, abs=1e-6)


def test_the_speed_at_gamma_is_length_over_time() -> None:
    """2.5 tokens in four steps of 1 ms and a verify of 15 ms, against a token in 11 ms."""
    speed = drawn_speed(judged("one", 2.5, speed_model()))
    assert speed.mean_length == 2.5
    assert speed.at_gamma == pytest.approx(2.5 * 11 / (4 + 15))
    assert speed.sequential >= speed.at_gamma - 1e-6
    assert speed.pipelined is not None
    lengths = {row.law: row.mean_length for row in expected_speeds(judged("one", 2.5, speed_model()))}
    assert lengths == {VerifyingLaw.REJECTION: 2.5, VerifyingLaw.GREEDY: 3.0, VerifyingLaw.SHARED_NOISE: 2.25}


def test_overlap_pays_where_lanes_do_not_disturb_each_other() -> None:
    apart = drawn_speed(judged("apart", 4.5, speed_model(draft_ms=3.0, slowdown=1.0)))
    crowded = drawn_speed(judged("crowded", 4.5, speed_model(draft_ms=3.0, slowdown=3.0)))
    assert apart.pipelined is not None
    assert crowded.pipelined is not None
    assert apart.pipelined > apart.sequential > crowded.pipelined


def test_no_gamma_is_expected_of_a_draft_that_it_was_not_judged_at() -> None:
    speed = drawn_speed(judged("perfect", 4.9, speed_model(draft_ms=0.1)))
    assert speed.sequential_gamma == 4
    assert speed.pipelined_gamma is not None
    assert speed.pipelined_gamma <= 4


def test_the_faster_draft_comes_first_though_it_is_right_less_often() -> None:
    accurate = judged("accurate", 3.0, speed_model(draft_ms=9.0))
    cheap = judged("cheap", 2.4, speed_model(draft_ms=0.5))
    assert drawn_speed(cheap).at_gamma > drawn_speed(accurate).at_gamma
    table = format_comparison([accurate, cheap]).partition("all, rejection\n")[2]
    assert [line.split()[0] for line in table.splitlines()[:2]] == ["cheap", "accurate"]


def test_costs_are_medians_and_the_target_is_common() -> None:
    median = median_costs([speed_model(draft_ms=ms, verify_ms=10 * ms) for ms in (1.0, 5.0, 2.0)])
    assert (median.alone.draft_ms, median.alone.verify_ms[1]) == (2.0, 21.0)
    first, second = with_common_target([speed_model(verify_ms=10.0), speed_model(verify_ms=20.0, draft_ms=2.0)])
    assert first.alone.verify_ms == second.alone.verify_ms == {width: 15.0 + width for width in range(1, 10)}
    assert (first.alone.draft_ms, second.alone.draft_ms) == (1.0, 2.0)
    assert first.together is not None
    assert first.together.verify_ms[1] == 16.0


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_folder(tmp_path_factory.mktemp("target"))


def fitting_draft(folder: Path, target: Path, design: DraftDesign, **options: int) -> Path:
    with open_checkpoint(target) as checkpoint:
        return write_random_draft(folder, DraftTarget.of(checkpoint), design, **options)


def test_drafts_of_both_designs_are_compared(target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    folders = [
        fitting_draft(tmp_path / "token", target, DraftDesign.TOKEN, num_layers=2),
        fitting_draft(tmp_path / "feature", target, DraftDesign.FEATURE, head_size=100),
    ]
    arguments = ["--target", str(target), "--kinds", "chat", "copy", "--tokens", "8", "--repeats", "1", "--json"]
    out = tmp_path / "out"
    assert main([*map(str, folders), *arguments, "--threads", "2", "--out-dir", str(out)]) == 0
    printed = capsys.readouterr()
    report = json.loads(printed.out)
    assert "prompts are left out" in printed.err
    assert [(draft["name"], draft["design"], draft["num_head_tokens"]) for draft in report["drafts"]] == [
        ("token", "token", 265),
        ("feature", "feature", 100),
    ]
    for draft in report["drafts"]:
        assert draft["costs_alone_ms"]["verify_ms"].keys() == {str(width) for width in range(1, 10)}
        assert {row["kind"] for row in draft["expected"]} == {"chat", ALL_KINDS}
        assert 1 <= draft["evaluation"]["overall"]["rejection_length"] <= 5
    assert {path.suffix for path in out.iterdir()} == {".json", ".png"}
    assert json.loads(next(out.glob("*.json")).read_text()) == report


def test_a_draft_of_another_target_is_refused(target: Path, tmp_path: Path) -> None:
    other = write_tiny_folder(tmp_path / "other", seed=9)
    folder = fitting_draft(tmp_path / "draft", other, DraftDesign.TOKEN)
    with pytest.raises(PairError, match="was made for"):
        main([str(folder), "--target", str(target), "--kinds", "chat"])


def test_numbers_below_one_are_refused(target: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["somewhere", "--target", str(target), "--tokens", "0"])
    assert "--tokens must be at least 1, got 0" in capsys.readouterr().err
