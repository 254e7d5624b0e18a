"""The kinds of text that a draft is trained and judged on."""

from __future__ import annotations

from enum import StrEnum


class TextKind(StrEnum):
    """What a sequence is about; figures are given for each."""

    CHAT = "chat"
    CODE = "code"
    COPY = "copy"
    """The answer repeats or sums up a text of the prompt."""
    TEXT = "text"
    """Text that exists, or that a base model writes, outside of any conversation."""
