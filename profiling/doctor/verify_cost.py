"""Is a verify really parallel: do gamma + 1 tokens in one call cost much less than gamma + 1 steps?

Owns the limits.
"""

from __future__ import annotations

from profiling.doctor.check import CannotTell, Finding, Verdict, graded
from profiling.doctor.loaded_pair import LoadedPair

WARN_SHARE = 0.35
"""What each further token of a verify may cost, as a share of a step; processors without spare arithmetic are there."""
FAIL_SHARE = 0.8
"""From here on a verify is as good as one step a token, and speculation cannot gain."""


async def check_verify_cost(pair: LoadedPair) -> Finding:
    """One call of gamma + 1 tokens over one step."""
    if pair.gamma < 1:
        raise CannotTell("gamma is 0, so that nothing is verified")
    costs = await pair.step_costs()
    share = costs.extra_token_share
    verdict = graded(share, warn_above=WARN_SHARE, fail_above=FAIL_SHARE)
    width = costs.gamma + 1
    return Finding(
        verdict=verdict,
        measured=f"verifying {costs.gamma} tokens takes {costs.verify_ms / costs.step_ms:.2f} steps "
        f"({costs.verify_ms:.1f} ms; a step {costs.step_ms:.1f} ms); one after the other it would be {width}",
        advice=""
        if verdict is Verdict.OK
        else "keep gamma small (--gamma 2) or leave it to the runtime; on a CPU take weights float16 or int8, whose "
        "wide calls are cheap, and as many threads as there are free cores; a model that transformers runs is slower "
        "than one of the lean decoder",
        figures={
            "gamma": costs.gamma,
            "step_ms": costs.step_ms,
            "verify_ms": costs.verify_ms,
            "extra_token_share": share,
        },
    )
