"""The terminal, or the pipe in its place, while answers stream to it.

Owns text that arrives in pieces, and what is said only to somebody who watches. Knows nothing of models or options.
"""

from __future__ import annotations

import sys

from models import BaseConsole


class Console(BaseConsole):
    """Answers and results on standard output; everything about them on standard error."""

    def __init__(self) -> None:
        """Bind the process's streams."""
        super().__init__()
        self._line_is_open = False

    @property
    def is_interactive(self) -> bool:
        """Whether somebody types and reads here."""
        return self._is_terminal(sys.stdin) and self._is_terminal(sys.stdout)

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
        """Print whole lines of output, below the answer."""
        self.end_text()
        super().result(lines)

    def progress(self, text: str) -> None:
        """Say what takes time, to somebody who watches."""
        if self.is_watched:
            self.note(text)
