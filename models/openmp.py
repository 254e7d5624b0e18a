"""How long OpenMP workers spin when they wait; to be settled before torch is imported.

Owns one environment variable of GNU OpenMP, which the Linux builds of torch compute with. Knows nothing of torch.

A worker that waits for the others at the end of every operation spins for milliseconds by default. That is fastest
while nobody else wants the cores and ten times slower as soon as somebody does, since the one waited for does not
run. A few microseconds of spinning keep all of the speed on a quiet machine and most of it on a busy one.
"""

from __future__ import annotations

import os
import sys

SPIN_VARIABLE = "GOMP_SPINCOUNT"
SPIN_COUNT = "8000"
_WAS_GIVEN = SPIN_VARIABLE in os.environ


def limit_spinning() -> None:
    """Set the spin count for this process, unless the user has, or torch is there already and has read it."""
    if "torch" not in sys.modules and "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault(SPIN_VARIABLE, SPIN_COUNT)


def environment_as_given() -> dict[str, str]:
    """A copy of the environment without what `limit_spinning` added: for programs that are not this project's."""
    environment = dict(os.environ)
    if not _WAS_GIVEN and environment.get(SPIN_VARIABLE) == SPIN_COUNT:
        del environment[SPIN_VARIABLE]
    return environment
