"""How often a source's proposals are accepted: now, in this request, and over requests.

Owns the running estimate. Knows nothing of costs or of what is done with it.
"""

from __future__ import annotations

_DECAY = 0.95
"""Weight of the past at each new round: about the last twenty rounds count. A shorter memory takes bad luck for a bad
draft, and then learns nothing for a while, as nothing is drafted."""
_REQUEST_WEIGHT = 6.0
"""Judged tokens that what was learnt before counts for at the start of a request: a few, since text differs more
between requests than within one."""
_MEMORY = 200.0
"""Judged tokens of earlier requests that count."""


class AcceptanceEstimate:
    """Running acceptance rate of one draft source, recent rounds weighing most."""

    def __init__(self, *, prior: float, weight: float = 4.0) -> None:
        """Start from a guess that counts as `weight` judged tokens."""
        self._accepted = prior * weight
        self._judged = weight
        self.assumed = True
        """Whether nothing was judged yet."""
        self._past_accepted = self._accepted
        self._past_judged = self._judged

    def begin(self) -> None:
        """Start a request from what all earlier ones came to."""
        if self._past_judged > _MEMORY:
            self._past_accepted *= _MEMORY / self._past_judged
            self._past_judged = _MEMORY
        self._accepted = self._past_accepted / self._past_judged * _REQUEST_WEIGHT
        self._judged = _REQUEST_WEIGHT

    def observe(self, num_proposed: int, num_accepted: int) -> None:
        """Take in one verdict; tokens behind the first rejected one were never judged."""
        self.assumed = False
        num_judged = min(num_accepted + 1, num_proposed)
        self._accepted = self._accepted * _DECAY + num_accepted
        self._judged = self._judged * _DECAY + num_judged
        self._past_accepted += num_accepted
        self._past_judged += num_judged

    @property
    def alpha(self) -> float:
        """Probability that a proposed token is accepted, given that those before it were."""
        return self._accepted / self._judged
