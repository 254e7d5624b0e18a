"""What `python -m profiling.doctor` runs: checks of a pair on its machine, each with a verdict and what to do.

Needs a pair that can be loaded and nothing else.
"""

from __future__ import annotations

__all__: list[str] = []
