"""On the demo model, the same seed gives the same tokens with every draft, gamma and mode, to the last one.

The usual run takes six prompts of three kinds, a short output and a few settings. `SLIPSTREAM_FULL_EQUALITY=1` takes
twelve prompts, 200 tokens, greedy and sampled, every draft, every gamma and both packed weight kinds: hours on two
cores.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from models import DraftTarget, open_checkpoint, shipped_draft
from profiling.prompts import BenchPrompt, PromptKind, bench_prompts
from runtime import GenerationResult, Runtime

FULL = os.environ.get("SLIPSTREAM_FULL_EQUALITY") == "1"
NUM_TOKENS = 200 if FULL else 24
PROMPTS: Sequence[BenchPrompt] = [prompt for kind in PromptKind for prompt in bench_prompts(kind)[: 4 if FULL else 2]]
SAMPLINGS: Sequence[Mapping[str, Any]] = ({}, {"temperature": 0.8, "top_p": 0.95, "seed": 11})

DRAFTS = ("auto", "shipped", "ngram", "early-exit:8", "itself", "ngram+early-exit:4")
"""`itself` is the same file once more, loaded as a separate draft model; `shipped` is the distilled draft that comes
with the project, and `auto` whatever is taken where nothing is named."""
GAMMAS: Sequence[int | str] = (1, 2, 4, 8, "adaptive")
EVERY_SETTING = [
    *((weights, "none", 4) for weights in ("float16", "int8")),
    *product(("float16", "int8"), DRAFTS, GAMMAS),
]
FEW_SETTINGS = [
    ("float16", "itself", 4),
    ("float16", "shipped", 4),
    ("float16", "auto", "adaptive"),
]

Request = tuple[BenchPrompt, Mapping[str, Any]]
REQUESTS: Sequence[Request] = (
    list(product(PROMPTS, SAMPLINGS))
    if FULL
    else [(prompt, SAMPLINGS[index % len(SAMPLINGS)]) for index, prompt in enumerate(PROMPTS)]
)
ASKED_OF_ITSELF = range(len(REQUESTS)) if FULL else (0, 3, 4)
"""Of these, what the slowest draft is asked: every kind of prompt, greedy and sampled. Over long texts, a draft that is
its target is followed on tiny models."""


async def load(demo_gguf: Path, weights: str, draft: str, gamma: int | str) -> Runtime:
    sources = [_source(name, demo_gguf) for name in draft.split("+")]
    return await Runtime.load(
        demo_gguf, weights=weights, draft=sources if len(sources) > 1 else sources[0], gamma=gamma
    )


def _source(name: str, demo_gguf: Path) -> str:
    if name == "itself":
        return str(demo_gguf)
    if name != "shipped":
        return name
    with open_checkpoint(demo_gguf) as checkpoint:
        folder = shipped_draft(DraftTarget.of(checkpoint))
    assert folder is not None
    return str(folder)


async def answers(runtime: Runtime, requests: Sequence[Request], **options: Any) -> list[GenerationResult]:
    return [
        await runtime.generate(prompt.messages, max_tokens=NUM_TOKENS, ignore_eos=True, **sampling, **options)
        for prompt, sampling in requests
    ]


def check_equal(found: Sequence[GenerationResult], expected: Sequence[GenerationResult]) -> None:
    """The same tokens and text in every answer; a failure names the first place of the first that differs."""
    for index, (ours, plain) in enumerate(zip(found, expected, strict=True)):
        pairs = enumerate(zip(ours.token_ids, plain.token_ids, strict=True))
        differing = next((place for place, (left, right) in pairs if left != right), None)
        assert differing is None, f"request {index} differs from plain decoding at its token {differing}"
        assert ours.text == plain.text


_plain: dict[str, list[GenerationResult]] = {}


async def plain_answers(demo_gguf: Path, weights: str) -> list[GenerationResult]:
    """What a runtime without any draft writes; asked for once."""
    if weights not in _plain:
        async with await Runtime.load(demo_gguf, weights=weights, mode="plain") as runtime:
            _plain[weights] = await answers(runtime, REQUESTS)
    return _plain[weights]


@pytest.mark.weights
@pytest.mark.slow
@pytest.mark.timeout(3600 if FULL else 600)
@pytest.mark.parametrize(("weights", "draft", "gamma"), EVERY_SETTING if FULL else FEW_SETTINGS)
async def test_no_draft_changes_a_token(demo_gguf: Path, weights: str, draft: str, gamma: int | str) -> None:
    every = await plain_answers(demo_gguf, weights)
    assert {len(result.token_ids) for result in every} == {NUM_TOKENS}
    assert len({result.token_ids for result in every}) == len(REQUESTS), "each request has an answer of its own"
    asked = ASKED_OF_ITSELF if draft == "itself" else range(len(REQUESTS))
    expected = [every[index] for index in asked]
    async with await load(demo_gguf, weights, draft, gamma) as runtime:
        found = await answers(runtime, [REQUESTS[index] for index in asked])
        sources = runtime.description.draft
    if draft in {"auto", "shipped"}:
        assert sources[-1].endswith("(distilled)")
        assert sum(result.metrics.num_draft_tokens for result in found) > 0
    check_equal(found, expected)
    num_proposed = sum(result.metrics.num_draft_tokens for result in found)
    num_accepted = sum(result.metrics.num_accepted_draft_tokens for result in found)
    if draft == "none":
        assert num_proposed == 0
    elif draft == "itself" and gamma != "adaptive":
        # Any token that the draft's cache missed or kept too long would show here, though never in the output.
        assert num_accepted == num_proposed > 0
    elif gamma != "adaptive":
        assert num_proposed > num_accepted > 0, "equality says little unless proposals were taken and refused"


@pytest.mark.weights
@pytest.mark.timeout(600)
@pytest.mark.parametrize("weights", ["float16", "int8"])
async def test_a_runtime_agrees_with_its_own_plain_decoding(demo_gguf: Path, weights: str) -> None:
    kinds = (PromptKind.CODE, PromptKind.COPY)
    requests = [(bench_prompts(kind)[4], sampling) for kind, sampling in zip(kinds, SAMPLINGS, strict=True)]
    async with await load(demo_gguf, weights, "ngram+early-exit:4", 8) as runtime:
        found = await answers(runtime, requests)
        plain = await answers(runtime, requests, mode="plain")
    check_equal(found, plain)
    assert sum(result.metrics.num_accepted_draft_tokens for result in found) > 0
    assert sum(result.metrics.num_draft_tokens for result in plain) == 0
