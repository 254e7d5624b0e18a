"""How many tokens to propose, and how far past them to go on.

Owns the protocol of the policies that choose, and the simplest of them. Knows nothing of models or caches.

Expected tokens a round with acceptance rate alpha, bonus token included: E(gamma, alpha) = (1 - alpha**(gamma + 1)) /
(1 - alpha), Leviathan et al., 2023, equation 1 (https://arxiv.org/abs/2211.17192).
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from scheduler.acceptance import AcceptanceEstimate
from scheduler.promise import Promise
from scheduler.settings import check_integer


def expected_tokens(gamma: int, alpha: float) -> float:
    """Mean number of tokens that a round commits."""
    return float(gamma + 1) if alpha >= 1 else (1 - alpha ** (gamma + 1)) / (1 - alpha)


class Leads(NamedTuple):
    """How far past a block a loop lets its sources draft: at least and at most so many tokens."""

    least: int = 0
    most: int = 0

    @property
    def fixed(self) -> bool:
        """Whether there is nothing to choose."""
        return self.least == self.most


IN_TURN = Leads()
"""Draft and target take turns."""


class GammaPolicy(Protocol):
    """Chooses how many tokens a source proposes next, and how far past them it goes on."""

    def begin(self, leads: Leads = IN_TURN, gamma: int | None = None) -> None:
        """Start a request of a loop with these leads; a `gamma` that it asks for leaves nothing to choose there."""
        ...

    def choose(self) -> int:
        """Tokens to propose in the coming round; 0 makes it one ordinary decoding step."""
        ...

    @property
    def lead(self) -> int:
        """Tokens to draft past the block of the last choice."""
        ...

    @property
    def promise(self) -> Promise:
        """What the last choice is expected to bring."""
        ...

    @property
    def idle(self) -> bool:
        """Whether the source is known to be no use for now, so that it need not even read along."""
        ...

    def observe(self, num_proposed: int, num_accepted: int) -> None:
        """Learn from a verdict."""
        ...

    def explain(self) -> str:
        """The last choice and its reason, as a person would say it."""
        ...


class FixedGamma:
    """Always the same number, and as far past it as the loop lets it go."""

    idle = False

    def __init__(self, gamma: int, *, prior_alpha: float = 0.5) -> None:
        """Bind the number.

        Args:
            gamma: the number.
            prior_alpha: acceptance rate assumed before the first verdict; it has a say in promises only.
        """
        check_integer("gamma", gamma, low=0, advice="0 proposes nothing, 4 is a good start")
        self._own_gamma = self._gamma = gamma
        self._leads = IN_TURN
        self._estimate = AcceptanceEstimate(prior=prior_alpha)

    def begin(self, leads: Leads = IN_TURN, gamma: int | None = None) -> None:
        """Note the leads, and the number if the request has one of its own."""
        self._leads = leads
        self._gamma = self._own_gamma if gamma is None else gamma
        self._estimate.begin()

    def choose(self) -> int:
        """The fixed number."""
        return self._gamma

    @property
    def lead(self) -> int:
        """As much as the loop allows."""
        return self._leads.most

    @property
    def promise(self) -> Promise:
        """The acceptance alone: nobody told it what a round costs, so what is chosen by it does not depend on time."""
        return Promise(acceptance=self._estimate.alpha)

    def observe(self, num_proposed: int, num_accepted: int) -> None:
        """Update the acceptance estimate, which changes promises and not the number."""
        if num_proposed:
            self._estimate.observe(num_proposed, num_accepted)

    def explain(self) -> str:
        """That nobody chose."""
        return f"gamma is fixed at {self._gamma}"
