"""`python -m models.distill`."""

from __future__ import annotations

import sys

from models.distill.program import main

if __name__ == "__main__":
    sys.exit(main())
