"""`python -m runtime`: ask a model from the command line."""

from __future__ import annotations

import sys

if __name__ == "__main__":
    try:
        from runtime.cli import main

        status = main()
    except KeyboardInterrupt:  # as early as while torch is being imported
        status = 130  # that of a shell's child that SIGINT ended
    sys.exit(status)
