"""How fast each way of decoding is expected to be, from what its steps cost and how often the draft is right.

Owns the arithmetic that turns costs and an acceptance rate into tokens a millisecond. Knows nothing of models,
streams or requests; measures nothing and chooses nothing.

Plain and sequential rounds follow Leviathan et al., 2023 (https://arxiv.org/abs/2211.17192): a round commits
E(gamma, alpha) tokens and takes gamma draft steps and one verify. A pipelined round commits as many, but what it takes
depends on how far the draft was ahead when it began, and that on how many rounds before it were hits. A miss puts the
draft back to nothing, so rounds between two misses are a renewal process: the n-th round of such a run happens with
probability hit**n, and how far the draft is ahead in it follows from the round before it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from scheduler.gamma import expected_tokens
from scheduler.settings import check_integer, check_number

_MOST_MS = 1e9
_NEGLIGIBLE = 1e-4
"""Share of the rounds that may be taken for one another."""
_MOST_ROUNDS = 64
"""Of a run of hits that are told apart; a draft that gains so little in each hardly gains at all."""
_ROUNDING = 1e-9
"""Tokens: steps that are no further from their end than this have ended."""
_PLAN_ADVICE = "plain rounds have neither gamma nor lead, sequential ones gamma, pipelined ones both"


class RoundMode(StrEnum):
    """How a round is run."""

    PLAIN = "plain"
    SEQUENTIAL = "sequential"
    PIPELINED = "pipelined"


@dataclass(frozen=True, kw_only=True)
class RoundPlan:
    """How rounds are to be run.

    Raises:
        TypeError, ValueError: if a number does not fit the mode.
    """

    mode: RoundMode
    gamma: int = 0
    """Tokens that a block proposes; 0 in plain mode."""
    lead: int = 0
    """Most tokens drafted past a block, the guess among them; 0 unless pipelined."""

    def __post_init__(self) -> None:
        least_gamma, least_lead = int(self.mode is not RoundMode.PLAIN), int(self.mode is RoundMode.PIPELINED)
        check_integer("gamma", self.gamma, low=least_gamma, high=None if least_gamma else 0, advice=_PLAN_ADVICE)
        check_integer("lead", self.lead, low=least_lead, high=None if least_lead else 0, advice=_PLAN_ADVICE)


@dataclass(frozen=True, kw_only=True)
class LaneCosts:
    """What the steps of both lanes cost in one situation.

    Raises:
        TypeError, ValueError: if a cost is no number or negative, or widths are missing.
    """

    draft_ms: float
    """One step of the draft: one token."""
    verify_ms: Mapping[int, float]
    """One call of the target, by width: gamma + 1 tokens; complete from width 1 on."""

    def __post_init__(self) -> None:
        check_number("draft_ms", self.draft_ms, low=0.0, high=_MOST_MS, advice="give milliseconds")
        widths = sorted(self.verify_ms)
        if not widths or widths != list(range(1, len(widths) + 1)):
            raise ValueError(f"verify_ms must have every width from 1 on, got widths {widths}; interpolate the others")
        for width in widths:
            check_number(
                f"verify_ms[{width}]", self.verify_ms[width], low=1e-9, high=_MOST_MS, advice="give milliseconds"
            )

    @property
    def max_gamma(self) -> int:
        """The longest proposal whose verify has a known cost."""
        return len(self.verify_ms) - 1


@dataclass(frozen=True, kw_only=True)
class RatedPlan:
    """A plan and what it promises."""

    plan: RoundPlan
    tokens_per_ms: float


@dataclass(frozen=True, kw_only=True)
class SpeedModel:
    """Expected speed on a machine with these costs.

    Raises:
        ValueError: if the two situations know different widths, or a cost is impossible.
    """

    alone: LaneCosts
    """While the other lane stands still."""
    together: LaneCosts | None = None
    """While the other lane runs all the time; None where they cannot run at once."""
    host_ms: float = 0.0
    """From a verdict to the next launch: the time of the event loop in each round."""

    def __post_init__(self) -> None:
        check_number("host_ms", self.host_ms, low=0.0, high=_MOST_MS, advice="give milliseconds")
        if self.together is not None and self.together.max_gamma != self.alone.max_gamma:
            raise ValueError(
                f"together.verify_ms has {len(self.together.verify_ms)} widths and alone.verify_ms "
                f"{len(self.alone.verify_ms)}; give both the same"
            )

    def tokens_per_ms(self, plan: RoundPlan, alpha: float) -> float:
        """Tokens that such rounds commit in a millisecond.

        Args:
            plan: how rounds are run.
            alpha: probability that a proposed token is accepted, given that those before it were.

        Raises:
            ValueError: if alpha is no probability, if gamma is longer than the costs say, or if the plan is pipelined
                and the lanes cannot run at once.
        """
        check_number("alpha", alpha, low=0.0, high=1.0, advice="it is a probability")
        self._check_gamma("plan.gamma", plan.gamma)
        if plan.mode is RoundMode.PLAIN:
            return 1 / (self.alone.verify_ms[1] + self.host_ms)
        if plan.mode is RoundMode.SEQUENTIAL:
            return expected_tokens(plan.gamma, alpha) / self._sequential_ms(plan.gamma)
        if self.together is None:
            raise ValueError(f"plan is {plan.mode}, but the lanes cannot run at once; give the costs together")
        return expected_tokens(plan.gamma, alpha) / self._pipelined_ms(self.together, plan.gamma, plan.lead, alpha)

    def leads(self, gamma: int, max_lead: int) -> tuple[int, ...]:
        """Leads that are worth a thought: the guess alone, what fits beside a verify, the next block, all.

        What just fits is worth it because a draft that stands still at the verdict restarts at once after a miss.
        """
        if self.together is None or max_lead < 1:
            return ()
        _, num_fitting = self._verified(self.together, gamma, max_lead, 0.0)
        candidates = {1, int(num_fitting + _ROUNDING), gamma + 1, max_lead}
        return tuple(sorted(lead for lead in candidates if 1 <= lead <= max_lead))

    def _check_gamma(self, name: str, gamma: int) -> None:
        advice = "verify_ms holds the costs of widths up to gamma + 1"
        check_integer(name, gamma, low=0, high=self.alone.max_gamma, advice=advice)

    def _sequential_ms(self, gamma: int) -> float:
        return gamma * self.alone.draft_ms + self.alone.verify_ms[gamma + 1] + self.host_ms

    def _pipelined_ms(self, together: LaneCosts, gamma: int, lead: int, alpha: float) -> float:
        """Mean time of a round, over the runs of hits between two misses."""
        hit = alpha ** (gamma + 1)
        draft_ms = self.alone.draft_ms
        # The first step of a new chain stands behind the verdict already; the others wait for the host.
        restart_ms = max(draft_ms, self.host_ms) + (gamma - 1) * draft_ms
        mean_ms, share, num_ahead = 0.0, 1.0, 0.0
        for _ in range(_MOST_ROUNDS):
            verify_ms, num_at_verdict = self._verified(together, gamma, lead, num_ahead)
            if lead > 1 and num_at_verdict < 2 - _ROUNDING:
                # A draft that never gets past its guess is not asked for any (`scheduler.pace`).
                return self.alone.verify_ms[gamma + 1] + restart_ms
            stopped = num_at_verdict >= lead
            num_ready = num_at_verdict - 1
            hit_ms = max(self.host_ms, (gamma - num_ready) * draft_ms)
            miss_ms = restart_ms + (0.0 if stopped else _left_of_a_step(num_at_verdict) * draft_ms)
            round_ms = verify_ms + hit * hit_ms + (1 - hit) * miss_ms
            num_drafted = 0.0 if stopped or not draft_ms else hit_ms / draft_ms
            next_ahead = max(0.0, num_ready + num_drafted - gamma)
            mean_ms += share * (1 - hit) * round_ms
            share *= hit
            if abs(next_ahead - num_ahead) < _ROUNDING or share < _NEGLIGIBLE:
                break
            num_ahead = next_ahead
        # All later ones are like the last.
        return mean_ms + share * round_ms

    def _verified(self, together: LaneCosts, gamma: int, lead: int, num_ahead: float) -> tuple[float, float]:
        """Time from the start of a verify to its verdict, and how many tokens the draft is past the block by then.

        Both lanes run until the draft is `lead` tokens ahead, then the target alone; the guess is waited for.
        """
        verify_ms, alone_ms = together.verify_ms[gamma + 1], self.alone.verify_ms[gamma + 1]
        drafting_ms = max(0.0, lead - num_ahead) * together.draft_ms
        if drafting_ms <= verify_ms:
            return drafting_ms + (1 - drafting_ms / verify_ms) * alone_ms, float(max(lead, num_ahead))
        num_at_verdict = num_ahead + verify_ms / together.draft_ms
        if num_at_verdict >= 1:
            return verify_ms, num_at_verdict
        return verify_ms + (1 - num_at_verdict) * self.alone.draft_ms, 1.0


def _left_of_a_step(num_tokens: float) -> float:
    """What part of the step that is under way has yet to run; a launch that has begun is not called back."""
    return math.ceil(num_tokens - _ROUNDING) - num_tokens
