"""A stand-in for the module `nvtx` at its boundary. There is no push and no pop in it: whoever calls them fails."""

from __future__ import annotations

from typing import Any

COLOURS = frozenset({"green", "blue", "yellow", "purple", "rapids", "cyan", "red", "white", "darkgreen", "orange"})
"""Names that the module knows without matplotlib."""


class FakeNvtx:
    """The part of the module that is used; a domain with a tool attached."""

    def __init__(self) -> None:
        self.open: dict[int, dict[str, Any]] = {}
        self.closed: list[dict[str, Any]] = []
        self.categories: dict[str, int] = {}
        self.domain_name = ""

    def get_domain(self, name: str) -> FakeNvtx:
        self.domain_name = name
        return self

    def get_category_id(self, name: str) -> int:
        return self.categories.setdefault(name, len(self.categories) + 1)

    def get_event_attributes(self, *, message: str, color: str, category: int, payload: int) -> dict[str, Any]:
        assert type(payload) is int
        assert color in COLOURS
        assert category in self.categories.values()
        return {"message": message, "color": color, "category": category, "payload": payload}

    def start_range(self, attributes: dict[str, Any]) -> int:
        self.open[number := len(self.open) + len(self.closed) + 1] = attributes
        return number

    def end_range(self, number: int) -> None:
        self.closed.append(self.open.pop(number))
