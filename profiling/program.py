"""A measuring program from its start to its exit status.

Owns how it ends early: what cannot be done is one line, and whoever interrupts it sees no traceback. Knows nothing of
what is measured.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import NoReturn

from models import SlipstreamError

FAILED, INTERRUPTED = 1, 130
"""Exit statuses; the second is that of a shell's child that SIGINT ended."""


def run_program(main: Callable[[], int]) -> NoReturn:
    """Run a program, and end the process with its exit status."""
    try:
        status = main()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        status = INTERRUPTED
    except SlipstreamError as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        status = FAILED
    sys.exit(status)
