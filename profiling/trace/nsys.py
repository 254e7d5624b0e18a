"""Nsight Systems around this program: its command line, the process, and the report that must be there afterwards.

Owns how nsys is called and how it ends. Knows nothing of what is traced.

nsys watches the program from its start and collects between the program's two calls of the CUDA profiler interface, so
that loading and warming up are left out. (https://docs.nvidia.com/nsight-systems/UserGuide/)
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

NSYS = "nsys"
REPORT_ENDING = ".nsys-rep"
UNDER_NSYS = "--under-nsys"
"""Tells this program that nsys is around it already."""
PRINT_COMMAND = "--print-command"

_OLD_ENDING = ".qdrep"
"""Of reports before version 2021.4."""
_FAILED = 1
_KILLED = 128
"""Added to the number of the signal that ended a process, as shells do."""
_PATIENCE_S = {signal.SIGINT: 20.0, signal.SIGTERM: 5.0}
"""How long nsys and its child may take to end; at a SIGINT nsys still writes what it has."""

_Fingerprint = tuple[int, int, int]


class NsysError(Exception):
    """nsys did not do what it was called for; the message says what."""

    def __init__(self, message: str, *, status: int) -> None:
        super().__init__(message)
        self.status = status
        """What the program should end with."""


def is_installed() -> bool:
    """Whether nsys is on PATH."""
    return shutil.which(NSYS) is not None


def nsys_command(arguments: Sequence[str], report: Path, *, cuda_graph_trace: bool) -> list[str]:
    """The command line that traces this program under nsys.

    Args:
        arguments: of this program.
        report: what nsys is to write.
        cuda_graph_trace: whether the nodes of CUDA graphs are shown one by one.
    """
    options = [
        "-t",
        "cuda,nvtx,osrt",
        "-s",
        "none",
        "--capture-range=cudaProfilerApi",
        "--capture-range-end=stop",
        *(["--cuda-graph-trace=node"] if cuda_graph_trace else []),
        "--force-overwrite=true",
        "-o",
        # nsys has placeholders that begin with a percent sign.
        str(report).replace("%", "%%"),
    ]
    own = [argument for argument in arguments if argument != PRINT_COMMAND]
    return [NSYS, "profile", *options, sys.executable, "-m", "profiling.trace", UNDER_NSYS, *own]


def run_nsys(command: Sequence[str], report: Path, *, on_line: Callable[[str], None] | None = None) -> Path:
    """Run nsys to its end; returns where the report lies, which was seen there.

    Args:
        command: as `nsys_command` gives it.
        report: what it is to write.
        on_line: takes each line that it prints; None lets it print by itself.

    Raises:
        NsysError: if it cannot be started, failed, or wrote nothing.
    """
    candidates = [report, report.with_name(report.name + REPORT_ENDING), report.with_suffix(_OLD_ENDING)]
    before = {path: _fingerprint(path) for path in candidates}
    status = _run(command, on_line)
    if status != 0:
        raise NsysError(f"nsys, or the program under it, ended with status {status}", status=status)
    for path in candidates:
        # A report of an earlier run is none of this one.
        if (found := _fingerprint(path)) is not None and found != before[path]:
            return path
    raise NsysError(
        f"nsys ended without an error and without writing {report}; see what it printed, and try {NSYS} status -e",
        status=_FAILED,
    )


def _fingerprint(path: Path) -> _Fingerprint | None:
    """Tells a file from the one that was there before; None where there is none, or an empty one."""
    try:
        status = path.stat()
    except OSError:
        return None
    return (status.st_ino, status.st_mtime_ns, status.st_size) if status.st_size else None


def _run(command: Sequence[str], on_line: Callable[[str], None] | None) -> int:
    with _endings_raised() as endings:
        try:
            # Else a signal could come when nsys runs already and nobody here knows its number yet.
            with endings.waiting():
                # A group of its own, so that all of it can be ended, whoever in it listens to signals.
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=None if on_line is None else subprocess.PIPE,
                    text=True,
                    errors="replace",
                    process_group=0 if os.name == "posix" else None,
                )
        except OSError as error:
            raise NsysError(f"{command[0]} cannot be started: {error.strerror or error}", status=_FAILED) from error
        try:
            endings.check()
            if on_line is not None and process.stdout is not None:
                for line in process.stdout:
                    on_line(line.rstrip("\n"))
            status = process.wait()
        except BaseException:
            with _drained(process):
                _end(process)
            raise
        if process.stdout is not None:
            process.stdout.close()
    return status if status >= 0 else _KILLED - status


@contextmanager
def _drained(process: subprocess.Popen[str]) -> Generator[None, None, None]:
    """What it still prints is taken and dropped: of a closed pipe it could die, and for a full one wait for ever."""
    pipe = process.stdout
    if pipe is None:
        yield
        return

    def drain() -> None:
        with pipe:
            while os.read(pipe.fileno(), 1 << 16):
                pass

    thread = threading.Thread(target=drain, daemon=True)
    thread.start()
    yield
    # Somebody who left the group may hold the pipe open.
    thread.join(_PATIENCE_S[signal.SIGTERM])


def _end(process: subprocess.Popen[str]) -> None:
    """Ask the whole group to end, more and more firmly."""
    try:
        for number, patience_s in _PATIENCE_S.items():
            _signal(process, number)
            with suppress(subprocess.TimeoutExpired):
                process.wait(patience_s)
                return
    finally:
        # Whoever is left of the group, also where somebody has no patience.
        _signal(process, signal.SIGKILL)
        process.wait()


def _signal(process: subprocess.Popen[str], number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        if os.name == "posix":
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)


class _Endings:
    """Signals that would end this process, as exceptions; while nsys is being started they wait."""

    def __init__(self) -> None:
        self._waits = False
        self._waiting: BaseException | None = None

    def take(self, number: int, frame: FrameType | None) -> None:
        """A signal has come."""
        error = KeyboardInterrupt() if number == signal.SIGINT else SystemExit(_KILLED + number)
        if not self._waits:
            raise error
        self._waiting = error

    @contextmanager
    def waiting(self) -> Generator[None, None, None]:
        """Let signals wait."""
        self._waits = True
        try:
            yield
        finally:
            self._waits = False

    def check(self) -> None:
        """Raise what has waited."""
        if self._waiting is not None:
            raise self._waiting


@contextmanager
def _endings_raised() -> Generator[_Endings, None, None]:
    """What would end this process at once is an exception meanwhile, so that nsys and its child end as well."""
    endings = _Endings()
    if threading.current_thread() is not threading.main_thread():
        yield endings
        return
    numbers = [signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]
    before = {number: signal.signal(number, endings.take) for number in numbers}
    try:
        yield endings
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
