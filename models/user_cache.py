"""Where files that can be rebuilt are kept between runs, one folder per user.

Owns the folder's place and the atomic write. Knows nothing of what is kept there.
"""

from __future__ import annotations

import os
import secrets
import sys
from pathlib import Path

CACHE_VARIABLE = "SLIPSTREAM_CACHE"
"""Environment variable that names the folder outright."""


def user_cache_folder() -> Path:
    """The folder for this user's cached files; it need not exist yet.

    `SLIPSTREAM_CACHE` if set, else `slipstream` inside the platform's cache folder:
    `XDG_CACHE_HOME` where it is an absolute path (the XDG base directory specification has
    relative ones ignored), `~/Library/Caches` on macOS, `%LOCALAPPDATA%` on Windows, `~/.cache` elsewhere.
    """
    named = os.environ.get(CACHE_VARIABLE)
    if named:
        return Path(named).expanduser().absolute()
    xdg = os.environ.get("XDG_CACHE_HOME", "")
    if Path(xdg).is_absolute():
        return Path(xdg) / "slipstream"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "slipstream"
    local_app_data = os.environ.get("LOCALAPPDATA")
    if sys.platform == "win32" and local_app_data:
        return Path(local_app_data) / "slipstream"
    return Path.home() / ".cache" / "slipstream"


def write_atomically(path: Path, content: bytes) -> None:
    """Write `path` so that a reader sees the old file or the whole new one, never a part.

    Others may read it as far as the user's umask lets them, as with any file that is written in place.

    Raises:
        OSError: if the folder cannot be made or written; no temporary file stays behind.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Files of `tempfile` are the user's alone, whatever the umask.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with temporary.open("xb") as file:
            file.write(content)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
