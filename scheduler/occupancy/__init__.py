"""How full the device is, and what follows: admission by memory, overlap off while others compute.

Knows nothing of models or rounds.
"""

from __future__ import annotations

from scheduler.occupancy.advice import OverlapAdvice, check_admission, overlap_advice
from scheduler.occupancy.field import OccupancyField
from scheduler.occupancy.probe import OccupancyProbe
from scheduler.occupancy.reading import Occupancy

__all__ = [
    "Occupancy",
    "OccupancyField",
    "OccupancyProbe",
    "OverlapAdvice",
    "check_admission",
    "overlap_advice",
]
