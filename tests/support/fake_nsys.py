"""A stand-in for nsys at its boundary: a script on PATH that notes how it was called and does what a test wants."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest

_SCRIPT = """#!/bin/sh
printf '%s\\n' "$@" > {arguments}
while [ "$1" != -o ]; do shift; done
report="$2"
{body}
"""


class FakeNsys:
    """The script and its notes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path, body: str) -> None:
        """Put the script on PATH.

        Args:
            monkeypatch: undoes that.
            folder: for script and notes.
            body: shell commands, for which `$report` is what nsys was told to write.
        """
        self._notes = folder / "nsys-arguments"
        programs = folder / "programs"
        programs.mkdir()
        script = programs / "nsys"
        script.write_text(_SCRIPT.format(arguments=shlex.quote(str(self._notes)), body=body))
        script.chmod(0o755)
        monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")

    @property
    def arguments(self) -> list[str] | None:
        """What it was called with; None if it was not."""
        return self._notes.read_text().splitlines() if self._notes.exists() else None
