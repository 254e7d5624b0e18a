"""One request with another gamma than its runtime's, on the same weights and the same cache."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from runtime import Runtime
from tests.support.tiny_checkpoint import write_tiny_gguf

PROMPT = "hello the hello the hello"
SAME_TOKEN = {"max_tokens": 40, "ignore_eos": True, "logit_bias": {5: 100.0}}
"""One token forever: a draft is always right, so a round commits all that it may propose."""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gguf(tmp_path_factory.mktemp("checkpoint") / "tiny.gguf")


@pytest.fixture(params=["adaptive", 6])
async def runtime(checkpoint: Path, request: pytest.FixtureRequest) -> AsyncIterator[Runtime]:
    """Its own gamma is chosen in rounds, or fixed."""
    async with await Runtime.load(
        checkpoint, mode="pipelined", draft="early-exit:1", gamma=request.param, max_gamma=6, threads=1
    ) as loaded:
        yield loaded


@pytest.mark.parametrize("gamma", [1, 2, 5, 6])
async def test_a_block_has_as_many_tokens_as_the_request_says(runtime: Runtime, gamma: int) -> None:
    result = await runtime.generate(PROMPT, mode="sequential", gamma=gamma, **SAME_TOKEN)
    histogram = result.metrics.acceptance_histogram
    assert len(histogram) == gamma + 1
    assert histogram[gamma] == 40 // (gamma + 1)
    assert result.metrics.draft_acceptance_rate == 1


async def test_gamma_never_changes_the_tokens_nor_the_next_request(runtime: Runtime) -> None:
    """In either mode, greedy and with a seed."""
    for temperature in (0.0, 1.0):
        options = {"max_tokens": 30, "ignore_eos": True, "temperature": temperature, "seed": 3}
        plain = await runtime.generate(PROMPT, mode="plain", **options)
        for gamma in (4, 1, None, 6, 0, None):
            for mode in ("sequential", "pipelined"):
                result = await runtime.generate(PROMPT, mode=mode, gamma=gamma, **options)
                assert result.token_ids == plain.token_ids
                assert len(result.metrics.acceptance_histogram) <= 1 + (6 if gamma is None else gamma)
                if gamma is not None:
                    assert (result.metrics.num_draft_tokens == 0) is (gamma == 0)


async def test_a_gamma_beyond_the_runtimes_is_refused_with_the_way_out(runtime: Runtime) -> None:
    with pytest.raises(ValueError, match=r"gamma must be at most 6 on this runtime, got 7; load it with max_gamma=7"):
        await runtime.generate(PROMPT, gamma=7)
    with pytest.raises(ValueError, match=r"gamma must be at most 6"):
        runtime.stream(PROMPT, gamma=15)


async def test_a_gamma_that_nothing_would_come_of_is_refused(runtime: Runtime, checkpoint: Path) -> None:
    with pytest.raises(ValueError, match="gamma must be 0 or left out with mode 'plain'"):
        await runtime.generate(PROMPT, mode="plain", gamma=2)
    await runtime.generate(PROMPT, mode="plain", gamma=0, max_tokens=2)
    async with await Runtime.load(checkpoint, draft="none", threads=1) as without:
        with pytest.raises(ValueError, match="gamma must be 0 or left out on a runtime without a draft, got 2"):
            await without.generate(PROMPT, gamma=2)
