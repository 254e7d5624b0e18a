"""The runs of an unfinished sweep, kept in a file as they are made.

Owns the file: its first line says what is measured and on what, each other line is a run. Knows nothing of how runs are
made.

A line is written and synchronised at once, so a process that is killed loses the run that it was making; half a line at
the end is dropped. Runs of another setting, machine, code or pair are never taken for these: they are refused by name.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from models import SlipstreamError, write_atomically
from profiling.sweep.run import SweepRun

UNFINISHED = "sweep-unfinished.jsonl"
_MACHINE_FIELDS = ("processor", "num_cores", "vector_extension", "system", "python", "torch")
"""What a figure depends on; the date and the load may be others."""


class SweepJournalError(SlipstreamError):
    """There are runs of another sweep in the folder."""


class SweepJournal:
    """One unfinished sweep in one folder."""

    def __init__(
        self, folder: Path, settings: Mapping[str, Any], machine: Mapping[str, Any], identity: Mapping[str, Any]
    ) -> None:
        """Read what there is.

        Args:
            folder: where the file is, or will be.
            settings: what is measured.
            machine: what it is measured on.
            identity: what tells the code and the weights from others.

        Raises:
            SweepJournalError: if the file holds another sweep, or is none.
        """
        self.path = folder / UNFINISHED
        self.runs: list[SweepRun] = []
        self._settings = dict(settings)
        self._machine = {name: machine.get(name) for name in _MACHINE_FIELDS}
        self._identity = dict(identity)
        self._loaded: object = None
        lines = self._lines()
        self._is_new = not lines
        if lines:
            header, *runs = lines
            self._check(header)
            try:
                self.runs = [SweepRun.from_dict(run) for run in runs]
            except (KeyError, TypeError, ValueError) as error:
                raise SweepJournalError(f"{self.path} is damaged ({error!r}); delete it to begin anew") from error
            self._loaded = header.get("loaded")

    def begin(self, loaded: Mapping[str, Any], runs: Sequence[SweepRun]) -> None:
        """Go on behind these runs, which leaves out those of a turn that was cut short.

        Args:
            loaded: what the settings came to, such as the drafts that `auto` chose.
            runs: those among `runs` that are kept.

        Raises:
            SweepJournalError: if that is not what the file's runs were made with.
        """
        plain_loaded = json.loads(json.dumps(loaded))
        if not self._is_new and isinstance(self._loaded, dict):
            self._check_equal("a runtime with", self._loaded, plain_loaded)
        header = {
            "settings": self._settings,
            "machine": self._machine,
            "identity": self._identity,
            "loaded": plain_loaded,
        }
        lines = [json.dumps(header), *(json.dumps(run.as_dict()) for run in runs)]
        write_atomically(self.path, "".join(f"{line}\n" for line in lines).encode())
        self.runs, self._is_new = list(runs), False

    def append(self, run: SweepRun) -> None:
        """Keep one more run."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(run.as_dict()) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self.runs.append(run)

    def finish(self, path: Path) -> None:
        """Give the file its lasting name, so that the next sweep of the folder begins anew."""
        os.replace(self.path, path)

    def _lines(self) -> list[dict[str, Any]]:
        if not self.path.exists():
            return []
        text = self.path.read_bytes().decode("utf-8", errors="replace")
        # What follows the last line's end was being written when the process ended.
        whole_lines = text[: text.rfind("\n") + 1].splitlines()
        try:
            lines = [json.loads(line) for line in whole_lines]
        except ValueError as error:
            raise SweepJournalError(f"{self.path} is damaged ({error}); delete it to begin anew") from error
        if not all(isinstance(line, dict) for line in lines):
            raise SweepJournalError(f"{self.path} is not the file of a sweep; delete it, or name another --out-dir")
        return lines

    def _check(self, header: Mapping[str, Any]) -> None:
        for name, wanted, what in (
            ("settings", self._settings, "a sweep with"),
            ("machine", self._machine, "runs of a machine with"),
            ("identity", self._identity, "runs made with"),
        ):
            found = header.get(name)
            if not isinstance(found, dict):
                raise SweepJournalError(f"{self.path} is not the file of a sweep; delete it, or name another --out-dir")
            self._check_equal(what, found, wanted)

    def _check_equal(self, what: str, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
        for name in dict.fromkeys((*found, *wanted)):
            if found.get(name) != wanted.get(name):
                raise SweepJournalError(
                    f"{self.path} holds {what} {name} {_shown(found.get(name))}, and this is one with "
                    f"{_shown(wanted.get(name))}; go on as it was begun, name another --out-dir, or delete that file"
                )


def _shown(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
