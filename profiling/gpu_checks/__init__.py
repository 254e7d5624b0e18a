"""What `python -m profiling.gpu_check` runs: checks of the device path, and figures of a device.

Needs nothing but the package itself: random weights, no tests, no network.
"""

from __future__ import annotations

__all__: list[str] = []
