"""`python -m runtime`: ask a model from the command line."""

from __future__ import annotations

import os
import sys

# Workers of GNU OpenMP that spin at a barrier stand in the way of whoever else wants the cores, tenfold; it reads this
# when torch is loaded, so it comes before our imports.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

if __name__ == "__main__":
    from runtime.cli import main

    sys.exit(main())
