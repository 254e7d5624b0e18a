"""How many tokens to propose.

Owns the policies that choose gamma and the acceptance estimate behind them. Knows nothing of models or caches.

Expected tokens a round with acceptance rate alpha, bonus token included: E(gamma, alpha) = (1 - alpha**(gamma + 1)) /
(1 - alpha), Leviathan et al., 2023, equation 1 (https://arxiv.org/abs/2211.17192).
"""

from __future__ import annotations

from typing import Protocol

from scheduler.costs import BlockCosts
from scheduler.settings import check_integer

_DECAY = 0.9
"""Weight of the past at each new round: about the last ten rounds count."""
_MIN_GAIN = 1.03
"""A longer block must promise this much more than plain decoding; measured costs are noisy."""
_FIRST_PROBE = 8
_LAST_PROBE = 64
"""Rounds without proposals before one tries again: doubling from the first to the last."""


def expected_tokens(gamma: int, alpha: float) -> float:
    """Mean number of tokens that a round commits."""
    return float(gamma + 1) if alpha >= 1 else (1 - alpha ** (gamma + 1)) / (1 - alpha)


class AcceptanceEstimate:
    """Running acceptance rate of one draft source, recent rounds weighing most."""

    def __init__(self, *, prior: float, weight: float = 4.0) -> None:
        """Start from a guess that counts as `weight` judged tokens."""
        self._accepted = prior * weight
        self._judged = weight

    def observe(self, num_proposed: int, num_accepted: int) -> None:
        """Take in one verdict; tokens behind the first rejected one were never judged."""
        num_judged = min(num_accepted + 1, num_proposed)
        self._accepted = self._accepted * _DECAY + num_accepted
        self._judged = self._judged * _DECAY + num_judged

    @property
    def alpha(self) -> float:
        """Probability that a proposed token is accepted, given that those before it were."""
        return self._accepted / self._judged


class GammaPolicy(Protocol):
    """Chooses how many tokens a source proposes next."""

    def choose(self) -> int:
        """Tokens to propose in the coming round; 0 makes it one ordinary decoding step."""
        ...

    def observe(self, num_proposed: int, num_accepted: int) -> None:
        """Learn from a verdict."""
        ...


class FixedGamma:
    """Always the same number."""

    def __init__(self, gamma: int) -> None:
        check_integer("gamma", gamma, low=0, advice="0 proposes nothing, 4 is a good start")
        self._gamma = gamma

    def choose(self) -> int:
        """The fixed number."""
        return self._gamma

    def observe(self, num_proposed: int, num_accepted: int) -> None:
        """Nothing to learn."""


class AdaptiveGamma:
    """The number that promises most tokens a second, given measured costs and recent acceptance.

    Where no number beats plain decoding it proposes nothing, and looks again after a pause that doubles while it
    stays without success.
    """

    def __init__(
        self, *, max_gamma: int, verify_costs: BlockCosts, draft_costs: BlockCosts | None, prior_alpha: float = 0.6
    ) -> None:
        """Bind the policy to its costs.

        Args:
            max_gamma: never propose more.
            verify_costs: the target's, by width.
            draft_costs: the draft's, of which width 1 counts; None for a source that costs nothing.
            prior_alpha: acceptance rate assumed at first.
        """
        check_integer("max_gamma", max_gamma, low=0, advice="8 is a good limit")
        self.max_gamma = max_gamma
        self.estimate = AcceptanceEstimate(prior=prior_alpha)
        self._verify_costs = verify_costs
        self._draft_costs = draft_costs
        self._pause = _FIRST_PROBE
        self._rounds_off = 0

    def choose(self) -> int:
        """The best gamma now, 0 where drafting does not pay, 1 when it is time to look again."""
        gamma = self._best()
        if gamma > 0 or self.max_gamma == 0:
            self._rounds_off = 0
            return gamma
        self._rounds_off += 1
        return int(self._probing)

    def observe(self, num_proposed: int, num_accepted: int) -> None:
        """Update the acceptance estimate; a success shortens the pause again."""
        if num_proposed == 0:
            return
        self.estimate.observe(num_proposed, num_accepted)
        if self._probing:
            self._rounds_off = 0
            self._pause = min(2 * self._pause, _LAST_PROBE)
        if num_accepted == num_proposed:
            self._pause = _FIRST_PROBE

    @property
    def _probing(self) -> bool:
        """Whether it is time to look again; a source that first has to catch up is asked until it has an answer."""
        return self._rounds_off > self._pause

    def _best(self) -> int:
        step_ms = self._verify_costs.estimate(1)
        if step_ms is None:
            return min(1, self.max_gamma)
        draft_ms = (self._draft_costs.estimate(1) or 0.0) if self._draft_costs is not None else 0.0
        alpha = self.estimate.alpha
        best_gamma, best_rate = 0, _MIN_GAIN / step_ms
        for gamma in range(1, self.max_gamma + 1):
            round_ms = gamma * draft_ms + (self._verify_costs.estimate(gamma + 1) or step_ms)
            rate = expected_tokens(gamma, alpha) / round_ms
            if rate > best_rate:
                best_gamma, best_rate = gamma, rate
        return best_gamma
