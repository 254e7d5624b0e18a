"""One sweep at a time in a folder.

Owns the lock, which the system gives back when a process ends, however it ends. Knows nothing of sweeps.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Generator
from pathlib import Path

from models import SlipstreamError

LOCK = "sweep.lock"

if sys.platform == "win32":
    import msvcrt

    def _take(descriptor: int) -> None:
        # Far behind the text, which others are to read.
        os.lseek(descriptor, 1 << 20, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)

else:
    import fcntl

    def _take(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


class FolderInUseError(SlipstreamError):
    """Another sweep writes to the folder."""


@contextlib.contextmanager
def folder_lock(folder: Path) -> Generator[None, None, None]:
    """Keep other sweeps out of `folder`.

    Raises:
        FolderInUseError: if there is one.
        OSError: if the lock file cannot be made.
    """
    path = folder / LOCK
    descriptor = _locked_file(path)
    try:
        os.ftruncate(descriptor, 0)
        os.lseek(descriptor, 0, os.SEEK_SET)
        os.write(descriptor, str(os.getpid()).encode())
        yield
    finally:
        # Before it is let go of: afterwards the file may be another's.
        with contextlib.suppress(OSError):
            path.unlink()
        os.close(descriptor)


def _locked_file(path: Path) -> int:
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            _take(descriptor)
        except OSError as error:
            os.close(descriptor)
            raise FolderInUseError(_in_use(path)) from error
        # Whoever had it may have removed the file between our opening and our locking it.
        if path.exists() and os.path.samestat(os.fstat(descriptor), path.stat()):
            return descriptor
        os.close(descriptor)


def _in_use(path: Path) -> str:
    with contextlib.suppress(OSError):
        owner = path.read_text(encoding="utf-8", errors="replace").strip()
        return (
            f"another sweep{f', process {owner},' if owner else ''} is writing to {path.parent}; wait for it, or name "
            f"another --out-dir; if there is none, as after a crash on a network drive, delete {path}"
        )
    return f"another sweep is writing to {path.parent}; wait for it, or name another --out-dir"
