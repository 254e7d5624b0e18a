"""Seeds: they name an output whatever drafts for it, and without one every output is another."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import numpy as np
import pytest
import torch

from runtime import GenerationResult, Mode
from tests.support.statistics import frequencies, total_variation
from tests.support.table_model import TableModel
from tests.support.table_runtime import VOCAB_SIZE, Rig, build_rig, shown, similar_draft, table_target

PROMPT = (5, 17, 40, 8)
SAMPLINGS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.8, "top_p": 0.95},
    {"temperature": 1.0, "top_k": 20, "presence_penalty": 0.5, "repetition_penalty": 1.3},
    {"temperature": 1.2, "min_p": 0.05, "frequency_penalty": 0.4, "logit_bias": {7: 3.0}, "min_tokens": 5},
    {"temperature": 1e-6},
    {"temperature": 0.0},
)


async def answer(rig: Rig, **options: Any) -> GenerationResult:
    return await rig.runtime.generate(PROMPT, **{"max_tokens": 30, "logprobs": 2, "ignore_eos": True, **options})


def rigs(target: TableModel) -> list[Rig]:
    """Every kind of draft at several gammas, and none."""
    made = [build_rig(target), build_rig(target, gamma=8, with_ngram=True)]
    for gamma in (1, 2, 4, 8, None):
        made += [build_rig(target, similar_draft(target), gamma=gamma, with_ngram=gamma == 4)]
    made += [build_rig(target, table_target(seed=50, name="stranger"), gamma=3)]
    made += [build_rig(target, similar_draft(target), gamma=4, warmup_tokens=11)]
    for gamma, max_lead, num_awaited in ((1, 1, 0), (2, 3, 2), (4, 8, 1), (8, 4, 8), (None, 8, 0)):
        options = {"mode": Mode.PIPELINED, "gamma": gamma, "max_lead": max_lead, "num_awaited": num_awaited}
        made += [build_rig(target, similar_draft(target), with_ngram=gamma == 4, **options)]
    made += [build_rig(target, similar_draft(target), mode=Mode.PIPELINED, warmup_tokens=11)]
    made += [build_rig(target, mode=Mode.PIPELINED), build_rig(target, mode=Mode.PIPELINED, with_ngram=True)]
    return made


@pytest.mark.parametrize("sampling", SAMPLINGS)
async def test_a_seed_names_one_output(sampling: dict[str, Any]) -> None:
    target = table_target(sharpness=1.5)
    made = rigs(target)
    for seed in (0, -1, 2**63):
        results = [await answer(rig, seed=seed, **sampling) for rig in made]
        plain = await answer(made[-1], seed=seed, mode="plain", **sampling)
        assert {shown(result) for result in results} == {shown(plain)}
        assert all(rig.draft is None or rig.draft.num_calls for rig in made)
    for rig in made:
        await rig.runtime.close()


async def test_seeds_and_their_absence_tell_outputs_apart() -> None:
    target = table_target(sharpness=1.5)
    rig = build_rig(target, similar_draft(target))
    async with rig.runtime:
        seeded = {(await answer(rig, temperature=1.0, seed=seed)).token_ids for seed in range(8)}
        unseeded = {(await answer(rig, temperature=1.0)).token_ids for _ in range(8)}
        greedy = {(await answer(rig, seed=seed)).token_ids for seed in range(8)}
    assert len(seeded | unseeded) == 16
    assert len(greedy) == 1


@pytest.mark.parametrize("seed", [None, 3])
async def test_global_generators_neither_matter_nor_move(seed: int | None) -> None:
    target = table_target(sharpness=1.5)
    rig = build_rig(target, similar_draft(target))
    outputs = []
    async with rig.runtime:
        for global_seed in range(3):
            torch.manual_seed(global_seed)
            np.random.seed(global_seed)
            random.seed(global_seed)
            states = torch.get_rng_state(), np.random.get_state()[1].tobytes(), random.getstate()
            outputs.append((await answer(rig, temperature=1.0, seed=seed)).token_ids)
            assert torch.equal(torch.get_rng_state(), states[0])
            assert np.random.get_state()[1].tobytes() == states[1]
            assert random.getstate() == states[2]
    assert len(set(outputs)) == (3 if seed is None else 1)


@pytest.mark.parametrize("verification", ["coupled", "rejection"])
async def test_unseeded_first_and_second_tokens_follow_the_targets_law(verification: str, mode: Mode) -> None:
    """End to end, through every floor: the law of two tokens, whatever the draft thinks of them."""
    target = table_target(sharpness=0.7)
    rig = build_rig(target, similar_draft(target, share=0.1), mode=mode, gamma=2, num_awaited=1)
    allowed = dict.fromkeys((3, 60, 100, 200), 30.0)
    num_draws = 2000
    async with rig.runtime:
        options = {"max_tokens": 2, "temperature": 1.0, "logit_bias": allowed, "verification": verification}
        drawn = [(await answer(rig, logprobs=None, **options)).token_ids for _ in range(num_draws)]
    bias_V = torch.zeros(VOCAB_SIZE)
    bias_V[list(allowed)] = 30.0
    law = {}
    first_V = torch.softmax((target.logits_after(list(PROMPT)) + bias_V).double(), -1)
    for first in allowed:
        second_V = torch.softmax((target.logits_after([*PROMPT, first]) + bias_V).double(), -1)
        law |= {(first, second): float(first_V[first] * second_V[second]) for second in allowed}
    assert sum(law.values()) == pytest.approx(1, abs=1e-6)
    # Of 16 outcomes in 2,000 draws chance alone makes 0.03; a rule that kept the draft's own law would make 0.3.
    assert total_variation(frequencies(drawn), law) < 0.07


async def test_requests_drawn_together_are_independent() -> None:
    """Of unseeded requests at the same time none repeats another."""
    target = table_target(sharpness=1.0)
    rig = build_rig(target)
    async with rig.runtime:
        results = await asyncio.gather(*(answer(rig, temperature=1.0) for _ in range(10)))
    assert len({result.token_ids for result in results}) == 10
