"""Vector clocks: what has certainly happened before.

Owns the partial order of the virtual device. A clock holds, for every stream, how many of its launches are known to be
over; what happened before what is then a comparison of two numbers (Fidge 1988, Mattern 1989). The host has a clock but
no component in one: it launches and reads results, and touches no buffer itself.
"""

from __future__ import annotations

from itertools import zip_longest

Clock = tuple[int, ...]
"""Entry i: the number of the last launch of stream i that is known; absent entries are 0."""

NOTHING_KNOWN: Clock = ()


def joined(left: Clock, right: Clock) -> Clock:
    """What is known to whoever knows both."""
    if left is right or not right:
        return left
    if len(left) == len(right):
        return tuple(map(max, left, right))
    return tuple(max(pair) for pair in zip_longest(left, right, fillvalue=0))


def advanced(clock: Clock, stream: int, number: int) -> Clock:
    """The same knowledge and launch `number` of that stream."""
    padded = clock + (0,) * (stream + 1 - len(clock))
    return (*padded[:stream], number, *padded[stream + 1 :])


def knows(clock: Clock, stream: int, number: int) -> bool:
    """Whether launch `number` of that stream is certainly over."""
    return stream < len(clock) and clock[stream] >= number
