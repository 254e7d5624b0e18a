"""What a controller decided, and how it says so to a person.

Owns the words. Knows nothing of how a decision is reached.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from scheduler.gamma import Leads
from scheduler.speed_model import RatedPlan, RoundMode, RoundPlan, SpeedModel


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What was chosen, and what it was chosen from."""

    plan: RoundPlan
    best: Mapping[RoundMode, RatedPlan]
    """The best plan of each mode that could be had."""
    alpha: float
    model: SpeedModel
    assumed: bool = False
    """Whether alpha is a guess, since nothing was judged yet."""
    no_overlap: str | None = None
    """Why nothing could run ahead, whatever it would have promised; None where it could."""

    def gain(self, mode: RoundMode) -> float | None:
        """Expected speed of a mode over that of plain decoding; None where it could not be had."""
        found = self.best.get(mode)
        return None if found is None else found.tokens_per_ms * self.model.alone.verify_ms[1]


def explain(decision: Decision, *, fixed: bool, leads: Leads) -> str:
    """A decision in words: what is done, what it promises, what the alternatives would, and by which figures."""
    plan = decision.plan
    ahead = "1 token" if plan.lead == 1 else f"{plan.lead} tokens"
    words = {
        RoundMode.PLAIN: "plain",
        RoundMode.SEQUENTIAL: f"sequential, blocks of {plan.gamma}",
        RoundMode.PIPELINED: f"pipelined, blocks of {plan.gamma} and up to {ahead} ahead",
    }
    parts = [words[plan.mode] + (" (gamma is fixed)" if fixed else "") + _promises(decision)]
    if decision.no_overlap is not None and leads.least == 0 < leads.most:
        parts.append(f"nothing runs ahead, as {decision.no_overlap}")
    return "; ".join([*parts, _figures(decision)])


def _promises(decision: Decision) -> str:
    """Expected speeds, as times that of plain decoding."""
    plan = decision.plan
    gains = {mode: decision.gain(mode) for mode in (RoundMode.SEQUENTIAL, RoundMode.PIPELINED)}
    others = [f"{mode} {gain:.2f}" for mode, gain in gains.items() if gain is not None and mode is not plan.mode]
    own_gain = gains.get(plan.mode)
    if own_gain is not None:
        return f": promises {own_gain:.2f} times plain decoding" + (f" ({', '.join(others)})" if others else "")
    return f", as drafting promises too little: {', '.join(others)} times plain decoding" if others else ""


def _figures(decision: Decision) -> str:
    """What the promises rest on."""
    plan, alone = decision.plan, decision.model.alone
    costs = alone if plan.mode is not RoundMode.PIPELINED else decision.model.together or alone
    drafting = [rated for mode, rated in decision.best.items() if mode is not RoundMode.PLAIN]
    gamma = plan.gamma or max(drafting, key=lambda rated: rated.tokens_per_ms, default=decision).plan.gamma
    assumed = " (assumed, as nothing was judged yet)" if decision.assumed else ""
    draft = f"draft steps of {costs.draft_ms:.1f} ms" if costs.draft_ms else "proposals that cost nothing"
    verify = f", {costs.verify_ms[gamma + 1]:.1f} ms to verify {gamma}" if gamma else ""
    return (
        f"by an estimated acceptance of {decision.alpha:.2f}{assumed}, {draft}{verify}, "
        f"{alone.verify_ms[1]:.1f} ms for a plain step"
    )
