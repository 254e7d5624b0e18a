"""The text of a draft's README.md.

Owns the wording. Knows nothing of how a draft is made or judged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from models.distill.evaluation import Evaluation, Figures
from models.draft_folder import DraftDesign

_DEMO_LICENCE = (
    "This draft is derived from SmolLM2-135M-Instruct by Hugging Face "
    "(https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct), which is licensed under the Apache License 2.0: it "
    "began as a copy of some of that model's layers, was changed by training on text that the model wrote, and needs "
    "the model's embedding and output head to run. It is given under the same licence, "
    "https://www.apache.org/licenses/LICENSE-2.0."
)
_OTHER_LICENCE = (
    "This draft is derived from its target: it began as a copy of some of the target's layers, was trained on text "
    "that the target wrote, and needs the target's embedding and output head to run. The target's licence says what "
    "may be done with it."
)
_DESIGNS = {
    DraftDesign.TOKEN: "reads tokens alone",
    DraftDesign.FEATURE: "reads each token together with the target's hidden state one position before "
    "(https://arxiv.org/abs/2401.15077)",
}


@dataclass(frozen=True, kw_only=True)
class CardFacts:
    """How a draft was made, and what came of it."""

    name: str
    target_name: str
    is_demo_target: bool
    """Whether the target is the project's own demo model, whose licence is known."""
    design: DraftDesign
    num_layers: int
    num_head_tokens: int | None
    """Tokens that it can propose; None is all."""
    num_bytes: int
    """Of its tensors."""
    command: str
    """That makes it again."""
    machine: str | None
    """In words, such as "2 cores of an AMD EPYC 7763"."""
    num_written_tokens: int
    """That the target wrote to learn from, templates and what is quoted included."""
    num_seen_tokens: int
    """That training saw, each as often as it was seen."""
    training_minutes: float
    best_step: int
    """After which the parameters are the draft's."""
    num_steps: int | None
    """That training took; None where it is not known."""
    precision: str
    """Of the matrix products that it was judged with."""
    quoted: str | None = None
    """In words, the text that some of what the target answers or goes on from was taken from."""
    read_files: tuple[str, ...] = ()
    """Names of text files that were learnt beside what the target wrote."""
    writing_minutes: float | None = None
    """None where it is not known, as of text that was written before."""
    settings: Mapping[str, object] = field(default_factory=dict)
    """Of writing and training, by name."""
    evaluation: Evaluation | None = None
    """None where it was not judged."""


def draft_card(facts: CardFacts) -> str:
    """The card, in Markdown."""
    parts = [_introduction(facts), _use(facts), _making(facts)]
    if facts.evaluation is not None:
        parts.append(_figures(facts.evaluation, facts.precision))
    parts.append(f"## Licence\n\n{_DEMO_LICENCE if facts.is_demo_target else _OTHER_LICENCE}")
    return "\n\n".join(parts) + "\n"


def _introduction(facts: CardFacts) -> str:
    layers = "1 decoder layer" if facts.num_layers == 1 else f"{facts.num_layers} decoder layers"
    head = "any token" if facts.num_head_tokens is None else f"the {facts.num_head_tokens:,} most frequent tokens"
    return (
        f"# {facts.name}\n\n"
        f"A draft for speculative decoding of {facts.target_name}: {layers} between the target's own token embedding "
        f"and output head. It {_DESIGNS[facts.design]}, can propose {head}, and takes {facts.num_bytes / 1e6:.1f} MB."
        "\n\nIt proposes tokens, and the target verifies each of them: it can make text come sooner, and never changes "
        "what is written."
    )


def _use(facts: CardFacts) -> str:
    return (
        "## Use\n\n"
        f"    python -m runtime --target {facts.target_name} --draft {facts.name}\n\n"
        "where both are paths. It fits the target that it was made for and is refused by any other."
    )


def _making(facts: CardFacts) -> str:
    writing = "" if facts.writing_minutes is None else f" in {facts.writing_minutes:,.0f} minutes"
    steps = "" if facts.num_steps is None else f" of {facts.num_steps:,}"
    machine = "" if facts.machine is None else f" Machine: {facts.machine}."
    lines = [
        "## How it was made",
        "",
        f"    {facts.command}",
        "",
        f"The target wrote {facts.num_written_tokens:,} tokens{writing}, templates and quoted snippets included. "
        f"{_other_text(facts)} Training saw {facts.num_seen_tokens:,} tokens in {facts.training_minutes:,.0f} minutes; "
        f"the parameters are those after step {facts.best_step:,}{steps}, which were the best on text that was held "
        f"out of it.{machine}",
    ]
    if facts.settings:
        lines += ["", "| setting | value |", "| --- | --- |"]
        lines += [f"| {_cell(name)} | {_cell(value)} |" for name, value in facts.settings.items()]
    return "\n".join(lines)


def _other_text(facts: CardFacts) -> str:
    """What was learnt from beside the target's own words."""
    quotes = "" if facts.quoted is None else f"Some of what it was given to answer or go on from quotes {facts.quoted}."
    others = f"The draft also learnt from {', '.join(facts.read_files)}." if facts.read_files else ""
    return " ".join([part for part in (quotes, others) if part] or ["No other data set was used."])


def _figures(evaluation: Evaluation, precision: str) -> str:
    groups: dict[str, Figures] = {str(kind): figures for kind, figures in evaluation.by_kind.items()}
    rows = [_row(name, figures) for name, figures in (groups | {"all": evaluation.overall}).items()]
    return "\n".join(
        [
            "## Figures",
            "",
            f"On {evaluation.num_prompts} prompts that no training text was seeded with, answered by the target, with "
            f"matrix products in {precision} and the draft's parameters as they lie here. The first three columns are "
            "about a round's first proposal: the mean of sum min(p, q) at temperature 1, which is the chance that it "
            "is accepted, how often draft and target agree greedily, and how often their draws agree under shared "
            f"noise. The others are the mean tokens of a round of {evaluation.gamma} proposals, the target's own token "
            "included, by way of verifying.",
            "",
            "| text | sum min(p, q) | greedy agreement | shared noise | rejection | greedy | shared noise | tokens |",
            "| --- | --: | --: | --: | --: | --: | --: | --: |",
            *rows,
        ]
    )


def _row(name: str, figures: Figures) -> str:
    rates = (figures.acceptance, figures.greedy_agreement, figures.shared_noise_agreement)
    lengths = (figures.rejection_length, figures.greedy_length, figures.shared_noise_length)
    cells = [name, *(f"{rate:.3f}" for rate in rates), *(f"{length:.2f}" for length in lengths)]
    return f"| {' | '.join(cells)} | {figures.num_tokens:,} |"


def _cell(value: object) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ")
