"""The known name that somebody may have meant who wrote an unknown one.

Owns what counts as close. Knows nothing of what the names are of, nor of how a suggestion is worded.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def closest_name(name: str, known: Iterable[str]) -> str | None:
    """The name in `known` that is most like `name`; None if none is much like it.

    Likeness is the ratio of `difflib.SequenceMatcher`, and close is what `difflib.get_close_matches` takes for it.
    """
    return next(iter(difflib.get_close_matches(name, list(known), n=1)), None)
