"""Labels of systems by the names that tables have for them, for made-up runs."""

from __future__ import annotations

from profiling.peers.label import SystemLabel


def label_of(name: str) -> SystemLabel:
    """`OWNER WEIGHTS, MODE DRAFT`; the mode is one word, or `prompt lookup`."""
    who, _, how = name.partition(", ")
    owner, _, weights = who.partition(" ")
    mode = "prompt lookup" if how.startswith("prompt lookup") else how.partition(" ")[0]
    label = SystemLabel(owner=owner, weights=weights, mode=mode, draft=how.removeprefix(mode).strip())
    assert label.name == name
    return label
