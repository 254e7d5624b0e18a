"""The controller: whether a source drafts, how many tokens a block, and whether it goes on while the block is verified.

Owns the choice among plain rounds, rounds in turn and overlapping ones, for one source (or one class of its proposals),
by expected tokens a second: from costs measured on this machine and an acceptance rate measured on this text. What was
fixed by the caller stays fixed, and the choice is made among what is left. Knows nothing of models or streams.

It does no harm: where nothing promises a real gain over plain decoding nothing is drafted, and it looks again
after a pause that doubles while it stays without success. To be right is no success for a draft that costs so much
that it would not pay if it always were.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

from scheduler.acceptance import AcceptanceEstimate
from scheduler.costs import BlockCosts
from scheduler.decision import Decision, explain
from scheduler.gamma import IN_TURN, Leads
from scheduler.overlap_trial import OverlapTrial
from scheduler.promise import Promise
from scheduler.settings import check_integer
from scheduler.speed_model import LaneCosts, RatedPlan, RoundMode, RoundPlan, SpeedModel

_MIN_GAIN = 1.03
"""Drafting must promise this much more than plain decoding; measured costs are noisy."""
_MIN_OVERLAP_GAIN = 1.02
"""Running ahead must promise this much more than drafting in turn, which is the steadier of the two."""
_FIRST_PROBE = 8
_LAST_PROBE = 64
"""Rounds without proposals before one tries again: doubling from the first to the last."""
_LAST_HOPELESS_PROBE = 512
"""The same where no acceptance rate would make the draft pay: only costs may change, and reading along has its own."""
_PLAIN = RoundPlan(mode=RoundMode.PLAIN)
_STALE_AFTER = 8
_ALPHA_STEP = 0.01
"""A choice is thought over after so many rounds, or when the acceptance rate has moved by so much."""


@dataclass(frozen=True, kw_only=True)
class SourceCosts:
    """What a controller reckons with; the tables are refreshed by every round."""

    verify: BlockCosts
    """The target's blocks by width, while the draft is idle."""
    draft: BlockCosts | None
    """The draft's, of which width 1 counts, while the target is idle; None for a source that costs nothing."""
    verify_together: BlockCosts | None = None
    draft_together: BlockCosts | None = None
    """The same while both lanes run; None where that was never measured, and is taken to cost as much."""

    def speed_model(self, max_gamma: int) -> SpeedModel | None:
        """The present estimates; None before anything was measured."""
        alone = _lane_costs(self.verify, self.draft, max_gamma)
        if alone is None:
            return None
        together = _lane_costs(self.verify_together or self.verify, self.draft_together or self.draft, max_gamma)
        return SpeedModel(alone=alone, together=alone if together is None else _at_least(alone, together))


def _lane_costs(verify: BlockCosts, draft: BlockCosts | None, max_gamma: int) -> LaneCosts | None:
    draft_ms = 0.0 if draft is None else draft.estimate(1)
    if draft_ms is None:
        return None
    verify_ms: dict[int, float] = {}
    narrower_ms = 0.0
    for width in range(1, max_gamma + 2):
        estimate_ms = verify.estimate(width)
        if estimate_ms is None:
            return None
        # No block is cheaper than a narrower one; where the clock says so, it was disturbed.
        verify_ms[width] = narrower_ms = max(narrower_ms, estimate_ms)
    return LaneCosts(draft_ms=draft_ms, verify_ms=verify_ms)


def _at_least(alone: LaneCosts, together: LaneCosts) -> LaneCosts:
    """Costs together, where company never makes anything faster."""
    verify_ms = {width: max(alone.verify_ms[width], verify_ms) for width, verify_ms in together.verify_ms.items()}
    return LaneCosts(draft_ms=max(alone.draft_ms, together.draft_ms), verify_ms=verify_ms)


class Controller:
    """Chooses gamma and lead for one source."""

    def __init__(
        self, *, max_gamma: int, costs: SourceCosts, prior_alpha: float = 0.6, fixed_gamma: int | None = None
    ) -> None:
        """Bind the controller to its costs.

        Args:
            max_gamma: never propose more.
            costs: of target and draft.
            prior_alpha: acceptance rate assumed before the first verdict.
            fixed_gamma: always propose so many; then only the lead is chosen.
        """
        check_integer("max_gamma", max_gamma, low=0, advice="8 is a good limit")
        if fixed_gamma is not None:
            check_integer("gamma", fixed_gamma, low=0, advice="0 proposes nothing, 4 is a good start")
        self.max_gamma = max_gamma if fixed_gamma is None else fixed_gamma
        self.estimate = AcceptanceEstimate(prior=prior_alpha)
        self.no_overlap: str | None = None
        """Why nothing may run ahead for now, or None; set from outside, as by whoever watches the device."""
        self._costs = costs
        self._own_gammas = tuple(range(1, max_gamma + 1)) if fixed_gamma is None else (fixed_gamma,)
        self._own_fixed = fixed_gamma is not None
        self._gammas, self._fixed = self._own_gammas, self._own_fixed
        self._leads = IN_TURN
        self._decision: Decision | None = None
        self._age = 0
        self._pause = _FIRST_PROBE
        self._rounds_off = 0
        self._overlap_trial = OverlapTrial()
        self._lead = 0
        self._best_tokens: float | None = None
        self._best_age = 0

    def begin(self, leads: Leads = IN_TURN, gamma: int | None = None) -> None:
        """Start a request of a loop with these leads.

        Args:
            leads: how far past a block the loop lets it draft.
            gamma: propose so many in this request, at most `max_gamma`; None chooses, or keeps to what was fixed.
        """
        if gamma is not None:
            check_integer("gamma", gamma, low=0, high=self.max_gamma, advice="left out, it is chosen")
        self._gammas = self._own_gammas if gamma is None else (gamma,)
        self._fixed = self._own_fixed or gamma is not None
        self._leads = leads
        self._decision = None
        self._best_tokens = None
        self.estimate.begin()
        self._plan()

    def choose(self) -> int:
        """The best gamma now, 0 where drafting does not pay, 1 when it is time to look again."""
        plan = self._plan()
        self._lead = self._leads.most if plan is None else plan.lead
        if not any(self._gammas):
            return 0
        if plan is None:
            # Nothing was measured yet: one token finds out.
            self._rounds_off = 0
            return 1
        if plan.gamma > 0:
            self._rounds_off = 0
            plan = self._tried(plan)
            self._lead = plan.lead
            return plan.gamma
        self._lead = self._leads.least
        self._rounds_off += 1
        return int(self._probing)

    @property
    def lead(self) -> int:
        """Tokens worth drafting past the block of the last choice."""
        return self._lead

    @property
    def promise(self) -> Promise:
        """What the plan in force is expected to bring; where it is a plain one, what one token to look again would."""
        decision = self._decision
        if decision is None:
            return Promise(acceptance=self.estimate.alpha)
        plan = decision.plan
        if plan.gamma == 0 and self.max_gamma:
            plan = RoundPlan(mode=RoundMode.SEQUENTIAL, gamma=1)
        return Promise(
            acceptance=decision.alpha,
            tokens_per_ms=decision.model.tokens_per_ms(plan, decision.alpha),
            best_tokens_per_ms=self._best_tokens_per_ms(decision.model),
        )

    @property
    def idle(self) -> bool:
        """Whether the last choice was to draft nothing."""
        return self._decision is not None and self._decision.plan.gamma == 0

    def observe(self, num_proposed: int, num_accepted: int) -> None:
        """Update the acceptance estimate; a success shortens the pause again, where successes can make it pay."""
        if num_proposed == 0:
            return
        self.estimate.observe(num_proposed, num_accepted)
        if self._probing:
            self._rounds_off = 0
            self._pause = min(2 * self._pause, _LAST_PROBE if self._can_pay else _LAST_HOPELESS_PROBE)
        if num_accepted == num_proposed and self._pause > _FIRST_PROBE and self._can_pay:
            self._pause = _FIRST_PROBE

    def explain(self) -> str:
        """The last choice and its reason, as a person would say it."""
        decision = self._decision
        if not any(self._gammas):
            return "nothing is drafted, as gamma is 0"
        if decision is None:
            return "nothing was asked of it"
        return explain(decision, fixed=self._fixed, leads=self._leads)

    def _tried(self, plan: RoundPlan) -> RoundPlan:
        """The plan, or now and then one that overlaps, where only costs beside each other speak against it."""
        decision = self._decision
        if plan.mode is RoundMode.PIPELINED:
            self._overlap_trial.succeed()
        if decision is None or plan.mode is not RoundMode.SEQUENTIAL or self._leads.most == 0:
            return plan
        if self.no_overlap is not None or not self._overlap_trial.take_round():
            return plan
        undisturbed = dataclasses.replace(decision.model, together=decision.model.alone)
        hoped_for = self._decide(undisturbed, decision.alpha).plan
        return hoped_for if hoped_for.mode is RoundMode.PIPELINED else plan

    @property
    def _probing(self) -> bool:
        """Whether it is time to look again; a source that first has to catch up is asked until it has an answer."""
        return self._rounds_off > self._pause

    @property
    def _can_pay(self) -> bool:
        """Whether there is an acceptance rate at which drafting pays."""
        decision = self._decision
        if decision is None or self._fixed is not self._own_fixed:
            # What one request fixed says nothing of what others could choose.
            return decision is None
        return self._decide(decision.model, 1.0).plan.gamma > 0

    def _best_tokens_per_ms(self, model: SpeedModel) -> float:
        """The speed if every proposal were accepted; only costs change it, and these slowly."""
        self._best_age += 1
        if self._best_tokens is None or self._best_age >= _STALE_AFTER:
            self._best_age = 0
            self._best_tokens = max(rated.tokens_per_ms for rated in self._decide(model, 1.0).best.values())
        return self._best_tokens

    def _plan(self) -> RoundPlan | None:
        """The plan in force, thought over when it is old."""
        self._age += 1
        alpha = self.estimate.alpha
        decision = self._decision
        if (
            decision is None
            or self._age >= _STALE_AFTER
            or abs(alpha - decision.alpha) >= _ALPHA_STEP
            or decision.no_overlap != self.no_overlap
        ):
            self._age = 0
            model = self._costs.speed_model(self.max_gamma)
            if model is None:
                self._decision = None
                return None
            self._decision = decision = self._decide(model, alpha)
        return decision.plan

    def _decide(self, model: SpeedModel, alpha: float) -> Decision:
        best: dict[RoundMode, RatedPlan] = {}
        no_overlap = self.no_overlap
        for plan in self._plans(model, may_overlap=no_overlap is None):
            rated = RatedPlan(plan=plan, tokens_per_ms=model.tokens_per_ms(plan, alpha))
            if plan.mode not in best or rated.tokens_per_ms > best[plan.mode].tokens_per_ms:
                best[plan.mode] = rated
        chosen: RatedPlan | None = best.get(RoundMode.PLAIN)
        for mode in (RoundMode.SEQUENTIAL, RoundMode.PIPELINED):
            rated_mode = best.get(mode)
            if rated_mode is None:
                continue
            in_turn = chosen is not None and chosen.plan.mode is RoundMode.SEQUENTIAL
            least_gain = _MIN_OVERLAP_GAIN if in_turn else _MIN_GAIN
            if chosen is None or rated_mode.tokens_per_ms > least_gain * chosen.tokens_per_ms:
                chosen = rated_mode
        plan = chosen.plan if chosen else _PLAIN
        return Decision(
            plan=plan, best=best, alpha=alpha, model=model, assumed=self.estimate.assumed, no_overlap=no_overlap
        )

    def _plans(self, model: SpeedModel, *, may_overlap: bool) -> Iterator[RoundPlan]:
        """What may be chosen, given what was fixed."""
        if not self._fixed or not any(self._gammas):
            yield _PLAIN
        least, most = self._leads
        if not may_overlap and least == 0:
            most = 0
        for gamma in self._gammas:
            if gamma and least == 0:
                yield RoundPlan(mode=RoundMode.SEQUENTIAL, gamma=gamma)
            for lead in (most,) if self._leads.fixed else model.leads(gamma, most):
                if gamma and lead and lead >= least:
                    yield RoundPlan(mode=RoundMode.PIPELINED, gamma=gamma, lead=lead)
