"""`python -m profiling.trace`: see whether draft and verify overlap, and where the time goes."""

from __future__ import annotations

from profiling.program import run_program
from profiling.trace.program import main

if __name__ == "__main__":
    run_program(main)
