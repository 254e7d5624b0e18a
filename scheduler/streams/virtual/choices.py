"""Choices: all that is random about a virtual device, recorded so that a run can be had again.

Owns the generator and the trace. Knows nothing of what is chosen.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

from scheduler.errors import TraceMismatchError


class Choice(NamedTuple):
    """One of `num_options`, counted from 0."""

    num_options: int
    chosen: int


class Choices:
    """Draws choices from a seed, or takes them from the trace of an earlier run."""

    def __init__(self, seed: int, trace: Sequence[tuple[int, int]] | None) -> None:
        """Begin.

        Args:
            seed: of the generator; of no effect on a replay.
            trace: what an earlier device chose; None draws.
        """
        # random() is the one method whose sequence Python promises to keep from version to version.
        self._draw = random.Random(seed).random
        self._seed = seed
        self._replayed = None if trace is None else tuple(Choice(*choice) for choice in trace)
        self._made: list[Choice] = []

    @property
    def seed(self) -> int | None:
        """What the choices are drawn from; None if they are replayed."""
        return self._seed if self._replayed is None else None

    @property
    def made(self) -> tuple[Choice, ...]:
        """Every choice so far."""
        return tuple(self._made)

    def choose(self, num_options: int) -> int:
        """One of `num_options`, counted from 0; a single option is no choice and leaves no trace.

        Raises:
            TraceMismatchError: if the replayed run had another choice to make here, or none.
        """
        if num_options == 1:
            return 0
        if self._replayed is None:
            choice = Choice(num_options, int(self._draw() * num_options))
        else:
            choice = self._next_of(self._replayed, num_options)
        self._made.append(choice)
        return choice.chosen

    def check_used_up(self) -> None:
        """Make sure that nothing of a replayed trace is left.

        Raises:
            TraceMismatchError: if choices are left.
        """
        if self._replayed is not None and len(self._made) < len(self._replayed):
            raise TraceMismatchError(
                f"the program ended after {len(self._made)} of the {len(self._replayed)} choices of the trace: "
                "it is not the program that the trace was taken from; run it with a seed"
            )

    def _next_of(self, replayed: tuple[Choice, ...], num_options: int) -> Choice:
        index = len(self._made)
        if index == len(replayed):
            raise TraceMismatchError(
                f"the program goes on after all {index} choices of the trace: it is not the program that the trace was "
                "taken from, or the trace was taken before its end; run it with a seed"
            )
        choice = replayed[index]
        if choice.num_options != num_options or not 0 <= choice.chosen < num_options:
            raise TraceMismatchError(
                f"choice {index} of the trace is {choice.chosen} of {choice.num_options}, and the program has "
                f"{num_options} options there: it is not the program that the trace was taken from; run it with a seed"
            )
        return choice
