"""The distilled drafts that come with the project, each for one target.

Owns their place and the search. Knows nothing of how they are run. A target is known by its fingerprint, whatever its
file is called.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

from models.draft_folder import DESCRIPTION_FILE, read_draft_description
from models.errors import CheckpointError

SHIPPED_FOLDER = Path(__file__).parent / "shipped"
"""A folder for each draft."""

_logger = logging.getLogger("slipstream")


def has_shipped_drafts() -> bool:
    """Whether any draft came with this installation."""
    return next(_folders(), None) is not None


def shipped_draft(fingerprint: str) -> Path | None:
    """The folder of the draft for the target of that fingerprint; None where there is none.

    One that cannot be read is passed over, with a warning.
    """
    for folder in _folders():
        try:
            description = read_draft_description(folder)
        except CheckpointError as error:
            _logger.warning("a draft that came with the project is left out: %s", error)
            continue
        if description.target_fingerprint == fingerprint:
            return folder
    return None


def _folders() -> Iterator[Path]:
    return (path.parent for path in sorted(SHIPPED_FOLDER.glob(f"*/{DESCRIPTION_FILE}")))
