"""Requests that are cancelled, abandoned or fail: device work stops within one round and the next request is right."""

from __future__ import annotations

import asyncio
import gc
import random
import statistics
import time
from collections.abc import Iterator
from contextlib import aclosing
from typing import Any

import pytest
import torch

from tests.support.loops import Rig, model_proposer, ngram_proposer, one_token_decoding, request_of, rigged
from tests.support.table_model import TableCache, TableModel

PROMPT = (3, 1, 4, 1, 5, 2, 6, 5, 3, 5)
TWO_STREAMS = pytest.mark.parametrize("two_streams", [False, True], ids=["one stream", "two streams"])


class SlowModel(TableModel):
    """Takes a moment for each call, so that a cancellation can fall inside one."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.delay_s = 0.0

    def forward(self, token_ids_T: torch.Tensor, cache: TableCache, *, num_logits: int) -> torch.Tensor:
        if self.delay_s:
            time.sleep(self.delay_s)
        return super().forward(token_ids_T, cache, num_logits=num_logits)


def new_target() -> SlowModel:
    return SlowModel(seed=1, max_block=8)


def new_draft() -> SlowModel:
    return SlowModel(seed=1, sharpness=1.3, max_block=8)


@pytest.fixture(autouse=True)
def nothing_left_over() -> Iterator[None]:
    """No future whose error nobody read: those are reported when they are collected, and warnings are errors."""
    yield
    gc.collect()


async def no_stray_tasks() -> None:
    assert asyncio.all_tasks() == {asyncio.current_task()}


class StrayErrors:
    """Whatever reaches the loop's exception handler."""

    def __init__(self) -> None:
        self.contexts: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: self.contexts.append(context))

    async def check(self) -> None:
        gc.collect()
        await asyncio.sleep(0)
        assert self.contexts == []
        await no_stray_tasks()


async def check_next_request(rig: Rig, seed: int) -> None:
    request = request_of(PROMPT, 6, temperature=1.0, seed=seed)
    assert (await rig.run(request)).ids == one_token_decoding(new_target(), request)


@TWO_STREAMS
async def test_cancelled_anywhere_two_hundred_times(two_streams: bool) -> None:
    generator = random.Random(17)
    target, draft = new_target(), new_draft()
    reached = set()
    async with rigged(target, [model_proposer(draft, 3)], two_streams=two_streams) as rig:
        stray = StrayErrors()
        for index in range(200):
            target.delay_s, draft.delay_s = generator.choice([(2e-4, 0.0), (0.0, 2e-4), (1e-4, 1e-4), (0.0, 0.0)])
            # Sometimes another prompt, longer than one block, so that prefill is cancelled as well.
            prompt = PROMPT if generator.random() < 0.5 else [generator.randrange(8) for _ in range(30)]
            progress = [0]
            far_enough = asyncio.Event()
            num_reports = generator.randrange(10)

            async def generate(
                prompt: Any = prompt,
                index: int = index,
                progress: list[int] = progress,
                far_enough: asyncio.Event = far_enough,
                num_reports: int = num_reports,
            ) -> None:
                request = request_of(prompt, 200, temperature=1.0, seed=index)
                await rig.loop.prefill(request)
                async with aclosing(rig.loop.rounds(request)) as rounds:
                    async for _ in rounds:
                        progress[0] += 1
                        if progress[0] == num_reports:
                            far_enough.set()

            task = asyncio.create_task(generate())
            if num_reports > 2:
                await far_enough.wait()
            for _ in range(generator.randrange(30)):
                await asyncio.sleep(0)
            if generator.random() < 0.3:
                await asyncio.sleep(generator.random() * 0.001)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            reached.add(progress[0])
            target.delay_s = draft.delay_s = 0.0
            await check_next_request(rig, index)
        assert 0 in reached
        assert len(reached) > 5, "the cancellations all fell into the same place"
        await stray.check()


@TWO_STREAMS
async def test_work_stops_within_one_round(two_streams: bool) -> None:
    target, draft = new_target(), new_draft()
    async with rigged(target, [model_proposer(draft, 3)], two_streams=two_streams) as rig:
        for num_reports in range(5):
            request = request_of(PROMPT, 500, temperature=1.0, seed=num_reports)
            await rig.loop.prefill(request)
            rounds = rig.loop.rounds(request)
            for _ in range(num_reports):
                await anext(rounds)
            before = target.num_calls, draft.num_calls
            task = asyncio.ensure_future(anext(rounds))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await rounds.aclose()
            await rig.idle()
            await asyncio.sleep(0.01)
            assert target.num_calls - before[0] <= 1
            # One proposal, and before the first one the prompt.
            assert draft.num_calls - before[1] <= 3
            await check_next_request(rig, 1)


@TWO_STREAMS
async def test_cancelled_prefill_stops_within_one_block(two_streams: bool) -> None:
    target = new_target()
    async with rigged(target, two_streams=two_streams) as rig:
        target.delay_s = 1e-3
        task = asyncio.create_task(rig.loop.prefill(request_of(PROMPT * 20, 5)))
        while target.num_calls < 2:  # noqa: ASYNC110 - it is another thread that counts
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        seen = target.num_calls
        await rig.idle()
        assert target.num_calls <= seen + 1
        target.delay_s = 0.0
        await check_next_request(rig, 3)


@TWO_STREAMS
@pytest.mark.parametrize("num_reports", [0, 1, 4])
async def test_abandoned_after_some_reports(two_streams: bool, num_reports: int) -> None:
    target, draft = new_target(), new_draft()
    async with rigged(target, [ngram_proposer(2), model_proposer(draft, 3)], two_streams=two_streams) as rig:
        stray = StrayErrors()
        for seed in range(5):
            request = request_of(PROMPT, 500, temperature=1.0, seed=seed)
            await rig.loop.prefill(request)
            rounds = rig.loop.rounds(request)
            for _ in range(num_reports):
                await anext(rounds)
            calls = target.num_calls
            await rounds.aclose()
            await rig.idle()
            assert target.num_calls == calls
            with pytest.raises(StopAsyncIteration):
                await anext(rounds)
            await check_next_request(rig, seed)
        await stray.check()


async def test_broken_out_of_without_closing() -> None:
    async with rigged(new_target(), [model_proposer(new_draft(), 3)], two_streams=True) as rig:
        stray = StrayErrors()
        for seed in range(5):
            request = request_of(PROMPT, 500, temperature=1.0, seed=seed)
            await rig.loop.prefill(request)
            async for _ in rig.loop.rounds(request):
                break
            await check_next_request(rig, seed)
        await stray.check()


async def test_timed_out() -> None:
    target = new_target()
    async with rigged(target, [model_proposer(new_draft(), 3)], two_streams=True) as rig:
        stray = StrayErrors()
        target.delay_s = 2e-3
        for seed in range(5):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(rig.run(request_of(PROMPT, 500, seed=seed)), timeout=0.01)
        target.delay_s = 0.0
        await check_next_request(rig, 2)
        await stray.check()


@TWO_STREAMS
@pytest.mark.parametrize("side", ["target", "draft"])
@pytest.mark.parametrize("call", range(1, 11))
async def test_a_failing_call_reaches_the_caller_and_costs_only_its_request(
    two_streams: bool, side: str, call: int
) -> None:
    models = {"target": new_target(), "draft": new_draft()}
    async with rigged(models["target"], [model_proposer(models["draft"], 3)], two_streams=two_streams) as rig:
        stray = StrayErrors()
        broken = models[side]
        for seed in range(3):
            broken.fail_at_call = broken.num_calls + call
            with pytest.raises(RuntimeError, match="planted failure in table"):
                # Its own prompt, so that nothing is reused and prefill fails as well.
                await rig.run(request_of([seed, *PROMPT * 2], 60, temperature=1.0, seed=seed))
            assert broken.num_calls == broken.fail_at_call, "work went on after the failure"
            await check_next_request(rig, seed)
        await stray.check()


async def test_requests_one_after_the_other_in_two_event_loops() -> None:
    def serve() -> list[int]:
        async def main() -> list[int]:
            async with rigged(new_target(), [model_proposer(new_draft(), 3)], two_streams=True) as rig:
                return (await rig.run(request_of(PROMPT, 12, temperature=1.0, seed=1))).ids

        return asyncio.run(main())

    wanted = one_token_decoding(new_target(), request_of(PROMPT, 12, temperature=1.0, seed=1))
    for _ in range(2):
        assert await asyncio.to_thread(serve) == wanted


async def test_one_rig_serves_two_event_loops_in_turn() -> None:
    rig = Rig(new_target(), [model_proposer(new_draft(), 3)], two_streams=True)
    request = request_of(PROMPT, 12, temperature=1.0, seed=1)
    wanted = one_token_decoding(new_target(), request)
    try:
        for _ in range(2):
            assert (await asyncio.to_thread(lambda: asyncio.run(rig.run(request)))).ids == wanted
    finally:
        rig.close()


async def test_the_loop_turns_while_models_work() -> None:
    target, draft = new_target(), new_draft()
    target.delay_s = draft.delay_s = 2e-3
    turns = 0
    turns_of_round: list[int] = []
    async with rigged(target, [model_proposer(draft, 2)], two_streams=True) as rig:
        request = request_of(PROMPT, 30)
        await rig.loop.prefill(request)
        done = asyncio.Event()

        async def turn() -> None:
            nonlocal turns
            while not done.is_set():
                turns += 1
                await asyncio.sleep(0)

        ticker = asyncio.create_task(turn())
        seen = 0
        async for _ in rig.loop.rounds(request):
            turns_of_round.append(turns - seen)
            seen = turns
        done.set()
        await ticker
    # A round is milliseconds of model time; a loop that was blocked by it would turn once or twice.
    assert statistics.median(turns_of_round) > 5
