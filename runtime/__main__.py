"""`python -m runtime`: ask a model from the command line."""

from __future__ import annotations

import sys

if __name__ == "__main__":
    try:
        from runtime.cli import main

        status = main()
    except KeyboardInterrupt:  # while torch was being imported, before anything of ours could catch it
        status = 130
    sys.exit(status)
