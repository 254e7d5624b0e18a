"""Drafts against each other, by the second: from figures on held-out prompts and costs, the speed to be expected.

Owns the arithmetic, the table and the JSON. Knows nothing of how figures and costs were measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum

from models.distill import Evaluation, Figures
from scheduler import RoundMode, RoundPlan, SpeedModel, expected_tokens

ALL_KINDS = "all"
_MOST_LEAD = 16
_BISECTIONS = 50


class VerifyingLaw(StrEnum):
    """By which proposals are accepted."""

    GREEDY = "greedy"
    REJECTION = "rejection"
    """At temperature 1."""
    SHARED_NOISE = "shared noise"
    """At temperature 1."""


@dataclass(frozen=True, kw_only=True)
class JudgedDraft:
    """A draft, how good it is and what it costs."""

    name: str
    design: str
    num_layers: int
    num_head_tokens: int
    evaluation: Evaluation
    costs: SpeedModel


@dataclass(frozen=True, kw_only=True)
class ExpectedSpeed:
    """Of one draft on one kind of text under one law; speed-ups are over plain decoding."""

    draft: str
    kind: str
    law: VerifyingLaw
    mean_length: float
    """Tokens of a round at the evaluation's gamma."""
    alpha: float
    """The acceptance rate of independent proposals that would bring as many."""
    at_gamma: float
    """In turn, at the evaluation's gamma: mean_length * plain / (gamma * draft step + verify). No alpha is in it."""
    sequential: float
    """In turn, at the best gamma for `alpha`."""
    sequential_gamma: int
    pipelined: float | None
    """The draft going on while its block is verified, at the best gamma and lead for `alpha`; None where no plan is to
    be had. What is proposed ahead is taken to be right as often as the first `gamma`, which nobody has judged: an upper
    bound, above all for a draft that goes on from its own features."""
    pipelined_gamma: int | None
    pipelined_lead: int | None


def expected_speeds(draft: JudgedDraft) -> list[ExpectedSpeed]:
    """Every kind of text, then all together, under every law."""
    groups: dict[str, Figures] = {str(kind): figures for kind, figures in draft.evaluation.by_kind.items()}
    groups[ALL_KINDS] = draft.evaluation.overall
    return [
        _expected_speed(draft, kind, law, length)
        for kind, figures in groups.items()
        for law, length in _lengths(figures).items()
    ]


def _lengths(figures: Figures) -> dict[VerifyingLaw, float]:
    return {
        VerifyingLaw.GREEDY: figures.greedy_length,
        VerifyingLaw.REJECTION: figures.rejection_length,
        VerifyingLaw.SHARED_NOISE: figures.shared_noise_length,
    }


def _expected_speed(draft: JudgedDraft, kind: str, law: VerifyingLaw, length: float) -> ExpectedSpeed:
    costs, gamma = draft.costs, draft.evaluation.gamma
    plain_ms = costs.alone.verify_ms[1]
    alpha = alpha_of(length, gamma)
    # No further than it was judged.
    gammas = range(1, min(gamma, costs.alone.max_gamma) + 1)
    in_turn = [RoundPlan(mode=RoundMode.SEQUENTIAL, gamma=chosen) for chosen in gammas]
    ahead = [
        RoundPlan(mode=RoundMode.PIPELINED, gamma=chosen, lead=lead)
        for chosen in gammas
        for lead in costs.leads(chosen, _MOST_LEAD)
    ]
    sequential, sequential_plan = _best(costs, in_turn, alpha)
    pipelined, pipelined_plan = _best(costs, ahead, alpha) if ahead else (None, None)
    return ExpectedSpeed(
        draft=draft.name,
        kind=kind,
        law=law,
        mean_length=length,
        alpha=alpha,
        at_gamma=length * plain_ms / (gamma * costs.alone.draft_ms + costs.alone.verify_ms[gamma + 1]),
        sequential=sequential * plain_ms,
        sequential_gamma=sequential_plan.gamma,
        pipelined=None if pipelined is None else pipelined * plain_ms,
        pipelined_gamma=None if pipelined_plan is None else pipelined_plan.gamma,
        pipelined_lead=None if pipelined_plan is None else pipelined_plan.lead,
    )


def _best(costs: SpeedModel, plans: Sequence[RoundPlan], alpha: float) -> tuple[float, RoundPlan]:
    """Tokens a millisecond, and the plan that brings them."""
    return max(((costs.tokens_per_ms(plan, alpha), plan) for plan in plans), key=lambda rated: rated[0])


def alpha_of(mean_length: float, gamma: int) -> float:
    """The acceptance rate at which rounds of independent proposals bring so many tokens."""
    low, high = 0.0, 1.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if expected_tokens(gamma, middle) < mean_length:
            low = middle
        else:
            high = middle
    return high


def as_json(drafts: Sequence[JudgedDraft], machine: Mapping[str, object]) -> dict[str, object]:
    """All figures, costs and speeds."""
    return {
        "machine": dict(machine),
        "drafts": [
            {
                "name": draft.name,
                "design": draft.design,
                "num_layers": draft.num_layers,
                "num_head_tokens": draft.num_head_tokens,
                "evaluation": asdict(draft.evaluation),
                "costs_alone_ms": asdict(draft.costs.alone),
                "costs_together_ms": None if draft.costs.together is None else asdict(draft.costs.together),
                "expected": [asdict(speed) for speed in expected_speeds(draft)],
            }
            for draft in drafts
        ],
    }


def format_comparison(drafts: Sequence[JudgedDraft]) -> str:
    """Tables for people: costs, then speeds by kind of text and law, the best draft in turn of each first."""
    lines = ["costs in ms, alone (beside the other lane)"]
    width = max(len(draft.name) for draft in drafts)
    for draft in drafts:
        lines.append(f"  {draft.name:{width}}  {_describe(draft)}")
    speeds = [speed for draft in drafts for speed in expected_speeds(draft)]
    for kind in dict.fromkeys(speed.kind for speed in speeds):
        for law in VerifyingLaw:
            lines += ["", f"{kind}, {law}"]
            chosen = [speed for speed in speeds if (speed.kind, speed.law) == (kind, law)]
            lines += [f"  {speed.draft:{width}}  {_speed_text(speed)}" for speed in sorted(chosen, key=_rank)]
    return "\n".join(lines)


def _rank(speed: ExpectedSpeed) -> float:
    return -speed.sequential


def _describe(draft: JudgedDraft) -> str:
    alone, gamma = draft.costs.alone, draft.evaluation.gamma
    together = draft.costs.together or alone
    return (
        f"{draft.design}, {draft.num_layers} layer(s), head of {draft.num_head_tokens:,}: "
        f"draft step {alone.draft_ms:.2f} ({together.draft_ms:.2f}), "
        f"verify of {gamma + 1} {alone.verify_ms[gamma + 1]:.2f} ({together.verify_ms[gamma + 1]:.2f}), "
        f"plain step {alone.verify_ms[1]:.2f}"
    )


def _speed_text(speed: ExpectedSpeed) -> str:
    text = (
        f"{speed.mean_length:.2f} tokens a round, x{speed.at_gamma:.2f}; "
        f"sequential x{speed.sequential:.2f} at gamma {speed.sequential_gamma}"
    )
    if speed.pipelined is None:
        return text
    plan = f"at gamma {speed.pipelined_gamma}, lead {speed.pipelined_lead}"
    return f"{text}; pipelined at most x{speed.pipelined:.2f} {plan}"
