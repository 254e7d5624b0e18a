"""On the demo model, a seed names one output in plain, sequential and pipelined mode, over the same lanes.

The usual run takes a few values of gamma. `SLIPSTREAM_FULL_EQUALITY=1` takes every gamma from 1 to 8, twenty times
each: a quarter of an hour on two idle cores.
"""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from runtime import GenerationResult, LoadSettings, Mode, Runtime
from runtime.assembly import build_engine
from runtime.engine import Engine, decoding_loops

FULL = os.environ.get("SLIPSTREAM_FULL_EQUALITY") == "1"
NUM_TOKENS = 16 if FULL else 12
NUM_REPETITIONS = 20 if FULL else 1

LOOKAHEADS: Sequence[tuple[int, int, int | None]] = (
    [(gamma, (8, 3, 1)[gamma % 3], (0, 2, None)[gamma % 3]) for gamma in range(1, 9)]
    if FULL
    else [(2, 8, 0), (8, 4, None)]
)
"""gamma, max_lead, num_awaited."""

Request = tuple[str, Mapping[str, Any]]
REQUESTS: Sequence[Request] = (
    ("Repeat after me: the quick brown fox jumps over the lazy dog, the quick brown fox", {}),
    ("Once upon a time there was a small", {"temperature": 0.7, "top_p": 0.95, "seed": 3}),
)


def runtime_over(engine: Engine, settings: LoadSettings) -> Runtime:
    """Other settings over the same lanes; the sources' own gamma is the largest, and a loop takes what it wants."""
    loops = decoding_loops(settings, engine.target, engine.draft_stream, engine.proposers)
    return Runtime(dataclasses.replace(engine, loops=loops), settings)


async def answer(runtime: Runtime, request: Request, mode: Mode) -> GenerationResult:
    prompt, sampling = request
    return await runtime.generate(prompt, max_tokens=NUM_TOKENS, ignore_eos=True, mode=mode, **sampling)


@pytest.mark.weights
@pytest.mark.slow
@pytest.mark.timeout(4 * 3600 if FULL else 300)
async def test_a_seed_names_one_output_in_every_mode(demo_gguf: Path) -> None:
    """The draft is most of the target, so that proposals and guesses are often right and never for long."""
    settings = LoadSettings(target=demo_gguf, draft=("ngram", "early-exit:26"), mode=Mode.PIPELINED, gamma=8)
    engine = await build_engine(settings)
    counts: Counter[str] = Counter()
    try:
        plain = Runtime(engine, settings)
        expected = [(await answer(plain, request, Mode.PLAIN)).token_ids for request in REQUESTS]
        for (gamma, max_lead, num_awaited), repetition in product(LOOKAHEADS, range(NUM_REPETITIONS)):
            changes = {"gamma": gamma, "max_lead": max_lead, "num_awaited": num_awaited}
            runtime = runtime_over(engine, dataclasses.replace(settings, **changes))
            for request, token_ids in zip(REQUESTS, expected, strict=True):
                # What is sequential does not depend on time.
                for mode in (Mode.SEQUENTIAL, Mode.PIPELINED) if repetition == 0 else (Mode.PIPELINED,):
                    result = await answer(runtime, request, mode)
                    assert result.token_ids == token_ids, f"{mode} with {changes} differs from plain decoding"
                    metrics = result.metrics
                    counts[f"{mode} runs"] += 1
                    if mode is Mode.PIPELINED:
                        counts["hits"] += metrics.num_hits
                        counts["misses"] += metrics.num_misses
                        counts["accepted"] += metrics.num_accepted_draft_tokens
                        counts["refused"] += metrics.num_draft_tokens - metrics.num_accepted_draft_tokens
                        counts["discarded"] += metrics.num_discarded_draft_tokens
    finally:
        await engine.close()
    print(dict(counts))
    assert all(counts[name] for name in ("hits", "misses", "accepted", "refused", "discarded")), (
        f"equality says little unless proposals and guesses were both right and wrong: {dict(counts)}"
    )
