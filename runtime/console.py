"""The terminal, or the pipe in its place.

Owns what goes to standard output and what to standard error. Knows nothing of models.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys


class Console:
    """Streamed text and results on standard output; everything about them on standard error."""

    def __init__(self, *, streams_text: bool) -> None:
        """`streams_text` is False where a JSON object takes the text's place."""
        self.streams_text = streams_text
        self._open_line = False
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(AttributeError):  # a replaced stream, as in tests, may be of another kind
                # A terminal that cannot show a character must not end the answer.
                stream.reconfigure(errors="replace")  # type: ignore[union-attr]  # TextIO lacks what TextIOWrapper has

    @property
    def is_interactive(self) -> bool:
        """Whether somebody types and reads here."""
        return sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()

    def write(self, text: str) -> None:
        """Show the next piece of an answer at once."""
        if self.streams_text and text:
            sys.stdout.write(text)
            sys.stdout.flush()
            self._open_line = not text.endswith("\n")

    def end_text(self) -> None:
        """Finish the line that an answer ended in, if it did not end with one."""
        if self._open_line:
            self._open_line = False
            self.result("")

    def heading(self, text: str) -> None:
        """Begin a section of the output."""
        if self.streams_text:
            self.result(f"--- {text} ---")

    def result(self, line: str) -> None:
        """Print a whole line of output."""
        print(line, flush=True)

    def note(self, text: str) -> None:
        """Say something about the answer."""
        print(text, file=sys.stderr, flush=True)

    def progress(self, text: str) -> None:
        """Say what takes time, to somebody who watches."""
        if sys.stderr.isatty():
            self.note(text)

    def error(self, error: BaseException | str) -> None:
        """Report a failure in one line."""
        self.end_text()
        self.note(f"error: {' '.join(str(error).split()) or type(error).__name__}")

    def show_warnings(self) -> None:
        """Print what the library warns of in the same manner."""
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("warning: %(message)s"))
        logging.getLogger("slipstream").addHandler(handler)


def silence_standard_output() -> None:
    """Send what is still to come nowhere: the reader has gone, and the interpreter flushes once more at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
