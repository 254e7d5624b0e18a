"""On the demo model, the same seed gives the same tokens with every draft, gamma and mode, to the last one.

The normal run takes two prompts and a short output. `SLIPSTREAM_FULL_EQUALITY=1` takes twelve prompts of three kinds,
200 tokens, every gamma and both packed weight kinds: more than an hour on two cores.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from profiling.prompts import BenchPrompt, PromptKind, bench_prompts
from runtime import Runtime

FULL = os.environ.get("SLIPSTREAM_FULL_EQUALITY") == "1"
NUM_TOKENS = 200 if FULL else 48
SAMPLING: Sequence[dict[str, object]] = ({}, {"temperature": 0.8, "top_p": 0.95, "seed": 11})
GAMMAS: Sequence[int | str] = (1, 2, 4, 8, "adaptive") if FULL else (1, 4, 8, "adaptive")


def prompts() -> list[BenchPrompt]:
    per_kind = 4 if FULL else 1
    kinds = list(PromptKind) if FULL else [PromptKind.CODE, PromptKind.COPY]
    return [prompt for kind in kinds for prompt in bench_prompts(kind)[:per_kind]]


async def outputs(runtime: Runtime, **options: object) -> list[tuple[int, ...]]:
    results = [
        await runtime.generate(prompt.messages, max_tokens=NUM_TOKENS, ignore_eos=True, **sampling, **options)  # type: ignore[arg-type]  # real options
        for prompt in prompts()
        for sampling in SAMPLING
    ]
    return [result.token_ids for result in results]


@pytest.mark.weights
@pytest.mark.slow
@pytest.mark.timeout(3600 if FULL else 300)
@pytest.mark.parametrize("weights", ["float16", "int8"] if FULL else ["float16"])
async def test_no_draft_changes_a_token(demo_gguf: Path, weights: str) -> None:
    drafts: list[str | list[str]] = ["ngram", "early-exit:8", str(demo_gguf), ["ngram", "early-exit:4"]]
    async with await Runtime.load(demo_gguf, weights=weights, mode="plain") as runtime:
        expected = await outputs(runtime)
    assert all(len(token_ids) == NUM_TOKENS for token_ids in expected)
    assert len(set(expected)) == len(expected)
    for index, draft in enumerate(drafts):
        for gamma in GAMMAS if FULL else GAMMAS[index::2]:
            async with await Runtime.load(demo_gguf, draft=draft, weights=weights, gamma=gamma) as runtime:
                found = await outputs(runtime)
            assert found == expected, f"draft {draft}, gamma {gamma}, weights {weights}"


@pytest.mark.weights
async def test_int8_agrees_with_itself(demo_gguf: Path) -> None:
    async with await Runtime.load(demo_gguf, weights="int8", draft="ngram", gamma=8) as runtime:
        assert await outputs(runtime) == await outputs(runtime, mode="plain")
