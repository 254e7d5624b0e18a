"""Draft sources as callers spell them.

Owns the names and their reading. Knows nothing of checkpoints or lanes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from models import is_draft_folder

AUTO_DRAFT = "auto"
"""What suits the target."""


class DraftKind(StrEnum):
    """Where proposals come from."""

    NGRAM = "ngram"
    EARLY_EXIT = "early-exit"
    MODEL = "model"
    DISTILLED = "distilled"
    """A folder that `python -m models.distill` has made for this target."""


@dataclass(frozen=True, kw_only=True)
class DraftSpec:
    """One draft source."""

    kind: DraftKind
    source: str | Path | None = None
    """MODEL: a folder, a hub id or a GGUF file. DISTILLED: a folder."""
    num_layers: int | None = None
    """EARLY_EXIT: how many of the target's layers; None takes about a fifth."""

    @property
    def is_model(self) -> bool:
        """Whether it computes; n-grams are looked up, which costs next to nothing."""
        return self.kind is not DraftKind.NGRAM


def read_draft_specs(draft: object, *, is_demo: bool) -> tuple[DraftSpec, ...]:
    """The sources that one name or path stands for.

    Args:
        draft: `auto`, `none`, `ngram`, `early-exit`, `early-exit:K`, a distilled draft's folder, or a model.
        is_demo: whether the target is the demo model, whose early exit is worth a try.

    Raises:
        TypeError: if it is neither text nor a path.
        ValueError: if it is empty or names no number of layers where it should.
    """
    if isinstance(draft, Path):
        return (_from_path(draft),)
    if not isinstance(draft, str):
        raise TypeError(f"draft must be a name, a path or a list of these, not {type(draft).__name__}")
    if not draft:
        raise ValueError("draft may not be empty; 'none' decodes without one")
    if draft == "none":
        return ()
    if draft == AUTO_DRAFT:
        auto = (DraftSpec(kind=DraftKind.NGRAM),)
        return (*auto, DraftSpec(kind=DraftKind.EARLY_EXIT)) if is_demo else auto
    if draft == DraftKind.NGRAM:
        return (DraftSpec(kind=DraftKind.NGRAM),)
    name, _, count = draft.partition(":")
    if name != DraftKind.EARLY_EXIT:
        return (_from_path(draft),)
    if not count:
        return (DraftSpec(kind=DraftKind.EARLY_EXIT),)
    if not count.isdecimal() or int(count) < 1:
        raise ValueError(f"draft {draft!r} must name a number of layers, as in 'early-exit:4'")
    return (DraftSpec(kind=DraftKind.EARLY_EXIT, num_layers=int(count)),)


def _from_path(draft: str | Path) -> DraftSpec:
    kind = DraftKind.DISTILLED if is_draft_folder(draft) else DraftKind.MODEL
    return DraftSpec(kind=kind, source=draft)
