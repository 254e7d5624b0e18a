"""Does speculation pay, does overlap, and if not, what stands in the way?

Owns both verdicts and the reasoning about limits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from profiling.doctor.acceptance import token_acceptance
from profiling.doctor.check import CannotTell, Finding, Verdict
from profiling.doctor.loaded_pair import LoadedPair
from profiling.doctor.step_costs import StepCosts, expected_speedup
from profiling.doctor.trials import median_noise, median_speedup
from profiling.prompts import PromptKind
from runtime import Metrics, Mode

GOOD_SPEEDUP = 1.5
LEAST_LOSS = 0.05
"""Below plain decoding, from which on speculation does harm; more where the machine's own noise is more."""
_LEAST_OVERLAP_GAIN = 0.97
"""Below it overlap costs more than noise."""
_GOOD_ALPHA, _GOOD_DRAFT_RATIO, _GOOD_EXTRA_SHARE = 0.8, 0.05, 0.05
"""What good pairs on machines with arithmetic to spare have."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a pair's speed follows from."""

    alpha: float
    """Probability that a proposed token is right, given that those before it were."""
    draft_ratio: float
    """A draft step as a share of the target's."""
    extra_token_share: float
    """What each further token of a verify costs, as a share of a step."""

    @property
    def speedup(self) -> float:
        """Expected over plain decoding, at the best gamma."""
        return expected_speedup(
            alpha=self.alpha, draft_ratio=self.draft_ratio, extra_token_share=self.extra_token_share
        )

    def foremost(self) -> tuple[str, float, str]:
        """Which of the three stands in the way most: in words, the speed-up without it, and what to do about it."""
        own = (self.alpha, self.draft_ratio, self.extra_token_share)
        alpha, draft_ratio, extra_share = own
        better = [
            (
                f"the acceptance of {alpha:.2f} a token",
                _speedup(max(alpha, _GOOD_ALPHA), draft_ratio, extra_share),
                f"a draft that is right {_GOOD_ALPHA:.0%} of the time: one distilled for this target (python -m "
                "models.distill), or a larger one of its family",
            ),
            (
                f"the draft's cost of {draft_ratio:.2f} steps a token",
                _speedup(alpha, min(draft_ratio, _GOOD_DRAFT_RATIO), extra_share),
                f"a draft that costs a {1 / _GOOD_DRAFT_RATIO:.0f}th of its target: smaller, distilled, or n-gram",
            ),
            (
                f"the verify's cost of {extra_share:.2f} steps for each further token",
                _speedup(alpha, draft_ratio, min(extra_share, _GOOD_EXTRA_SHARE)),
                "cheaper wide calls: weights float16 or int8 on a CPU, free cores, or a GPU",
            ),
        ]
        return max(better, key=lambda one: one[1])


def _speedup(alpha: float, draft_ratio: float, extra_share: float) -> float:
    return expected_speedup(alpha=alpha, draft_ratio=draft_ratio, extra_token_share=extra_share)


async def check_overlap(pair: LoadedPair) -> Finding:
    """Pipelined over sequential rounds with the same gamma, medians of interleaved answers."""
    pair.require_draft()
    if Mode.PIPELINED not in pair.modes:
        raise CannotTell("nothing can overlap: drafts only look things up, or there is one thread")
    ratio = median_speedup(await pair.trials(), Mode.PIPELINED, Mode.SEQUENTIAL)
    if ratio is None:
        raise CannotTell("the answers came in one round, which gives no time")
    pays = ratio >= _LEAST_OVERLAP_GAIN
    return Finding(
        verdict=Verdict.OK if pays else Verdict.WARN,
        measured=f"pipelined rounds are {ratio:.2f} times as fast as sequential ones, gamma {pair.gamma} in both",
        advice=""
        if pays
        else "leave mode at auto, which overlaps only where that pays, or load with mode sequential; overlap wants a "
        "draft that is good and not cheap, and on a CPU a core of its own for it",
        figures={"pipelined_over_sequential": ratio, "gamma": pair.gamma},
    )


async def check_speedup(pair: LoadedPair) -> Finding:
    """The mode that the runtime was loaded with over plain decoding, medians of interleaved answers."""
    pair.require_draft()
    turns = await pair.trials()
    mode = pair.runtime.settings.mode
    median = median_speedup(turns, mode, Mode.PLAIN)
    if median is None:
        raise CannotTell("the answers came in one round, which gives no time")
    by_kind = {
        kind.value: ratio
        for kind in PromptKind
        if (ratio := median_speedup([turn for turn in turns if turn.kind is kind], mode, Mode.PLAIN)) is not None
    }
    decision = turns[-1].results[mode].metrics.decision
    drafted = [turn.results[Mode.SEQUENTIAL].metrics for turn in turns]
    alpha = token_acceptance(drafted, pair.gamma)
    limits = _limits(await pair.step_costs(), alpha, _model_share(drafted, pair.model_names))
    kinds = ", ".join(f"{kind} {ratio:.2f}" for kind, ratio in by_kind.items())
    noise = median_noise(turns)
    measured = (
        f"{mode.value} is {median:.2f} times as fast as plain decoding ({kinds}), which differs from itself by "
        f"{noise:.0%}; {GOOD_SPEEDUP} is good"
    )
    verdict, advice = judge_speedup(median, limits, noise=noise)
    return Finding(
        verdict=verdict,
        measured=measured,
        advice=f"{advice}; decided: {decision}" if advice and decision else advice,
        figures={
            "median": median,
            "by_kind": by_kind,
            "noise": noise,
            "alpha": alpha,
            "expected": None if limits is None else limits.speedup,
            "decision": decision,
        },
    )


def judge_speedup(speedup: float, limits: Limits | None, *, noise: float) -> tuple[Verdict, str]:
    """The verdict on a speed-up, and what limits it; `noise` is by how much two plain runs differ, as a share."""
    if speedup >= GOOD_SPEEDUP:
        return Verdict.OK, ""
    if limits is None:
        advice = (
            "nothing was proposed, so there is nothing to gain: name a draft, or ask for text that repeats its prompt"
        )
    else:
        limit, without, remedy = limits.foremost()
        gain = f"without it {without:.1f} could be expected, now {limits.speedup:.1f}"
        advice = f"{limit} limits it most: {gain}; get {remedy}"
    if speedup < 1 - max(LEAST_LOSS, noise):
        return Verdict.FAIL, f"speculation does harm here: use mode plain, or draft none, until it pays; {advice}"
    return Verdict.WARN, advice


def _limits(costs: StepCosts, alpha: float | None, model_share: float) -> Limits | None:
    if alpha is None:
        return None
    return Limits(
        alpha=alpha,
        # What was looked up took no step.
        draft_ratio=model_share * (costs.draft_ratio or 0.0),
        extra_token_share=max(0.0, costs.extra_token_share),
    )


def _model_share(drafted: Sequence[Metrics], model_names: frozenset[str]) -> float:
    """Of the proposed tokens, how many a model drafted."""
    counts = [(name, proposed) for one in drafted for name, (proposed, _) in one.drafts.items()]
    total = sum(proposed for _, proposed in counts)
    return sum(proposed for name, proposed in counts if name in model_names) / total if total else 0.0
