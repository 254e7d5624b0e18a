"""The terminal, or the pipe in its place.

Owns what goes to standard output and what to standard error, and how progress is told: a bar to somebody who watches,
else a line now and then. Knows nothing of distillation.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from tqdm import tqdm

_LINE_EVERY_S = 30.0


class Console:
    """Results on standard output, everything about them on standard error."""

    def result(self, text: str) -> None:
        """Print whole lines of output."""
        print(text, flush=True)

    def note(self, text: str) -> None:
        """Say what is being done."""
        print(text, file=sys.stderr, flush=True)

    def error(self, error: BaseException | str) -> None:
        """Report a failure in one line."""
        self.note(f"error: {' '.join(str(error).split()) or type(error).__name__}")

    @contextmanager
    def progress(self, label: str, unit: str) -> Iterator[Progress]:
        """Tell how far a stage is, until the end of the `with` block."""
        progress = Progress(label, unit)
        try:
            yield progress
        finally:
            progress.close()

    @contextlib.contextmanager
    def warnings_shown(self) -> Generator[None, None, None]:
        """Print what the library warns of in the same manner."""
        logger = logging.getLogger("slipstream")
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("warning: %(message)s"))
        logger.addHandler(handler)
        try:
            yield
        finally:
            logger.removeHandler(handler)


class Progress:
    """Of one stage."""

    def __init__(self, label: str, unit: str) -> None:
        self._label = label
        self._unit = unit
        self._bar: tqdm[NoReturn] | None = None
        self._begun: tuple[float, int] | None = None
        self._next_line_s = 0.0

    def tell(self, done: int, wanted: int, words: str = "") -> None:
        """So much of so much is done; may be called as often as one likes."""
        if self._begun is None:
            self._begun = (time.monotonic(), done)
            if sys.stderr is not None and sys.stderr.isatty():
                self._bar = _new_bar(self._label, self._unit, done, wanted)
        if self._bar is not None:
            self._bar.set_postfix_str(words, refresh=False)
            self._bar.update(done - self._bar.n)
            return
        now_s = time.monotonic()
        if now_s >= self._next_line_s or done == wanted:
            self._next_line_s = now_s + _LINE_EVERY_S
            print(self._line(done, wanted, words), file=sys.stderr, flush=True)

    def close(self) -> None:
        """Leave the bar as it is."""
        if self._bar is not None:
            self._bar.close()

    def _line(self, done: int, wanted: int, words: str) -> str:
        share = f"{100 * done // max(1, wanted)} %"
        parts = [f"{self._label}: {done:,} of {wanted:,} {self._unit} ({share})"]
        started_s, first = self._begun or (0.0, 0)
        elapsed_s = time.monotonic() - started_s
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
