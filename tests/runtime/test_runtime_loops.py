"""Event loops: several at once or in turn, of other makes, in debug mode; none is ever blocked or left untidy."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from profiling.ticker import ticking
from runtime import GenerationResult, Mode, Runtime, RuntimeClosedError
from tests.support.table_runtime import Rig, build_rig, greedy_ids, similar_draft, table_target
from tests.support.watched_model import Gate

PROMPTS = ((5, 17, 40, 8), (1, 2, 3), (200, 100))


def new_rig(mode: Mode) -> Rig:
    target = table_target()
    return build_rig(target, similar_draft(target), mode=mode)


async def answer(rig: Rig, prompt: tuple[int, ...] = PROMPTS[0], max_tokens: int = 30) -> GenerationResult:
    return await rig.runtime.generate(prompt, max_tokens=max_tokens, ignore_eos=True)


def expected(prompt: tuple[int, ...] = PROMPTS[0], max_tokens: int = 30) -> tuple[int, ...]:
    return greedy_ids(table_target(), prompt, max_tokens)


async def everything(rig: Rig) -> None:
    """One of each: a request, a stream, several at once, an abandoned one, a cancelled one, and a failing one."""
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    assert (await answer(rig)).token_ids == expected()
    async with rig.runtime.stream(PROMPTS[1], max_tokens=30, ignore_eos=True) as chunks:
        streamed = [token_id async for chunk in chunks for token_id in chunk.token_ids]
    assert tuple(streamed) == expected(PROMPTS[1])
    together = await asyncio.gather(*(answer(rig, prompt) for prompt in PROMPTS))
    assert [result.token_ids for result in together] == [expected(prompt) for prompt in PROMPTS]
    async with rig.runtime.stream(PROMPTS[2], max_tokens=300, ignore_eos=True) as chunks:
        async for _ in chunks:
            break
    task = asyncio.create_task(answer(rig, max_tokens=300))
    await asyncio.sleep(0.001)
    task.cancel()
    await asyncio.wait([task])
    rig.target.fail_at(2, ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        await answer(rig)
    assert (await answer(rig)).token_ids == expected()
    gc.collect()
    await asyncio.sleep(0)
    assert complaints == []
    assert asyncio.all_tasks() == {asyncio.current_task()}


def uvloop_runner(debug: bool) -> asyncio.Runner:
    uvloop = pytest.importorskip("uvloop")
    return asyncio.Runner(loop_factory=uvloop.new_event_loop, debug=debug)


def eager_runner(debug: bool) -> asyncio.Runner:
    if sys.version_info < (3, 12):
        pytest.skip("eager tasks came with Python 3.12")
    runner = asyncio.Runner(debug=debug)
    runner.get_loop().set_task_factory(asyncio.eager_task_factory)
    return runner


def plain_runner(debug: bool) -> asyncio.Runner:
    return asyncio.Runner(debug=debug)


@pytest.mark.parametrize("debug", [False, True], ids=["", "debug"])
@pytest.mark.parametrize("new_runner", [plain_runner, uvloop_runner, eager_runner])
def test_loops_of_every_make_in_turn(
    new_runner: Callable[[bool], asyncio.Runner], debug: bool, mode: Mode, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, logger="asyncio")  # debug mode reports whatever takes 0.1 s on a busy machine
    with new_runner(debug) as first, new_runner(debug) as second:
        rig = new_rig(mode)
        for runner in (first, second):
            runner.run(everything(rig))
        first.run(rig.runtime.close())


def in_threads(*works: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run each under a loop in a thread of its own, all at once."""
    failures: list[BaseException] = []
    start = threading.Barrier(len(works))

    def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            start.wait()
            asyncio.run(work())
        except BaseException as error:  # told to the thread that judges
            failures.append(error)

    threads = [threading.Thread(target=run, args=[work]) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=100)
    assert not any(thread.is_alive() for thread in threads)
    assert failures == []


def test_loops_in_several_threads_at_once(mode: Mode) -> None:
    rig = new_rig(mode)

    def client(prompt: tuple[int, ...]) -> Callable[[], Coroutine[Any, Any, None]]:
        async def ask() -> None:
            for max_tokens in range(1, 20):
                assert (await answer(rig, prompt, max_tokens)).token_ids == expected(prompt, max_tokens)
                async with rig.runtime.stream(prompt, max_tokens=100, ignore_eos=True) as chunks:
                    async for _ in chunks:
                        break

        return ask

    in_threads(*(client(prompt) for prompt in PROMPTS))
    asyncio.run(rig.runtime.close())


def test_a_loop_that_ends_with_requests_under_way_leaves_the_runtime_free(mode: Mode) -> None:
    rig = new_rig(mode)
    gate = Gate(rig.target, call=2)

    async def leave_two_behind() -> None:
        for prompt in PROMPTS[:2]:
            asyncio.get_running_loop().create_task(answer(rig, prompt, 300))
        await asyncio.to_thread(gate.wait_reached)

    asyncio.run(leave_two_behind())
    gate.open()

    async def go_on() -> None:
        assert (await asyncio.wait_for(answer(rig), 30)).token_ids == expected()

    asyncio.run(go_on())
    asyncio.run(rig.runtime.close())


async def test_models_run_on_their_workers_alone(mode: Mode) -> None:
    rig = new_rig(mode)
    async with rig.runtime:
        await answer(rig, tuple(range(60)))
        async with rig.runtime.stream(PROMPTS[0], max_tokens=20, ignore_eos=True) as chunks:
            async for _ in chunks:
                pass
    assert rig.draft is not None
    assert rig.target.thread_names == {"slipstream-target"}
    assert rig.draft.thread_names == {"slipstream-draft" if mode is Mode.PIPELINED else "slipstream-target"}


async def test_a_ticker_goes_on_while_a_model_computes(mode: Mode) -> None:
    """Each step is made far longer than the ticker's pause, so a step that held the loop would show."""
    rig = build_rig(table_target(), mode=mode)
    step_s = 0.25
    rig.target.before_call = lambda _: time.sleep(step_s)
    async with rig.runtime, ticking() as gaps_s:
        await answer(rig, max_tokens=4)
        async with rig.runtime.stream(PROMPTS[1], max_tokens=4, ignore_eos=True) as chunks:
            async for _ in chunks:
                pass
    assert len(gaps_s) > 8
    assert sorted(gaps_s)[len(gaps_s) // 2] < step_s / 4
    assert max(gaps_s) < step_s, "a whole step went by without a tick"


async def test_cancelled_requests_leave_memory_threads_and_tasks_flat(mode: Mode) -> None:
    rig = new_rig(mode)

    async def cancel_some(count: int) -> None:
        for index in range(count):
            task = asyncio.create_task(answer(rig, (index % 200, *PROMPTS[0]), 300))
            for _ in range(index % 7):
                await asyncio.sleep(0)
            if index % 3 == 0:
                await asyncio.sleep(0.001)
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled()
        await rig.drained()

    async with rig.runtime:
        await cancel_some(30)
        assert (await answer(rig)).token_ids == expected()
        gc.collect()
        tracemalloc.start()
        try:
            objects, threads = len(gc.get_objects()), threading.active_count()
            used_bytes, _ = tracemalloc.get_traced_memory()
            await cancel_some(100)
            gc.collect()
            grown_bytes = tracemalloc.get_traced_memory()[0] - used_bytes
        finally:
            tracemalloc.stop()
        assert len(gc.get_objects()) - objects < 100, "about one object a request stays behind"
        assert grown_bytes < 100 * 1024
        assert threading.active_count() == threads
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert (await answer(rig)).token_ids == expected()


async def test_closing_lets_the_round_end_and_tells_running_and_waiting_requests(mode: Mode) -> None:
    rig = new_rig(mode)
    gate = Gate(rig.target, call=3)
    running = asyncio.create_task(answer(rig, max_tokens=300))
    waiting = asyncio.create_task(answer(rig))
    streamed = rig.runtime.stream(PROMPTS[0], max_tokens=300)
    await asyncio.to_thread(gate.wait_reached)
    closing = asyncio.create_task(rig.runtime.close())
    await asyncio.sleep(0.01)
    assert not closing.done()
    gate.open()
    await asyncio.wait_for(closing, 30)
    assert rig.target.num_calls == 3
    with pytest.raises(RuntimeClosedError, match="while the request ran"):
        await asyncio.wait_for(running, 30)
    with pytest.raises(RuntimeClosedError, match="while the request waited"):
        await asyncio.wait_for(waiting, 30)
    async with streamed:
        with pytest.raises(RuntimeClosedError):
            await anext(streamed)
    with pytest.raises(RuntimeClosedError, match="load a new one"):
        await answer(rig)
    with pytest.raises(RuntimeClosedError, match="load a new one"):
        rig.runtime.stream(PROMPTS[0])
    await rig.runtime.close()


async def test_closing_during_prefill_ends_it_at_a_block(mode: Mode) -> None:
    rig = build_rig(table_target(max_block=8), mode=mode)
    gate = Gate(rig.target, call=2)
    running = asyncio.create_task(answer(rig, tuple(range(100))))
    await asyncio.to_thread(gate.wait_reached)
    closing = asyncio.create_task(rig.runtime.close())
    await asyncio.sleep(0.01)
    gate.open()
    await closing
    with pytest.raises(RuntimeClosedError):
        await running
    assert rig.target.widths == [8, 8]


async def test_the_block_closes_the_runtime_whatever_happens_inside(mode: Mode) -> None:
    before = set(threading.enumerate())
    rig = new_rig(mode)
    workers = set(threading.enumerate()) - before
    assert len(workers) == (2 if mode is Mode.PIPELINED else 1)

    async def fail_inside(runtime: Runtime) -> None:
        async with runtime:
            raise KeyError

    with pytest.raises(KeyError):
        await fail_inside(rig.runtime)
    assert not any(worker.is_alive() for worker in workers)
