"""What a request finds in the cache, and how its prompt gets there: reuse, blocks, the context's end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from runtime import ContextLengthError, FinishReason, GenerationResult, Mode
from tests.support.table_runtime import Rig, build_rig, greedy_ids, shown, similar_draft, table_target
from tests.support.watched_model import Gate

MAX_BLOCK = 8
CONTEXT = 128
BASE = tuple((37 * index + 11) % 250 for index in range(60))


def new_rig(mode: Mode, gamma: int = 3, **options: object) -> Rig:
    target = table_target(max_block=MAX_BLOCK, context_length=CONTEXT)
    draft = similar_draft(target, max_block=MAX_BLOCK, context_length=CONTEXT)
    return build_rig(target, draft, mode=mode, gamma=gamma, **options)  # type: ignore[arg-type]  # the caller names real fields


@pytest.fixture
async def rig(mode: Mode) -> AsyncIterator[Rig]:
    made = new_rig(mode)
    async with made.runtime:
        yield made


async def answer(rig: Rig, prompt: tuple[int, ...], max_tokens: int = 12, **options: object) -> GenerationResult:
    return await rig.runtime.generate(prompt, max_tokens=max_tokens, ignore_eos=True, **options)  # type: ignore[arg-type]  # real options


async def fresh_answer(prompt: tuple[int, ...], max_tokens: int = 12, **options: object) -> GenerationResult:
    fresh = new_rig(Mode.PLAIN)
    async with fresh.runtime:
        return await answer(fresh, prompt, max_tokens, **options)


def common_prefix(left: tuple[int, ...], right: tuple[int, ...]) -> int:
    return next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))


FOLLOWERS = {
    "the same prompt": BASE,
    "a prefix of it": BASE[:25],
    "its first token": BASE[:1],
    "all of it and more": (*BASE, 3, 1, 4),
    "as far as its middle": (*BASE[:30], 201, 202, 203),
    "nothing in common": tuple(reversed(BASE)),
}


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.9, "seed": 4, "top_k": 40}], ids=["greedy", "sampled"])
@pytest.mark.parametrize("follower", FOLLOWERS.values(), ids=FOLLOWERS.keys())
async def test_a_common_prefix_is_kept_and_changes_nothing(
    rig: Rig, follower: tuple[int, ...], sampling: dict[str, object]
) -> None:
    first = await answer(rig, BASE, **sampling)
    calls = len(rig.target.widths)
    result = await answer(rig, follower, logprobs=3, **sampling)
    assert shown(result) == shown(await fresh_answer(follower, logprobs=3, **sampling))
    assert result.metrics.num_prompt_tokens == len(follower)
    # All but the last token may be kept: a row is needed to draw the first output token from.
    held = (*BASE, *first.token_ids)
    assert result.metrics.num_reused_tokens == min(common_prefix(held, follower), len(follower) - 1)
    num_read = len(follower) - result.metrics.num_reused_tokens
    num_fed = sum(rig.target.widths[calls:])
    num_rounds = result.metrics.num_spec_steps + result.metrics.num_plain_steps
    # Each round but the first feeds one committed token of its own, and every round what was proposed.
    assert num_fed == num_read + (num_rounds - 1) + result.metrics.num_draft_tokens


async def test_a_conversation_reads_only_what_is_new(rig: Rig) -> None:
    first = await answer(rig, BASE)
    longer = (*BASE, *first.token_ids, 9, 8, 7)
    second = await answer(rig, longer)
    assert second.token_ids == greedy_ids(table_target(), longer, 12)
    assert second.metrics.num_reused_tokens >= len(BASE) + 12 - 1


@pytest.mark.parametrize("call", range(1, 12))
async def test_a_request_cancelled_anywhere_leaves_a_true_cache(call: int, mode: Mode) -> None:
    """The call under way still ends, in prefill (the first six) or in a round, and what it wrote is used."""
    rig = new_rig(mode)
    async with rig.runtime:
        await answer(rig, BASE[:10])
        gate = Gate(rig.target, call=call)
        task = asyncio.create_task(answer(rig, BASE, 50))
        await asyncio.to_thread(gate.wait_reached)
        task.cancel()
        await asyncio.wait([task])
        gate.open()
        calls = len(rig.target.widths)
        await rig.drained()
        assert len(rig.target.widths) == calls, "nothing was launched behind the call that ran"
        result = await answer(rig, BASE)
        assert result.token_ids == greedy_ids(table_target(), BASE, 12)
        assert result.metrics.num_reused_tokens == (10 + MAX_BLOCK * call if call <= 6 else len(BASE) - 1)


@pytest.mark.parametrize("side", ["target", "draft"])
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("call", range(1, 12))
async def test_a_request_that_fails_anywhere_leaves_a_true_cache(rig: Rig, side: str, call: int, late: bool) -> None:
    await answer(rig, BASE[:10])
    model = rig.target if side == "target" else rig.draft
    assert model is not None
    model.fail_at(call, MemoryError(), late=late)
    with pytest.raises(MemoryError):
        await answer(rig, BASE, 50)
    for prompt in (BASE, BASE[:10]):
        assert (await answer(rig, prompt)).token_ids == greedy_ids(table_target(), prompt, 12)


@pytest.mark.parametrize("gamma", [0, 1, 3, 7])
async def test_prompts_are_read_in_blocks_of_any_number(gamma: int, mode: Mode) -> None:
    rig = new_rig(mode, gamma)
    async with rig.runtime:
        for multiple in range(4):
            for length in range(max(1, multiple * MAX_BLOCK - 2), multiple * MAX_BLOCK + 3):
                # A first token of its own for each, so that nothing is reused.
                prompt = (length, *BASE[1:length])
                calls = len(rig.target.widths)
                result = await answer(rig, prompt)
                assert result.token_ids == greedy_ids(table_target(), prompt, 12)
                assert result.metrics.num_reused_tokens == 0
                widths = rig.target.widths[calls:]
                assert max(widths) <= MAX_BLOCK
                num_rounds = result.metrics.num_spec_steps + result.metrics.num_plain_steps
                num_prefill = len(widths) - num_rounds
                # The first round takes along what leaves room for its proposal.
                assert sum(widths[:num_prefill]) <= length - 1
                assert length - sum(widths[:num_prefill]) <= MAX_BLOCK - gamma


@pytest.mark.parametrize("gamma", [0, 3, 7])
@pytest.mark.parametrize("room", [1, 2, 4])
async def test_the_context_ends_the_output(gamma: int, room: int, mode: Mode) -> None:
    rig = new_rig(mode, gamma, capacity=40)
    prompt = BASE[: 40 - room]
    async with rig.runtime:
        assert rig.runtime.context_length == 40
        result = await answer(rig, prompt, 100)
        assert result.token_ids == greedy_ids(table_target(), prompt, room)
        assert result.finish_reason is FinishReason.LENGTH
        assert (await answer(rig, prompt, room)).token_ids == result.token_ids


async def test_a_prompt_that_fills_the_context_is_refused(mode: Mode) -> None:
    rig = new_rig(mode, capacity=40)
    async with rig.runtime:
        for length in (40, 41, 60):
            with pytest.raises(ContextLengthError, match=rf"prompt has {length} tokens .* context of 40; shorten it"):
                await answer(rig, BASE[:length])
            with pytest.raises(ValueError, match="shorten it"):  # a ContextLengthError is both
                await answer(rig, BASE[:length])
        assert rig.num_calls == 0
        assert (await answer(rig, BASE[:39])).token_ids == greedy_ids(table_target(), BASE[:39], 1)


async def test_a_draft_of_half_the_context_stops_drafting_there(mode: Mode) -> None:
    target = table_target(context_length=100)
    rig = build_rig(target, similar_draft(target, context_length=50), mode=mode, gamma=5, num_awaited=1)
    async with rig.runtime:
        result = await answer(rig, BASE[:30], 70)
        assert result.token_ids == greedy_ids(target, BASE[:30], 70)
        assert result.metrics.num_draft_tokens > 0
        assert result.metrics.num_plain_steps >= 100 - 50
        beyond = await answer(rig, BASE, 20)
        assert beyond.token_ids == greedy_ids(target, BASE, 20)
        assert beyond.metrics.num_draft_tokens == 0


async def test_draft_sources_hear_of_prompts_that_the_target_still_holds(mode: Mode) -> None:
    """The target keeps its prefix; a draft that paused or holds another text must find its way by itself."""
    target = table_target(max_block=MAX_BLOCK)
    twin = table_target(max_block=MAX_BLOCK, name="twin")
    rig = build_rig(target, twin, mode=mode, gamma=3, with_ngram=True, num_awaited=1)
    async with rig.runtime:
        for prompt in (BASE, BASE[:20], (*BASE[:20], 5), BASE, (5, 6, 5, 6, 5, 6)):
            result = await answer(rig, prompt, 40)
            assert result.token_ids == greedy_ids(target, prompt, 40)
            proposed, accepted = result.metrics.drafts["twin"]
            assert accepted == proposed, "equal models agree in every round, if the draft's cache is true"
