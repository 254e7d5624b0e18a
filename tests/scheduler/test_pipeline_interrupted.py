"""The pipelined loop cancelled, abandoned and failing: work stops within one round, and the next request is right."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from contextlib import aclosing
from typing import Any

import pytest

from scheduler import NonFiniteLogitsError, VirtualDevice
from tests.support.drafts import ScriptedSource
from tests.support.loops import (
    Rig,
    model_proposer,
    ngram_proposer,
    one_token_decoding,
    request_of,
    rigged,
    thread_stream,
)
from tests.support.table_model import TableModel

PROMPT = (3, 1, 4, 1, 5, 2, 6, 5, 3, 5)
STREAMS = ("threads", "virtual")


def new_target() -> TableModel:
    return TableModel(seed=1, max_block=8)


def new_draft() -> TableModel:
    return TableModel(seed=1, sharpness=1.3, max_block=8)


def streams(kind: str, seed: int = 0) -> dict[str, Any]:
    return {"pipelined": True, "new_stream": thread_stream if kind == "threads" else VirtualDevice(seed).stream}


async def check_next_request(rig: Rig, seed: int) -> None:
    request = request_of(PROMPT, 6, temperature=1.0, seed=seed)
    assert (await rig.run(request)).ids == one_token_decoding(new_target(), request)


@pytest.fixture(autouse=True)
def nothing_left_over() -> Iterator[None]:
    """No coroutine and no error that nobody took up: those are reported when they are collected."""
    yield
    gc.collect()


class TestCancelled:
    @pytest.mark.parametrize("kind", STREAMS)
    async def test_at_every_turn(self, kind: str) -> None:
        async with rigged(new_target(), [ngram_proposer(2), model_proposer(new_draft(), 3)], **streams(kind)) as rig:
            for turn in range(70):
                # Longer than a block, so that prefill and catching up are cancelled as well.
                request = request_of([turn % 8, *PROMPT * 3], 200, temperature=1.0, seed=turn)
                task = asyncio.create_task(rig.run(request))
                for _ in range(turn):
                    await asyncio.sleep(0)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                await check_next_request(rig, turn)
            assert asyncio.all_tasks() == {asyncio.current_task()}

    @pytest.mark.parametrize("kind", STREAMS)
    @pytest.mark.parametrize("num_reports", [0, 1, 4])
    async def test_work_stops_within_one_round(self, num_reports: int, kind: str) -> None:
        target, draft = new_target(), new_draft()
        async with rigged(target, [model_proposer(draft, 3)], max_lead=4, **streams(kind)) as rig:
            for seed in range(5):
                request = request_of(PROMPT, 500, temperature=1.0, seed=seed)
                await rig.loop.prefill(request)
                async with aclosing(rig.loop.rounds(request)) as rounds:
                    for _ in range(num_reports):
                        await anext(rounds)
                    before = target.num_calls
                await rig.idle()
                # The round that was under way; where there was none yet, not even that.
                assert target.num_calls - before <= min(num_reports, 1)
                stopped = target.num_calls, draft.num_calls
                await rig.idle()
                assert (target.num_calls, draft.num_calls) == stopped
                with pytest.raises(StopAsyncIteration):
                    await anext(rounds)
                await check_next_request(rig, seed)

    async def test_a_held_back_draft_skips_what_nobody_needs_any_more(self) -> None:
        device = VirtualDevice(1)
        draft = new_draft()
        async with rigged(
            new_target(), [model_proposer(draft, 3)], pipelined=True, new_stream=device.stream, max_lead=6
        ) as rig:
            request = request_of(PROMPT, 500, temperature=1.0)
            hold = rig.draft_stream.hold()  # type: ignore[attr-defined]  # a virtual stream's
            await rig.loop.prefill(request)
            rounds = rig.loop.rounds(request)
            task = asyncio.ensure_future(anext(rounds))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await rounds.aclose()
            hold.release()
            await rig.idle()
            assert draft.num_calls == 0
            await check_next_request(rig, 4)

    @pytest.mark.parametrize("kind", STREAMS)
    async def test_broken_out_of_without_closing(self, kind: str) -> None:
        async with rigged(new_target(), [model_proposer(new_draft(), 3)], **streams(kind)) as rig:
            for seed in range(5):
                request = request_of(PROMPT, 500, temperature=1.0, seed=seed)
                await rig.loop.prefill(request)
                async for _ in rig.loop.rounds(request):
                    break
                await check_next_request(rig, seed)

    @pytest.mark.parametrize("kind", STREAMS)
    async def test_prefilled_and_never_decoded(self, kind: str) -> None:
        async with rigged(new_target(), [model_proposer(new_draft(), 3)], **streams(kind)) as rig:
            for seed in range(3):
                await rig.loop.prefill(request_of([seed, *PROMPT * 3], 5))
                await check_next_request(rig, seed)

    async def test_only_what_was_prefilled_is_decoded_and_only_once(self) -> None:
        async with rigged(new_target(), [model_proposer(new_draft(), 3)], **streams("virtual")) as rig:
            request = request_of(PROMPT, 8, temperature=1.0)
            await rig.loop.prefill(request_of(PROMPT, 8, temperature=1.0))
            with pytest.raises(RuntimeError, match="prefill the request with the loop"):
                await anext(rig.loop.rounds(request))
            await check_next_request(rig, 1)
            await rig.run(request)
            with pytest.raises(RuntimeError, match="prefill the request with the loop"):
                await anext(rig.loop.rounds(request))


class TestFailing:
    @pytest.mark.parametrize("kind", STREAMS)
    @pytest.mark.parametrize("side", ["target", "draft"])
    @pytest.mark.parametrize("call", range(1, 13))
    async def test_a_failing_call_reaches_the_caller_and_costs_only_its_request(
        self, call: int, side: str, kind: str
    ) -> None:
        models = {"target": new_target(), "draft": new_draft()}
        async with rigged(models["target"], [model_proposer(models["draft"], 3)], **streams(kind, call)) as rig:
            broken = models[side]
            for seed in range(2):
                broken.fail_at_call = broken.num_calls + call
                with pytest.raises(RuntimeError, match="planted failure in table"):
                    await rig.run(request_of([seed, *PROMPT * 2], 60, temperature=1.0, seed=seed))
                await rig.idle()
                assert broken.num_calls == broken.fail_at_call, "work went on after the failure"
                await check_next_request(rig, seed)

    @pytest.mark.parametrize("method", ["begin", "choose", "extend", "observe", "roll_back"])
    @pytest.mark.parametrize("seed", range(3))
    async def test_a_failing_source_reaches_the_caller(self, seed: int, method: str) -> None:
        source = ScriptedSource(gamma=2, errors={method: ValueError("planted")})
        async with rigged(new_target(), [lambda stream: source], **streams("virtual", seed)) as rig:
            with pytest.raises(ValueError, match="planted"):
                await rig.run(request_of(PROMPT, 60))
            await rig.idle()
            source.errors.clear()
            source.gamma = 0
            await check_next_request(rig, seed)

    @pytest.mark.parametrize("where", ["target", "draft"])
    async def test_a_row_without_a_law(self, where: str) -> None:
        target, draft = new_target(), new_draft()
        broken = {"target": target, "draft": draft}[where]
        healthy = broken.tables.clone()
        async with rigged(target, [model_proposer(draft, 3)], **streams("virtual", 5)) as rig:
            broken.tables[:] = float("nan")
            with pytest.raises(NonFiniteLogitsError, match="position 10"):
                await rig.run(request_of(PROMPT, 20))
            broken.tables[:] = healthy
            await check_next_request(rig, 3)
