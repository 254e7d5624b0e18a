"""What about larger batches?

Owns the answer: there are none here.
"""

from __future__ import annotations

from profiling.doctor.check import Finding, Verdict
from profiling.doctor.loaded_pair import LoadedPair


async def check_batch(pair: LoadedPair) -> Finding:
    """A runtime serves one request at a time, so there is nothing to measure, and nothing that could be wrong."""
    return Finding(
        verdict=Verdict.OK,
        measured="one request is served at a time (batch 1), where speculation gains most; the more requests share a "
        "step, the less arithmetic is left for proposals, so a server with large batches gains little or loses",
    )
