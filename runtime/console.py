"""The terminal, or the pipe in its place.

Owns what goes to standard output and what to standard error. Knows nothing of models or options.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Generator
from typing import TextIO


class Console:
    """Answers and results on standard output; everything about them on standard error."""

    def __init__(self) -> None:
        """Bind the process's streams; a character that they cannot show is replaced and does not end the answer."""
        self._line_is_open = False
        for stream in (sys.stdout, sys.stderr):
            _replace_unknown_characters(stream)

    @property
    def is_interactive(self) -> bool:
        """Whether somebody types and reads here."""
        return _is_terminal(sys.stdin) and _is_terminal(sys.stdout)

    def write(self, text: str) -> None:
        """Show the next piece of an answer at once."""
        if text:
            print(text, end="", flush=True)
            self._line_is_open = not text.endswith("\n")

    def end_text(self) -> None:
        """Finish the line that an answer ended in, if it did not end with one."""
        if self._line_is_open:
            self.write("\n")

    def result(self, lines: str) -> None:
        """Print whole lines of output."""
        self.write(f"{lines}\n")

    def note(self, text: str) -> None:
        """Say something about the answer."""
        if sys.stderr is not None:
            print(text, file=sys.stderr, flush=True)

    def progress(self, text: str) -> None:
        """Say what takes time, to somebody who watches."""
        if _is_terminal(sys.stderr):
            self.note(text)

    def error(self, error: BaseException | str) -> None:
        """Report a failure in one line."""
        self.note(f"error: {' '.join(str(error).split()) or type(error).__name__}")

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


def silence_standard_output() -> None:
    """Send what is still to come nowhere: the reader has gone, and the interpreter flushes once more at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _is_terminal(stream: TextIO | None) -> bool:
    """A closed stream is None in Python."""
    return stream is not None and stream.isatty()


def _replace_unknown_characters(stream: TextIO) -> None:
    # A stream that a program put in place of the standard one may be of a kind that has no encoding.
    if reconfigure := getattr(stream, "reconfigure", None):
        reconfigure(errors="replace")
