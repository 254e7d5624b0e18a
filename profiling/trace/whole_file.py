"""Files of other libraries' making that appear whole or not at all.

Owns the temporary name. Knows nothing of what is written.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole_file(path: Path) -> Generator[Path, None, None]:
    """A path to write to, in the same folder; what was written there becomes `path` at the end, unless that raises.

    Raises:
        OSError: if it cannot become `path`.
    """
    # The endings stay: by these, libraries know what to write.
    temporary = path.with_name(f".{secrets.token_hex(8)}.{path.name}")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
