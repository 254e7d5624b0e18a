"""The terminal, or the pipe in its place, while a long program runs.

Owns how progress is told: a bar to somebody who watches, else a line now and then. Knows nothing of distillation.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

from models.console import BaseConsole

if TYPE_CHECKING:
    from tqdm import tqdm

_LINE_EVERY_S = 30.0
_WINDOW_S = 60.0
"""Over which a rate is taken: what a stage's parts take may differ."""


class Console(BaseConsole):
    """Results on standard output; everything about them, and how far they are, on standard error."""

    @contextmanager
    def progress(self, label: str, unit: str) -> Iterator[Progress]:
        """Tell how far a stage is, until the end of the `with` block."""
        progress = Progress(self, label, unit)
        try:
            yield progress
        finally:
            progress.close()


class Progress:
    """Of one stage."""

    def __init__(self, console: BaseConsole, label: str, unit: str) -> None:
        """Begin a stage that works through things of that unit; use `Console.progress`."""
        self._console = console
        self._label = label
        self._unit = unit
        self._bar: tqdm[NoReturn] | None = None
        self._told: deque[tuple[float, int]] = deque()
        """When how much was done: all of the window, and the last before it."""
        self._next_line_s = 0.0

    def tell(self, done: int, wanted: int, words: str = "") -> None:
        """So much of so much is done; may be called as often as one likes."""
        now_s = time.monotonic()
        if not self._told and self._console.is_watched:
            self._bar = _new_bar(self._label, self._unit, done, wanted)
        self._told.append((now_s, done))
        while len(self._told) > 2 and self._told[1][0] <= now_s - _WINDOW_S:
            self._told.popleft()
        if self._bar is not None:
            self._bar.set_postfix_str(words, refresh=False)
            self._bar.update(done - self._bar.n)
            return
        if now_s >= self._next_line_s or done == wanted:
            self._next_line_s = now_s + _LINE_EVERY_S
            self._console.note(self._line(done, wanted, words))

    def close(self) -> None:
        """Leave the bar as it is."""
        if self._bar is not None:
            self._bar.close()

    def _line(self, done: int, wanted: int, words: str) -> str:
        share = f"{100 * done // max(1, wanted)} %"
        parts = [f"{self._label}: {done:,} of {wanted:,} {self._unit} ({share})"]
        (started_s, first), (now_s, _) = self._told[0], self._told[-1]
        elapsed_s = now_s - started_s
        if done > first and elapsed_s > 0:
            rate = (done - first) / elapsed_s
            parts.append(f"{rate:,.4g} {self._unit}/s")
            if done < wanted:
                parts.append(f"{duration_text((wanted - done) / rate)} left")
        return ", ".join([*parts, *([words] if words else [])])


def duration_text(seconds: float) -> str:
    """In the unit that reads best."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.1f} h"


def _new_bar(label: str, unit: str, done: int, wanted: int) -> tqdm[NoReturn]:
    from tqdm import tqdm

    return tqdm(
        desc=label, total=wanted, initial=done, unit=f" {unit}", unit_scale=True, file=sys.stderr, dynamic_ncols=True
    )
