"""What `python -m profiling.trace` runs: a request recorded, written as a trace, summed up and drawn.

Needs a runtime that records, and nothing else.
"""

from __future__ import annotations

__all__: list[str] = []
