"""Programs that drive a runtime and show what it did: benchmarks, traces, sweeps, reports.

The top floor. From Python 3.15 on the standard library has a package of the same name, in which
`cProfile` and `profile` find their code (https://peps.python.org/pep-0799/). Started from the
project's folder, Python finds this package first; appending the standard package's folder to
`__path__` lets `profiling.tracing` and `profiling.sampling` still be found, so no module here
may take one of these two names.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path

_standard_package = Path(sysconfig.get_path("stdlib"), "profiling")
if _standard_package.is_dir():
    __path__.append(str(_standard_package))

__all__: list[str] = []
