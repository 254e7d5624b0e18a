"""Which known name stands for an unknown one."""

from __future__ import annotations

import pytest

from models.close_match import closest_name


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("--temprature", "--temperature"),
        ("--top", "--top-p"),
        ("--top-pk", "--top-p"),
        ("--tokens", None),
        ("", None),
    ],
)
def test_the_closest_name_is_meant_if_it_is_close(name: str, meant: str | None) -> None:
    # Any iterable will do, also one that can be read once.
    assert closest_name(name, iter(["--temperature", "--top-p", "--top-k-of"])) == meant


def test_nothing_is_close_to_nothing() -> None:
    assert closest_name("--top-p", []) is None
