"""`python -m profiling.doctor`: why is speculation slow, or wrong, on this pair and machine?"""

from __future__ import annotations

from profiling.doctor.program import main
from profiling.program import run_program

if __name__ == "__main__":
    run_program(main)
