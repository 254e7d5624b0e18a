"""Do target and draft mean the same by a token id?

Owns the verdict; the comparison itself is made when a pair is loaded (`models.pair`), and names the first difference.
"""

from __future__ import annotations

from profiling.doctor.check import Finding, Verdict
from profiling.doctor.loaded_pair import LoadedPair


async def check_tokenizers(pair: LoadedPair) -> Finding:
    """What loading the pair came to."""
    if pair.mismatch is not None:
        return Finding(
            verdict=Verdict.FAIL,
            measured=pair.mismatch,
            advice="take a draft of the target's own family, n-gram or early exit, or distil one: python -m "
            "models.distill --target TARGET --out DIR",
        )
    tokenizer = pair.runtime.tokenizer
    num_ids = min(tokenizer.vocab_size, pair.engine.target.model.vocab_size)
    figures: dict[str, object] = {
        "num_target_ids": num_ids,
        "num_special_ids": len(tokenizer.special_ids),
        "eos_token_ids": sorted(tokenizer.eos_token_ids),
    }
    if not pair.draft_models:
        return Finding(verdict=Verdict.OK, measured="no draft model, so there is one tokenizer only", figures=figures)
    num_shared = min(num_ids, pair.draft_models[0].num_shared_ids)
    return Finding(
        verdict=Verdict.OK,
        measured=f"{num_shared:,} of {num_ids:,} ids, special and end-of-sequence ids among them, mean the same to "
        "both",
        figures={**figures, "num_shared_ids": num_shared},
    )
