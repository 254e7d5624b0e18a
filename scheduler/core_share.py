"""How many of a CPU's cores a lane's work gets.

Owns the two numbers, and setting them. Knows nothing of lanes or of who else wants cores.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from scheduler.settings import check_integer


@dataclass(frozen=True, kw_only=True)
class CoreShare:
    """Intra-op threads of one lane: all of the machine's while it runs by itself, a part while another runs as well.

    Raises:
        TypeError, ValueError: if a number is no whole number from 1 on.
    """

    alone: int
    together: int

    def __post_init__(self) -> None:
        for name in ("alone", "together"):
            check_integer(name, getattr(self, name), low=1, advice="a lane needs a thread to run on")

    def take(self, *, together: bool) -> None:
        """Set the calling thread's number; to be called by the worker whose operations it is about."""
        num_threads = self.together if together else self.alone
        # A change costs about a tenth of a millisecond, as a pool of threads grows or shrinks.
        if torch.get_num_threads() != num_threads:
            torch.set_num_threads(num_threads)
