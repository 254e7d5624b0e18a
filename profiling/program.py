"""A measuring program from its start to its exit status.

Owns how it ends early: what cannot be done is one line, and whoever interrupts it sees no traceback. Knows nothing of
what is measured.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import NoReturn

from models import SlipstreamError, silence_standard_output

FAILED, INTERRUPTED, READER_GONE = 1, 130, 141
"""Exit statuses; the last two are those of a shell's child that SIGINT and SIGPIPE ended."""


def run_program(main: Callable[[], int]) -> NoReturn:
    """Run a program, and end the process with its exit status."""
    try:
        status = main()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        status = INTERRUPTED
    except BrokenPipeError:
        silence_standard_output()
        status = READER_GONE
    except SlipstreamError as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        status = FAILED
    sys.exit(status)
