"""The distilled drafts that come with the project, each for one target.

Owns their place and the search. Knows nothing of how they are run. A target is known by its fingerprint, whatever its
file is called.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

from models.draft_folder import DESCRIPTION_FILE, DraftTarget, open_draft, read_draft_description
from models.errors import SlipstreamError

SHIPPED_FOLDER = Path(__file__).parent / "shipped"
"""A folder for each draft."""

_logger = logging.getLogger("slipstream")


def has_shipped_drafts() -> bool:
    """Whether any draft came with this installation."""
    return next(_folders(), None) is not None


def shipped_draft(target: DraftTarget) -> Path | None:
    """The folder of the draft for that target; None where there is none.

    One that is damaged is passed over, with a warning: nobody asked for it.
    """
    for folder in _folders():
        try:
            if read_draft_description(folder).target_fingerprint == target.fingerprint:
                draft = open_draft(folder, target)
                draft.tensors()
                return draft.folder
        except SlipstreamError as error:
            _logger.warning("a draft that came with the project is left out: %s", error)
    return None


def _folders() -> Iterator[Path]:
    return (path.parent for path in sorted(SHIPPED_FOLDER.glob(f"*/{DESCRIPTION_FILE}")))
