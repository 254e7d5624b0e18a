"""What a launch is called where nobody gave it a name."""

from __future__ import annotations

from functools import partial


def label_of(work: object) -> str:
    """The name of the function or method behind `work`; for another callable object, that of its class."""
    while isinstance(work, partial):
        work = work.func
    name = getattr(work, "__name__", None)
    return name if isinstance(name, str) else type(work).__name__
