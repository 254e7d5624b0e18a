"""Ids that only one of the two models has: never proposed, never read by the draft, and no hindrance to the output."""

from __future__ import annotations

import pytest

from scheduler import DecodeRequest, FixedGamma, Lane, ModelProposer, SamplingSettings, SequentialLoop, ThreadStream
from tests.support.table_model import TableModel

NUM_SHARED_IDS = 6


async def decode(loop: SequentialLoop, request: DecodeRequest) -> tuple[list[int], int]:
    await loop.prefill(request)
    token_ids: list[int] = []
    num_proposed = 0
    async for report in loop.rounds(request):
        token_ids += report.token_ids
        num_proposed += report.num_proposed
    return token_ids, num_proposed


@pytest.mark.parametrize(("target_width", "draft_width"), [(8, 10), (10, 8), (8, 8)])
async def test_padding_of_either_model_changes_nothing(target_width: int, draft_width: int) -> None:
    stream = ThreadStream("padding", num_threads=1)
    target = TableModel(vocab_size=target_width, seed=3)
    request = DecodeRequest(prompt_ids=(1, 2, 3), settings=SamplingSettings(temperature=1.0, seed=11), max_tokens=60)
    try:
        plain = SequentialLoop(Lane("target", target, stream, capacity=128), stream)
        expected, _ = await decode(plain, request)
        assert max(expected) >= NUM_SHARED_IDS, "the target must write a token that the draft does not know"
        draft = TableModel(vocab_size=draft_width, seed=3)
        proposer = ModelProposer(
            Lane("draft", draft, stream, capacity=128), FixedGamma(4), num_shared_ids=NUM_SHARED_IDS
        )
        seen: list[int] = []
        extend = proposer.extend
        proposer.extend = lambda *arguments: _noted(extend(*arguments), seen)  # type: ignore[method-assign]  # a spy
        loop = SequentialLoop(Lane("target", target, stream, capacity=128), stream, [proposer])
        token_ids, num_proposed = await decode(loop, request)
    finally:
        stream.close()
    assert token_ids == expected
    assert num_proposed > 0
    assert max(seen) < NUM_SHARED_IDS


def _noted(proposal, seen):
    seen.extend(proposal.token_ids)
    return proposal
