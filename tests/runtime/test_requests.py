"""Requests that end early, fail, wait for each other or are read slowly: the next one is always right."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import numpy as np
import pytest
import torch

from runtime import ContextLengthError, FinishReason, GenerationResult, Mode, RuntimeClosedError
from runtime.token_stream import BUFFERED_CHUNKS
from tests.support.table_runtime import Rig, build_rig, greedy_ids, shown, similar_draft, table_target

PROMPT = [5, 17, 40, 8]


@pytest.fixture
async def rig(mode: Mode) -> AsyncIterator[Rig]:
    target = table_target()
    made = build_rig(target, similar_draft(target), mode=mode)
    yield made
    await made.runtime.close()


async def answer(
    rig: Rig, prompt: list[int] | None = None, max_tokens: int = 24, **options: object
) -> GenerationResult:
    return await rig.runtime.generate(prompt or PROMPT, max_tokens=max_tokens, ignore_eos=True, **options)  # type: ignore[arg-type]  # tests name real options


async def check_next_request(rig: Rig) -> None:
    """The runtime is free, and what it writes is what the table says."""
    result = await asyncio.wait_for(answer(rig), 30)
    assert result.token_ids == greedy_ids(table_target(), PROMPT, 24)


def other_tasks() -> set[asyncio.Task[object]]:
    return asyncio.all_tasks() - {asyncio.current_task()}  # type: ignore[arg-type]  # there is a current task


async def check_stopped(rig: Rig) -> None:
    """At most the round in flight still runs: the draft's calls, one verification, and no more after that.

    Pipelined, the call that the draft is at when the request ends is its last: all others are skipped.
    """
    before = rig.num_calls
    await rig.drained()
    assert rig.num_calls - before <= 6
    settled = rig.num_calls
    await asyncio.sleep(0.02)
    assert rig.num_calls == settled
    assert not other_tasks()


async def test_break_after_one_chunk_stops_the_work(rig: Rig) -> None:
    async with rig.runtime.stream(PROMPT, max_tokens=400, ignore_eos=True) as chunks:
        async for _ in chunks:
            break
    await check_stopped(rig)
    await check_next_request(rig)


async def test_a_time_out_stops_the_work(rig: Rig) -> None:
    rig.target.before_call = lambda number: time.sleep(0.01)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(answer(rig, max_tokens=400), 0.1)
    await check_stopped(rig)
    await check_next_request(rig)


async def test_a_cancel_while_the_reader_sleeps(rig: Rig) -> None:
    async def read() -> None:
        async with rig.runtime.stream(PROMPT, max_tokens=400, ignore_eos=True) as chunks:
            async for _ in chunks:
                await asyncio.sleep(30)

    reader = asyncio.create_task(read())
    await asyncio.sleep(0.05)
    assert rig.target.num_calls
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    await check_stopped(rig)
    await check_next_request(rig)


async def test_a_cancel_while_waiting_for_ones_turn_leaves_the_queue(rig: Rig) -> None:
    rig.target.before_call = lambda number: time.sleep(0.002)
    first = asyncio.create_task(answer(rig, max_tokens=60))
    await asyncio.sleep(0.01)
    waiting = asyncio.create_task(answer(rig))
    third = asyncio.create_task(answer(rig, [9, 9, 2]))
    await asyncio.sleep(0.01)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert (await first).token_ids == greedy_ids(table_target(), PROMPT, 60)
    assert (await third).token_ids == greedy_ids(table_target(), [9, 9, 2], 24)


@pytest.mark.parametrize("call", [1, 2, 3, 7])
@pytest.mark.parametrize("side", ["target", "draft"])
@pytest.mark.parametrize("streamed", [False, True])
async def test_an_exception_in_a_model_reaches_the_caller(rig: Rig, side: str, call: int, streamed: bool) -> None:
    model = rig.target if side == "target" else rig.draft
    assert model is not None
    planted = RuntimeError("planted")
    model.fail_at(call, planted)

    async def read() -> None:
        async with rig.runtime.stream(PROMPT, max_tokens=60, ignore_eos=True) as chunks:
            async for _ in chunks:
                pass

    with pytest.raises(RuntimeError, match="planted") as caught:
        await (read() if streamed else answer(rig, max_tokens=60))
    assert caught.value is planted
    await check_stopped(rig)
    await check_next_request(rig)


async def test_many_cancelled_requests_leave_nothing_behind(rig: Rig) -> None:
    generator = np.random.default_rng(0)
    rig.target.before_call = lambda number: time.sleep(0.0005)
    for delay_s in generator.uniform(0, 0.01, size=100):
        task = asyncio.create_task(answer(rig, max_tokens=400))
        await asyncio.sleep(delay_s)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    await check_stopped(rig)
    await check_next_request(rig)


async def test_a_slow_reader_gets_every_token_once_and_in_order(mode: Mode) -> None:
    rig = build_rig(table_target(), mode=mode)
    num_tokens = 3 * BUFFERED_CHUNKS
    received: list[int] = []
    async with rig.runtime.stream(PROMPT, max_tokens=num_tokens, ignore_eos=True) as chunks:
        async for chunk in chunks:
            received += chunk.token_ids
            if len(received) == 1:
                await asyncio.sleep(0.5)
                # One chunk was read, the buffer is full, one more waits for room, and pipelined, a round is in flight.
                assert rig.target.num_calls <= BUFFERED_CHUNKS + 4
    assert tuple(received) == greedy_ids(table_target(), PROMPT, num_tokens)
    await rig.runtime.close()


async def test_requests_at_the_same_time_equal_their_solo_runs(rig: Rig) -> None:
    prompts = [[1, 2, 3], [1, 2, 9, 4], [7]]
    together = await asyncio.gather(*(answer(rig, prompt, temperature=0.9, seed=3) for prompt in prompts))
    for prompt, result in zip(prompts, together, strict=True):
        alone = build_rig(table_target())
        assert shown(result) == shown(await answer(alone, prompt, temperature=0.9, seed=3))
        await alone.runtime.close()


@pytest.mark.parametrize("debug", [False, True])
@pytest.mark.parametrize("kind", ["asyncio", "uvloop"])
def test_one_runtime_under_two_event_loops_in_turn(kind: str, debug: bool, mode: Mode) -> None:
    factory = pytest.importorskip("uvloop").new_event_loop if kind == "uvloop" else None
    target = table_target()
    rig = build_rig(target, similar_draft(target), mode=mode)
    for _ in range(2):
        with asyncio.Runner(loop_factory=factory, debug=debug) as runner:
            runner.run(check_next_request(rig))
    asyncio.run(rig.runtime.close())


async def test_the_event_loop_stays_free(rig: Rig) -> None:
    rig.target.before_call = lambda number: time.sleep(0.03)
    gaps: list[float] = []

    async def tick() -> None:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(0.002)
            gaps.append(time.perf_counter() - before)

    ticker = asyncio.create_task(tick())
    started = time.perf_counter()
    await answer(rig, max_tokens=40)
    total = time.perf_counter() - started
    ticker.cancel()
    assert max(gaps) < total / 4


async def test_closing_ends_what_runs_and_refuses_what_comes(rig: Rig) -> None:
    rig.target.before_call = lambda number: time.sleep(0.002)
    running = asyncio.create_task(answer(rig, max_tokens=400))
    waiting = asyncio.create_task(answer(rig))
    await asyncio.sleep(0.02)
    await rig.runtime.close()
    results = await asyncio.gather(running, waiting, return_exceptions=True)
    assert all(isinstance(result, Exception) for result in results)
    with pytest.raises(RuntimeClosedError):
        await answer(rig)


async def test_a_common_prefix_is_read_once_and_changes_nothing(rig: Rig) -> None:
    prompt = list(range(60))
    await answer(rig, prompt)
    for follower in (prompt, prompt[:30], [*prompt, 70, 71], [*prompt[:40], 99], [8]):
        result = await answer(rig, follower)
        assert result.token_ids == greedy_ids(table_target(), follower, 24)
    repeated = await answer(rig, [*prompt, 70])
    assert repeated.metrics.num_prompt_tokens == 61
    again = await answer(rig, [*prompt, 70])
    assert again.metrics.num_reused_tokens == 60


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 31, 32, 33, 48, 49])
async def test_prompts_of_any_length_are_read_in_blocks(rig: Rig, length: int) -> None:
    prompt = [(7 * index) % 250 for index in range(length)]
    assert (await answer(rig, prompt)).token_ids == greedy_ids(table_target(), prompt, 24)


async def test_the_context_ends_the_output(mode: Mode) -> None:
    target = table_target()
    rig = build_rig(target, similar_draft(target), mode=mode, capacity=32)
    prompt = list(range(28))
    result = await answer(rig, prompt, max_tokens=100)
    assert (len(result.token_ids), result.finish_reason) == (4, FinishReason.LENGTH)
    assert result.token_ids == greedy_ids(table_target(), prompt, 4)
    with pytest.raises(ContextLengthError, match="32"):
        await answer(rig, list(range(32)))
    assert len((await answer(rig, list(range(31)))).token_ids) == 1
    await rig.runtime.close()


async def test_seeds_name_outputs_and_no_seed_draws_one(rig: Rig) -> None:
    torch.manual_seed(7)
    state = torch.get_rng_state()
    seeded = [await answer(rig, temperature=1.0, seed=5) for _ in range(2)]
    unseeded = [await answer(rig, temperature=1.0) for _ in range(2)]
    assert seeded[0].token_ids == seeded[1].token_ids
    assert unseeded[0].token_ids != unseeded[1].token_ids
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("gamma", range(9))
async def test_a_stop_string_cuts_where_one_token_decoding_would(gamma: int, mode: Mode) -> None:
    target = table_target()
    plain = build_rig(table_target(), gamma=0)
    full = await answer(plain, max_tokens=40)
    assert len(full.text) > 12, "the table must write something to stop at"
    stop = full.text[8:11]
    expected = await answer(plain, max_tokens=40, stop=[stop])
    rig = build_rig(target, table_target(), mode=mode, gamma=gamma)
    result = await answer(rig, max_tokens=40, stop=[stop])
    assert shown(result) == shown(expected)
    assert stop not in result.text
    assert result.finish_reason is FinishReason.STOP
    assert result.metrics.num_output_tokens == len(result.token_ids)
    for made in (plain, rig):
        await made.runtime.close()
