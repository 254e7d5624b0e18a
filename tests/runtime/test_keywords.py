"""Unknown names are refused with the name that may have been meant."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import pytest

from runtime.keywords import as_choice, check_names


@dataclass
class Settings:
    max_tokens: int = 1
    temperature: float = 0.0


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


def test_known_names_pass() -> None:
    check_names([], Settings)
    check_names(["temperature", "max_tokens"], Settings)


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("max_new_tokens", r" \(did you mean 'max_tokens'\?\)"),
        ("max_length", r" \(did you mean 'max_tokens'\?\)"),
        ("do_sample", r" \(did you mean 'temperature'\?\)"),
        ("temprature", r" \(did you mean 'temperature'\?\)"),
        ("model", ""),  # elsewhere the target's name, but these settings have no target
        ("zzz", ""),
    ],
)
def test_the_first_unknown_name_is_told(name: str, suggestion: str) -> None:
    message = rf"^unknown option '{name}'{suggestion}; known options: max_tokens, temperature$"
    with pytest.raises(TypeError, match=message):
        check_names(["max_tokens", name, "zzz"], Settings)


def test_choices_are_members_or_their_values() -> None:
    assert as_choice("colour", Colour, Colour.RED) is as_choice("colour", Colour, "red") is Colour.RED
    with pytest.raises(ValueError, match=r"^colour must be one of 'red', 'blue', got 'green'$"):
        as_choice("colour", Colour, "green")
    for wrong in (None, 3, True, b"red"):
        with pytest.raises(TypeError, match=r"^colour must be one of 'red', 'blue', not "):
            as_choice("colour", Colour, wrong)
