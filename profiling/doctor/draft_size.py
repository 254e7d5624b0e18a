"""Is the draft small enough beside its target?

Owns the two ratios, of weights and of time, and their limits.
"""

from __future__ import annotations

from models import LARGEST_DRAFT_SHARE, CausalModel, Decoder, FeatureDraft
from profiling.doctor.check import CannotTell, Finding, Verdict, graded, worst
from profiling.doctor.loaded_pair import LoadedPair

BEST_SHARES = "best 1/20 to 1/10"


async def check_draft_size(pair: LoadedPair) -> Finding:
    """Bytes of weights that a step reads, and the time that it takes, draft over target."""
    pair.require_draft()
    if not pair.draft_models:
        raise CannotTell("nothing but look-ups drafts, and they have no weights")
    costs = await pair.step_costs()
    time_share = costs.draft_ratio
    if time_share is None:
        raise CannotTell("no draft step could be timed")
    target_bytes, draft_bytes = (
        weight_bytes_per_step(model) for model in (pair.engine.target.model, pair.draft_models[0].lane.model)
    )
    weight_share = None if not target_bytes or draft_bytes is None else draft_bytes / target_bytes
    words = f"a draft step takes {time_share:.2f} of a target step ({costs.draft_ms:.2f} ms of {costs.step_ms:.2f})"
    if weight_share is not None:
        words += f" and reads {weight_share:.2f} of its weights"
    verdict = worst(
        graded(share, warn_above=LARGEST_DRAFT_SHARE) for share in (time_share, weight_share) if share is not None
    )
    return Finding(
        verdict=verdict,
        measured=f"{words}; {BEST_SHARES}, at most 1/3",
        advice=""
        if verdict is Verdict.OK
        else "take a smaller draft, a distilled one (python -m models.distill --target TARGET --out DIR) or n-gram; "
        "where its time stands out and its weights do not, give it fewer threads' company: close other programs",
        figures={"time_share": time_share, "weight_share": weight_share},
    )


def weight_bytes_per_step(model: CausalModel) -> int | None:
    """Layers and head, which every step reads; None where transformers runs the model."""
    if not isinstance(model, Decoder | FeatureDraft):
        return None
    weights = model.packed_weights
    return sum(layer.num_bytes for layer in weights.layers) + weights.head.num_bytes
