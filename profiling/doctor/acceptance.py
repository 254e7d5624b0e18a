"""Are the draft's proposals accepted often enough, on each kind of text?

Owns the counts by kind and the limit.
"""

from __future__ import annotations

from collections.abc import Sequence

from profiling.doctor.check import CannotTell, Finding, Verdict
from profiling.doctor.loaded_pair import LoadedPair
from profiling.prompts import PromptKind
from runtime import Metrics, Mode

LEAST_ACCEPTANCE = 0.4
"""Accepted share of the proposed tokens; what a runtime warns below as well."""
_LEAST_PROPOSED = 16
"""Tokens of a kind, of which fewer tell nothing."""


async def check_acceptance(pair: LoadedPair) -> Finding:
    """Accepted of proposed tokens of the draft model, over the answers with a fixed gamma."""
    pair.require_draft()
    if not pair.draft_models:
        raise CannotTell("nothing but look-ups drafts, whose wrong proposals cost next to nothing")
    counts: dict[PromptKind, list[tuple[int, int]]] = {}
    looked_up = (0, 0)
    for turn in await pair.trials():
        metrics = turn.results[Mode.SEQUENTIAL].metrics
        counts.setdefault(turn.kind, []).append(_of(metrics, pair.model_names))
        looked_up = _sum([looked_up, _of(metrics, frozenset(metrics.drafts) - pair.model_names)])
    totals = {kind: _sum(parts) for kind, parts in counts.items()}
    rates = {kind: accepted / proposed for kind, (proposed, accepted) in totals.items() if proposed}
    if not rates:
        raise CannotTell("the draft model proposed nothing, as look-ups promised more")
    low = [kind.value for kind, rate in rates.items() if rate < LEAST_ACCEPTANCE and totals[kind][0] >= _LEAST_PROPOSED]
    words = ", ".join(f"{kind.value} {rate:.0%} of {totals[kind][0]}" for kind, rate in rates.items())
    return Finding(
        verdict=Verdict.WARN if low else Verdict.OK,
        measured=f"accepted of proposed tokens, {pair.gamma} a round: {words}; at least {LEAST_ACCEPTANCE:.0%} is good",
        advice=f"on {', '.join(low)} text take a draft that was made for this target (python -m models.distill), one "
        "that is larger, or leave gamma to the runtime, which proposes fewer there"
        if low
        else "",
        figures={
            "gamma": pair.gamma,
            "by_kind": {
                kind.value: {"num_draft_tokens": proposed, "num_accepted_draft_tokens": accepted}
                for kind, (proposed, accepted) in totals.items()
            },
            "looked_up": {"num_draft_tokens": looked_up[0], "num_accepted_draft_tokens": looked_up[1]},
        },
    )


def token_acceptance(metrics: Sequence[Metrics], gamma: int) -> float | None:
    """Share of right proposals among those that were judged: behind the first wrong one of a block none is.

    None where nothing was proposed.
    """
    num_right = sum(one.num_accepted_draft_tokens for one in metrics)
    # A block that was not accepted as a whole has one wrong token.
    num_wrong = sum(count for one in metrics for count in one.acceptance_histogram[:gamma])
    return num_right / (num_right + num_wrong) if num_right + num_wrong else None


def _of(metrics: Metrics, names: frozenset[str]) -> tuple[int, int]:
    return _sum([counts for name, counts in metrics.drafts.items() if name in names])


def _sum(counts: list[tuple[int, int]]) -> tuple[int, int]:
    return sum(proposed for proposed, _ in counts), sum(accepted for _, accepted in counts)
