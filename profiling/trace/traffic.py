"""How many bytes the target reads for a block, against what its memory could give it in that time.

Owns the count: a call reads all weights once, and the keys and values of every position up to its block's end. Small
things (activations, the embedding's few rows, padding of keys) are left out. Knows nothing of how rounds are timed.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from models import CausalModel, Decoder
from profiling.trace.bandwidth import Bandwidth
from profiling.trace.traced_round import TracedRequest


@dataclass(frozen=True, kw_only=True)
class TargetReads:
    """What a call of the target reads."""

    weight_bytes: int
    bytes_per_position: int
    """Keys and values of one position."""
    num_prompt_tokens: int
    """Of each recorded request."""

    @classmethod
    def of(cls, model: CausalModel, *, num_prompt_tokens: int) -> TargetReads | None:
        """Those of a model; None where another library runs it, and nobody here knows."""
        if not isinstance(model, Decoder):
            return None
        weight_bytes = model.num_read_bytes(0)
        return cls(
            weight_bytes=weight_bytes,
            bytes_per_position=model.num_read_bytes(1) - weight_bytes,
            num_prompt_tokens=num_prompt_tokens,
        )


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """Medians over the blocks whose times are known."""

    bytes_per_call: float
    weight_bytes: int
    bytes_per_s: float
    """Bytes of a call over the time of its verify."""
    bandwidth_bytes_per_s: float | None
    """What was measured; None where it was not."""
    bandwidth_method: str | None
    share_of_bound: float | None
    """The rate over the bandwidth: at 1 a block takes no longer than reading the weights does."""


def traffic(
    requests: Sequence[TracedRequest], reads: TargetReads | None, bandwidth: Bandwidth | None
) -> Traffic | None:
    """What the blocks read; None where that is not known, or no block has times."""
    if reads is None:
        return None
    calls: list[int] = []
    rates: list[float] = []
    for request in requests:
        length = reads.num_prompt_tokens
        for traced in request.rounds:
            if traced.verify is not None and traced.verify.duration_ms > 0:
                num_positions = length + traced.span.num_proposed
                calls.append(reads.weight_bytes + reads.bytes_per_position * num_positions)
                rates.append(calls[-1] / traced.verify.duration_ms * 1e3)
            length += traced.span.num_tokens
    if not calls:
        return None
    rate = statistics.median(rates)
    return Traffic(
        bytes_per_call=statistics.median(calls),
        weight_bytes=reads.weight_bytes,
        bytes_per_s=rate,
        bandwidth_bytes_per_s=None if bandwidth is None else bandwidth.bytes_per_s,
        bandwidth_method=None if bandwidth is None else bandwidth.method,
        share_of_bound=None if bandwidth is None else rate / bandwidth.bytes_per_s,
    )
