"""Numbers of intra-op threads: which are asked for, and running with one of them for a while.

Owns the checks and the switch. torch keeps the number for each calling thread (OpenMP's own rule), so a switch
is felt by the calling thread alone. Knows nothing of what is run.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import contextmanager

import torch


def with_present_count(thread_counts: Iterable[int]) -> tuple[int, ...]:
    """The counts, ascending, this thread's present one among them.

    Raises:
        TypeError: if a count is no whole number.
        ValueError: if a count is below 1.
    """
    counts = {torch.get_num_threads()}
    for count in thread_counts:
        if not isinstance(count, int) or isinstance(count, bool):
            raise TypeError(f"thread_counts must hold whole numbers, got {count!r}")
        if count < 1:
            raise ValueError(f"thread_counts must hold numbers from 1 on, got {count}")
        counts.add(count)
    return tuple(sorted(counts))


@contextmanager
def intra_op_threads(count: int) -> Generator[None, None, None]:
    """Let torch's operations use `count` threads when called from this thread, and the number before afterwards."""
    before = torch.get_num_threads()
    if count == before:
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
