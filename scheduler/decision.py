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
    no_overlap: str | None = None
    """Why nothing could run ahead, whatever it would have promised; None where it could."""

    def gain(self, mode: RoundMode) -> float | None:
        """Expected speed of a mode over that of plain decoding; None where it could not be had."""
        found = self.best.get(mode)
        return None if found is None else found.tokens_per_ms * self.model.alone.verify_ms[1]


def explain(decision: Decision, *, fixed: bool, leads: Leads) -> str:
    """A decision in words: what is done, what it promises, and what the alternatives would."""
    plan = decision.plan
    gains = {mode: decision.gain(mode) for mode in RoundMode}
    ahead = "1 token" if plan.lead == 1 else f"{plan.lead} tokens"
    words = {
        RoundMode.PLAIN: "nothing is drafted",
        RoundMode.SEQUENTIAL: f"blocks of {plan.gamma}, draft and target in turn",
        RoundMode.PIPELINED: f"blocks of {plan.gamma}, and up to {ahead} drafted ahead meanwhile",
    }
    promises = []
    for mode, name in ((RoundMode.SEQUENTIAL, "drafting in turn"), (RoundMode.PIPELINED, "running ahead")):
        gain = gains[mode]
        if gain is not None:
            promises.append((mode is not plan.mode, "this" if mode is plan.mode else name, gain))
    parts = [words[plan.mode] + (" (gamma is fixed)" if fixed else "")]
    if promises:
        (_, first, gain), *others = sorted(promises)
        told = [
            f"{first} promises {gain:.2f} times plain decoding",
            *(f"{name} {gain:.2f}" for _, name, gain in others),
        ]
        parts.append(", ".join(told))
    if decision.no_overlap is not None and leads.least == 0 < leads.most:
        parts.append(f"nothing runs ahead, as {decision.no_overlap}")
    return "; ".join([*parts, _figures(decision)])


def _figures(decision: Decision) -> str:
    """The measurements behind a decision."""
    plan, alone = decision.plan, decision.model.alone
    costs = alone if plan.mode is not RoundMode.PIPELINED else decision.model.together or alone
    drafting = [rated for mode, rated in decision.best.items() if mode is not RoundMode.PLAIN]
    gamma = plan.gamma or max(drafting, key=lambda rated: rated.tokens_per_ms, default=decision).plan.gamma
    draft = f"a draft step takes {costs.draft_ms:.1f} ms" if costs.draft_ms else "its proposals cost nothing"
    verify = f"verifying {gamma} takes {costs.verify_ms[gamma + 1]:.1f} ms, " if gamma else ""
    return f"acceptance {decision.alpha:.2f}, {draft}, {verify}a plain step {alone.verify_ms[1]:.1f} ms"
