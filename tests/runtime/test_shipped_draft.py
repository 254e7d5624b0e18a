"""The draft that comes with the project, on the demo model: what it is, and that it changes no law."""

from __future__ import annotations

import math
import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

import scheduler.verify
from models import DraftTarget, open_checkpoint, open_draft, read_draft_description, shipped_draft
from models.shipped import SHIPPED_FOLDER
from runtime import GenerationResult, Mode, Runtime
from scheduler.distribution import Distribution
from scheduler.noise import Purpose
from scheduler.round import Proposal
from tests.support.statistics import chi_square_z

MOST_BYTES = 16_000_000
MESSAGES = [{"role": "user", "content": "Write about a morning at the harbour."}]
FULL = os.environ.get("SLIPSTREAM_FULL_EQUALITY") == "1"
NUM_DRAWS = 1200 if FULL else 150
"""The usual number finds gross faults alone; the full one also a residual that was left out."""
NUM_DRAWN_TOKENS = 3


def shipped_folders() -> list[Path]:
    return [path.parent for path in sorted(SHIPPED_FOLDER.glob("*/draft.json"))]


def test_every_shipped_draft_is_small_and_tells_its_origin() -> None:
    assert shipped_folders(), "the demo model is to have a draft"
    for folder in shipped_folders():
        files = [path for path in folder.iterdir() if path.is_file()]
        assert sum(path.stat().st_size for path in files) < MOST_BYTES, folder
        card = (folder / "README.md").read_text(encoding="utf-8")
        for said in (
            "python -m models.distill",
            "Apache License 2.0",
            "SmolLM2-135M-Instruct by Hugging Face",
            "sum min(p, q)",
            read_draft_description(folder).target_name,
        ):
            assert said in card, f"{folder.name}/README.md does not say {said!r}"


@pytest.mark.weights
def test_it_is_whole_and_in_float16(demo_gguf: Path) -> None:
    with open_checkpoint(demo_gguf) as checkpoint:
        folder = shipped_draft(DraftTarget.of(checkpoint))
        assert folder is not None
        tensors = open_draft(folder, checkpoint).tensors()
    kinds = {tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()}
    assert kinds == {torch.float16}
    assert all(torch.isfinite(tensor).all() for tensor in tensors.values())


def first_tokens_law(logprobs_by_prefix: dict[tuple[int, ...], dict[int, float]]) -> dict[tuple[int, ...], float]:
    """Of outputs of `NUM_DRAWN_TOKENS` tokens, each one of the two likeliest."""
    law: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(NUM_DRAWN_TOKENS):
        longer = {}
        for prefix, chance in law.items():
            weights = {token_id: math.exp(value) for token_id, value in logprobs_by_prefix[prefix].items()}
            total = sum(weights.values())
            longer |= {(*prefix, token_id): chance * weight / total for token_id, weight in weights.items()}
        law = longer
    return law


async def two_likeliest(runtime: Runtime, prompt_ids: list[int]) -> dict[tuple[int, ...], dict[int, float]]:
    """Log-probabilities of the two likeliest tokens after each of their own combinations."""
    found: dict[tuple[int, ...], dict[int, float]] = {}
    prefixes: list[tuple[int, ...]] = [()]
    for _ in range(NUM_DRAWN_TOKENS):
        for prefix in prefixes:
            result = await runtime.generate([*prompt_ids, *prefix], max_tokens=1, logprobs=2, mode=Mode.PLAIN)
            found[prefix] = dict(result.logprobs[0].top[:2])
        prefixes = [(*prefix, token_id) for prefix in prefixes for token_id in found[prefix]]
    return found


@pytest.mark.weights
@pytest.mark.slow
@pytest.mark.timeout(3600 if FULL else 600)
async def test_draws_with_it_follow_the_targets_own_law(demo_gguf: Path) -> None:
    """Under the rejection rule, by chi-square over all outputs of three tokens; seeds make it the same each time."""
    results, law = await drawn(demo_gguf)
    proposed = sum(result.metrics.num_draft_tokens for result in results)
    accepted = sum(result.metrics.num_accepted_draft_tokens for result in results)
    assert NUM_DRAWS / 10 < accepted < proposed, "the law says little unless proposals were taken and refused"
    assert distance_z(results, law) < 4


@pytest.mark.weights
@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.skipif(not FULL, reason="takes minutes; SLIPSTREAM_FULL_EQUALITY=1 runs it")
async def test_another_law_would_be_noticed(demo_gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a rejection the target's law in the residual's place: the commonest fault."""

    def without_residual(seed: int, position: int, target: Distribution, proposal: Proposal, row: int) -> int:
        token_id = next_by_rejection(seed, position, target, proposal, row)
        is_rejection = row < len(proposal.token_ids) and token_id != proposal.token_ids[row]
        return target.draw(seed, position, Purpose.RESIDUAL) if is_rejection else token_id

    next_by_rejection = scheduler.verify._next_by_rejection
    monkeypatch.setattr(scheduler.verify, "_next_by_rejection", without_residual)
    assert distance_z(*await drawn(demo_gguf)) > 4


async def drawn(demo_gguf: Path) -> tuple[list[GenerationResult], dict[tuple[int, ...], float]]:
    """Many outputs, and the chances that the target gives each."""
    folder = shipped_folders()[0]
    async with await Runtime.load(demo_gguf, draft=folder, mode=Mode.SEQUENTIAL, gamma=3) as runtime:
        prompt_ids = runtime.tokenizer.encode_chat(MESSAGES)
        law = first_tokens_law(await two_likeliest(runtime, prompt_ids))
        results: list[GenerationResult] = []
        for seed in range(NUM_DRAWS):
            results.append(
                await runtime.generate(
                    prompt_ids,
                    max_tokens=NUM_DRAWN_TOKENS,
                    temperature=1.0,
                    top_k=2,
                    seed=seed,
                    ignore_eos=True,
                    verification="rejection",
                )
            )
    return results, law


def distance_z(results: list[GenerationResult], law: dict[tuple[int, ...], float]) -> float:
    """Standard deviations between what was drawn and the law."""
    counts = Counter(tuple(result.token_ids) for result in results)
    assert set(counts) <= set(law)
    return chi_square_z(*_pooled(counts, law))


def _pooled(counts: Counter[tuple[int, ...]], law: dict[tuple[int, ...], float]) -> tuple[np.ndarray, np.ndarray]:
    """Observed and expected numbers, outcomes too rare for a chi-square put together."""
    common = [outcome for outcome, chance in law.items() if chance * NUM_DRAWS >= 5]
    observed = [counts[outcome] for outcome in common]
    expected = [law[outcome] * NUM_DRAWS for outcome in common]
    rest = NUM_DRAWS - sum(expected)
    if rest > 1:
        observed.append(NUM_DRAWS - sum(observed))
        expected.append(rest)
    return np.array(observed, dtype=float), np.array(expected)
