"""An error that comes back until it is forgotten.

Knows nothing of what failed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class FirstError:
    """The first error of a request: whatever is done after it fails likewise.

    A draft that failed while it ran ahead has failed, even if nobody was to read that very token.
    """

    def __init__(self) -> None:
        self._error: BaseException | None = None

    def forget(self) -> None:
        """Start anew."""
        self._error = None

    @contextmanager
    def remembered(self) -> Iterator[None]:
        """Within, the first error is kept; once there is one, nothing is done but raise it."""
        if self._error is not None:
            raise self._error
        try:
            yield
        except BaseException as error:
            self._error = error
            raise
