"""A draft's card and charts: every figure is there, and what is said of the licence fits the target."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest

from models.distill.card import CardFacts, draft_card
from models.distill.charts import write_evaluation_chart, write_training_chart
from models.distill.evaluation import Evaluation, Figures
from models.distill.run_state import HistoryPoint
from models.distill.text_kind import TextKind
from models.draft_folder import DraftDesign
from models.errors import MissingDependencyError

FIGURES = Figures(
    num_tokens=4321,
    acceptance=0.512,
    greedy_agreement=0.623,
    shared_noise_agreement=0.434,
    rejection_length=2.05,
    greedy_length=2.46,
    shared_noise_length=1.87,
)
EVALUATION = Evaluation(
    by_kind={TextKind.CHAT: FIGURES, TextKind.CODE: dataclasses.replace(FIGURES, acceptance=0.789)},
    overall=dataclasses.replace(FIGURES, num_tokens=8642),
    gamma=4,
    num_prompts=37,
)
FACTS = CardFacts(
    name="tiny-draft",
    target_name="tiny-model",
    is_demo_target=False,
    design=DraftDesign.FEATURE,
    num_layers=1,
    num_head_tokens=8192,
    num_bytes=8_400_000,
    command="python -m models.distill --target tiny-model --out tiny-draft",
    machine="2 cores",
    num_written_tokens=2_000_000,
    num_seen_tokens=8_000_000,
    training_minutes=125.4,
    best_step=1200,
    num_steps=1500,
    precision="bfloat16",
    quoted="passages of book.txt",
    settings={"learning_rate": 0.001, "text": "a|b"},
    evaluation=EVALUATION,
)
HISTORY = [
    HistoryPoint(
        step=step, num_tokens=step * 1000, loss=None, held_out_acceptance=(0.1 * step, 0.05 * step), trained_s=step
    )
    for step in range(5)
]
PNG = b"\x89PNG\r\n\x1a\n"


def test_a_card_says_how_the_draft_was_made_and_what_it_is_worth() -> None:
    card = draft_card(FACTS)
    for part in (
        "# tiny-draft\n",
        "1 decoder layer between",
        "the 8,192 most frequent tokens",
        "8.4 MB",
        "never changes what is written",
        "python -m runtime --target tiny-model --draft tiny-draft\n",
        FACTS.command,
        "wrote 2,000,000 tokens, templates and quoted snippets included.",
        "quotes passages of book.txt. Training saw",
        "8,000,000 tokens in 125 minutes; the parameters are those after step 1,200 of 1,500,",
        "with matrix products in bfloat16",
        "Machine: 2 cores.",
        "| learning_rate | 0.001 |",
        r"| text | a\|b |",
        "On 37 prompts",
        "| chat | 0.512 | 0.623 | 0.434 | 2.05 | 2.46 | 1.87 | 4,321 |",
        "| code | 0.789 | 0.623 | 0.434 | 2.05 | 2.46 | 1.87 | 4,321 |",
        "| all | 0.512 | 0.623 | 0.434 | 2.05 | 2.46 | 1.87 | 8,642 |",
    ):
        assert part in card
    table = card[card.index("| text | sum") :].partition("\n\n")[0].splitlines()
    assert [len(line.split("|")) for line in table] == [10] * 5


@pytest.mark.parametrize("is_demo_target", [True, False])
def test_the_licence_is_the_targets(is_demo_target: bool) -> None:
    card = draft_card(dataclasses.replace(FACTS, is_demo_target=is_demo_target))
    licence = card[card.index("## Licence") :]
    assert ("Apache License 2.0" in licence and "Hugging Face" in licence) is is_demo_target
    assert ("The target's licence says" in licence) is not is_demo_target


def test_a_card_leaves_out_what_is_not_known() -> None:
    card = draft_card(
        dataclasses.replace(
            FACTS,
            evaluation=None,
            settings={},
            num_head_tokens=None,
            design=DraftDesign.TOKEN,
            writing_minutes=12.0,
            quoted=None,
            num_steps=None,
            machine=None,
        )
    )
    assert "## Figures" not in card
    assert "| setting |" not in card
    assert "can propose any token" in card
    assert "reads tokens alone" in card
    assert "tokens in 12 minutes, templates and quoted snippets included. No other data set was used." in card
    assert "after step 1,200, which" in card
    assert "Machine" not in card


def test_a_card_names_text_that_the_target_did_not_write() -> None:
    card = draft_card(dataclasses.replace(FACTS, read_files=("handbook.md", "notes.txt")))
    assert "quotes passages of book.txt. The draft also learnt from handbook.md, notes.txt." in card
    assert "no other data set" not in card


def test_charts_are_pictures(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    write_training_chart(HISTORY, tmp_path / "training.png")
    write_evaluation_chart(EVALUATION, tmp_path / "evaluation.png")
    for name in ("training", "evaluation"):
        assert (tmp_path / f"{name}.png").read_bytes().startswith(PNG)
    with pytest.raises(ValueError, match="the history is empty"):
        write_training_chart([], tmp_path / "none.png")


def test_charts_without_matplotlib_say_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'slipstream\[plot\]'"):
        write_evaluation_chart(EVALUATION, tmp_path / "evaluation.png")
    assert not list(tmp_path.iterdir())
