"""Keywords of the public calls: their names, and names for enum members.

Owns the messages for unknown names. Knows nothing of what a keyword does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from enum import Enum
from typing import TypeVar

from models import closest_name

Choice = TypeVar("Choice", bound=Enum)

_OTHER_NAMES = {
    "do_sample": "temperature",
    "max_length": "max_tokens",
    "max_new_tokens": "max_tokens",
    "model": "target",
}
"""Names that other libraries use for the same thing."""


def check_names(keywords: Iterable[str], settings: type) -> None:
    """Raise unless every keyword is a field of the dataclass `settings`.

    Raises:
        TypeError: naming the first unknown one, and the one that may have been meant.
    """
    known = sorted(option.name for option in dataclasses.fields(settings))
    for name in keywords:
        if name not in known:
            meant = _OTHER_NAMES.get(name) or closest_name(name, known)
            suggestion = f" (did you mean {meant!r}?)" if meant in known else ""
            raise TypeError(f"unknown option {name!r}{suggestion}; known options: {', '.join(known)}")


def as_choice(name: str, kind: type[Choice], value: object) -> Choice:
    """A member of an enum from itself or its value.

    Raises:
        TypeError: if `value` is neither a member nor a string.
        ValueError: if no member has this value.
    """
    if isinstance(value, kind):
        return value
    values = ", ".join(repr(member.value) for member in kind)
    if not isinstance(value, str):
        raise TypeError(f"{name} must be one of {values}, not {type(value).__name__}")
    try:
        return kind(value)
    except ValueError:
        raise ValueError(f"{name} must be one of {values}, got {value!r}") from None
