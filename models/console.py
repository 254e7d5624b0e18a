"""What every program of the project says, and on which standard stream it says it.

Owns results, notes, errors and warnings as lines of text. Knows nothing of models, nor of what a program does.

A stream that was closed before Python started is None; whatever is meant for it is dropped.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Generator
from typing import TextIO


class BaseConsole:
    """Results on standard output; everything about them on standard error."""

    def __init__(self) -> None:
        """Bind the process's streams; a character that they cannot show is replaced and does not end the program."""
        for stream in (sys.stdout, sys.stderr):
            _replace_unknown_characters(stream)

    @property
    def is_watched(self) -> bool:
        """Whether standard error is a terminal, where somebody reads along."""
        return self._is_terminal(sys.stderr)

    def result(self, lines: str) -> None:
        """Print whole lines of output."""
        print(lines, flush=True)

    def note(self, text: str) -> None:
        """Say something about the results."""
        # Given no stream, `print` takes standard output.
        if sys.stderr is not None:
            print(text, file=sys.stderr, flush=True)

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

    @staticmethod
    def _is_terminal(stream: TextIO | None) -> bool:
        return stream is not None and stream.isatty()


def _replace_unknown_characters(stream: TextIO | None) -> None:
    # A stream that a program put in place of the standard one may be of a kind that has no encoding.
    if reconfigure := getattr(stream, "reconfigure", None):
        reconfigure(errors="replace")


def silence_standard_output() -> None:
    """Send what is still to come nowhere: the reader has gone, and the interpreter flushes once more at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
