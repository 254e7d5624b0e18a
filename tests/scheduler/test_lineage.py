"""Lineages: numbers, retiring, and two threads at once."""

from __future__ import annotations

import threading
from collections.abc import Callable

from scheduler import Generation, Lineage


def test_generations_are_numbered_from_0() -> None:
    lineage = Lineage()
    assert [lineage.begin().number for _ in range(3)] == [0, 1, 2]
    assert Lineage().begin().number == 0


def test_a_new_generation_is_never_stale() -> None:
    lineage = Lineage()
    for _ in range(3):
        generation = lineage.begin()
        assert not generation.stale
        lineage.retire(generation)
        assert generation.stale
    assert not lineage.begin().stale


def test_retiring_covers_all_before_and_none_behind() -> None:
    lineage = Lineage()
    generations = [lineage.begin() for _ in range(5)]
    lineage.retire(generations[2])
    assert [generation.stale for generation in generations] == [True, True, True, False, False]


def test_retiring_is_for_ever() -> None:
    lineage = Lineage()
    old, new = lineage.begin(), lineage.begin()
    lineage.retire(new)
    lineage.retire(old)
    assert old.stale
    assert new.stale


def test_two_threads_begin_different_generations() -> None:
    lineage = Lineage()
    begun: dict[str, list[Generation]] = {"left": [], "right": []}
    start = threading.Barrier(2)

    def begin(name: str) -> None:
        start.wait()
        begun[name].extend(lineage.begin() for _ in range(2_000))

    run_at_once(begin)
    numbers = [generation.number for generations in begun.values() for generation in generations]
    assert sorted(numbers) == list(range(4_000))


def test_a_thread_never_brings_back_what_another_has_retired() -> None:
    lineage = Lineage()
    generations = [lineage.begin() for _ in range(2_000)]
    start = threading.Barrier(2)
    revived: list[int] = []

    def retire(name: str) -> None:
        start.wait()
        # One retires every even number, the other every odd one; either's own must stay retired.
        for generation in generations[name == "right" :: 2]:
            lineage.retire(generation)
            if not generation.stale:
                revived.append(generation.number)

    run_at_once(retire)
    assert revived == []
    assert all(generation.stale for generation in generations)
    assert not lineage.begin().stale


def run_at_once(work: Callable[[str], None]) -> None:
    threads = [threading.Thread(target=work, args=(name,)) for name in ("left", "right")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
