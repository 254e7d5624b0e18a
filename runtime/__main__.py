"""`python -m runtime`: ask a model from the command line."""

from __future__ import annotations

import sys

from runtime.cli import main

if __name__ == "__main__":
    sys.exit(main())
