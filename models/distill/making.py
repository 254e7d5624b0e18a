"""What `draft.json` says of a draft's making.

Owns the record and its reading. Knows nothing of how a draft is made; nothing that runs a draft depends on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from models.distill.evaluation import Evaluation, Figures
from models.distill.run_state import HistoryPoint
from models.distill.text_kind import TextKind
from models.errors import CheckpointError


@dataclass(frozen=True, kw_only=True)
class Making:
    """How a draft came about; fields that may be None were not always kept."""

    settings: Mapping[str, object]
    """Of writing and training, by name."""
    num_text_tokens: int
    """To learn from, without copies and the held-out part."""
    num_seen_tokens: int
    """That training saw, each as often as it was seen."""
    trained_s: float
    written_s: float | None
    """What the text took that the target wrote."""
    best_step: int
    """After which the parameters are those of the draft."""
    num_steps: int | None
    """That training took."""
    history: tuple[HistoryPoint, ...]
    machine: str | None
    python: str | None
    """Its version: with another one, the snippets that are quoted may be others."""
    figures: Evaluation | None
    """None where it was not judged."""
    finished: bool
    """False while judging is still to come."""

    def as_json(self) -> dict[str, object]:
        """As `write_draft` takes it."""
        return asdict(self)

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Making:
        """What was read from `draft.json`.

        Raises:
            CheckpointError: if it is not such a record.
        """
        try:
            return cls(
                settings=dict(found["settings"]),
                num_text_tokens=int(found["num_text_tokens"]),
                num_seen_tokens=int(found["num_seen_tokens"]),
                trained_s=float(found["trained_s"]),
                written_s=found.get("written_s"),
                best_step=int(found["best_step"]),
                num_steps=found.get("num_steps"),
                history=tuple(
                    HistoryPoint(**{**point, "held_out_acceptance": tuple(point["held_out_acceptance"])})
                    for point in found["history"]
                ),
                machine=found.get("machine"),
                python=found.get("python"),
                figures=None if found["figures"] is None else _evaluation(found["figures"]),
                finished=is_finished(found),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"the record of a draft's making is malformed: {error!r}") from error


def is_finished(found: Mapping[str, object]) -> bool:
    """Whether nothing is to come any more; a record that does not say so was written after all was done."""
    return found.get("finished") is not False


def _evaluation(found: Mapping[str, Any]) -> Evaluation:
    return Evaluation(
        by_kind={TextKind(kind): Figures(**figures) for kind, figures in found["by_kind"].items()},
        overall=Figures(**found["overall"]),
        gamma=found["gamma"],
        num_prompts=found["num_prompts"],
    )
