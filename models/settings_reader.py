"""Typed, bounded reading of settings that came from a file nobody has checked.

Owns `SettingsReader`, which turns one value at a time into an int, float, bool or str, or
says which field of which file is wrong. Knows nothing of what the fields mean.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from models.errors import CheckpointError

MAX_DIMENSION = 1 << 24
"""Largest width, row count or vocabulary that is taken for real."""
MAX_CONTEXT = 1 << 31
"""Largest number of positions that is taken for real."""

Default = TypeVar("Default")


class _Required:
    """The type of `REQUIRED`."""


REQUIRED = _Required()
"""Stands for 'no default': the field must be there."""


@dataclass(frozen=True)
class SettingsReader:
    """Settings and the name of where they came from.

    A field that is null counts as absent, as it does in Hugging Face configs. Every method
    raises `CheckpointError`, naming origin, field and value, if the field is required and
    absent, or has another type or range than asked for.
    """

    settings: Mapping[str, object]
    origin: str
    """For messages: a file, or a part of one."""

    def has(self, key: str) -> bool:
        """Whether the field is there and not null."""
        return self.settings.get(key) is not None

    def error(self, key: str, problem: str) -> CheckpointError:
        """The error that says what is wrong with the field's value."""
        return CheckpointError(f"{self.origin}: {key} is {reprlib.repr(self.settings.get(key))}, but {problem}")

    def integer(
        self, key: str, default: Default | _Required = REQUIRED, *, minimum: int = 1, maximum: int = MAX_DIMENSION
    ) -> int | Default:
        """The field as an int in `minimum .. maximum`; `default` is not checked."""
        if not self.has(key):
            return self._default(key, default)
        value = self.settings[key]
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
            raise self.error(key, f"must be an integer from {minimum} to {maximum}")
        return value

    def number(self, key: str, default: float | _Required = REQUIRED, *, minimum: float = 0.0) -> float:
        """The field as a finite float above `minimum`."""
        if not self.has(key):
            return self._default(key, default)
        value = self.settings[key]
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.error(key, "must be a number")
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number) or number <= minimum:
            raise self.error(key, f"must be a finite number above {minimum:g}")
        return number

    def flag(self, key: str, default: bool) -> bool:
        """The field as a bool."""
        if not self.has(key):
            return default
        value = self.settings[key]
        if not isinstance(value, bool):
            raise self.error(key, "must be true or false")
        return value

    def text(self, key: str, default: Default | _Required = REQUIRED) -> str | Default:
        """The field as a str."""
        if not self.has(key):
            return self._default(key, default)
        value = self.settings[key]
        if not isinstance(value, str):
            raise self.error(key, "must be a string")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """The field as a tuple of str; empty if absent."""
        value = self.settings.get(key)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.error(key, "must be a list of strings")
        return tuple(value)

    def section(self, key: str) -> SettingsReader:
        """The field as a reader of its own; empty if absent."""
        value = self.settings.get(key)
        if value is None:
            value = {}
        if not isinstance(value, Mapping):
            raise self.error(key, "must be a mapping of names to values")
        return SettingsReader(value, f"{self.origin}: {key}")

    def token_ids(self, key: str, *, vocab_size: int) -> tuple[int, ...]:
        """The field, one id or a list of them, without ids that no logit row has; empty if absent."""
        value = self.settings.get(key)
        if value is None:
            return ()
        ids: list[int] = []
        for token_id in value if isinstance(value, list) else [value]:
            if isinstance(token_id, bool) or not isinstance(token_id, int) or token_id < 0:
                raise self.error(key, "must be a token id or a list of token ids, none below 0")
            if token_id < vocab_size:
                ids.append(token_id)
        return tuple(dict.fromkeys(ids))

    def _default(self, key: str, default: Default | _Required) -> Default:
        if isinstance(default, _Required):
            raise CheckpointError(f"{self.origin}: {key} is missing")
        return default
