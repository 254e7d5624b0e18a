"""Loops that are called in the wrong order or with wrong settings say so, and serve the next request."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from scheduler import VirtualDevice
from tests.support.loops import model_proposer, one_token_decoding, request_of, rigged
from tests.support.table_model import TableModel

PROMPT = (1, 2, 3, 4, 5)
LOOPS = pytest.mark.parametrize("pipelined", [False, True], ids=["sequential", "pipelined"])
REFUSED = r"prefill (a|the) request"


def model() -> TableModel:
    return TableModel(seed=1, max_block=4)


@LOOPS
async def test_rounds_of_an_older_request_end_where_a_newer_one_begins(pipelined: bool) -> None:
    older, newer = request_of(PROMPT, 40), request_of((7, 6, 5), 20)
    async with rigged(model(), [model_proposer(model(), 2)], pipelined=pipelined) as rig:
        await rig.loop.prefill(older)
        old_rounds = rig.loop.rounds(older)
        await anext(old_rounds)
        await rig.loop.prefill(newer)
        new_rounds = rig.loop.rounds(newer)
        output = list((await anext(new_rounds)).token_ids)
        for _ in range(2):
            with pytest.raises((RuntimeError, StopAsyncIteration)):
                await anext(old_rounds)
        async for report in new_rounds:
            output += report.token_ids
        assert output == one_token_decoding(model(), newer)


@LOOPS
async def test_rounds_without_a_prefill_of_their_own(pipelined: bool) -> None:
    first, second = request_of(PROMPT, 10), request_of((7, 6, 5), 10)
    async with rigged(model(), [model_proposer(model(), 2)], pipelined=pipelined) as rig:
        for request in (first, second):
            with pytest.raises(RuntimeError, match=REFUSED):
                await anext(rig.loop.rounds(request))
        await rig.loop.prefill(first)
        await rig.loop.prefill(second)
        with pytest.raises(RuntimeError, match=REFUSED):
            await anext(rig.loop.rounds(first))
        assert (await rig.run(second)).ids == one_token_decoding(model(), second)
        with pytest.raises(RuntimeError, match=REFUSED):
            await anext(rig.loop.rounds(second))


@LOOPS
async def test_two_prefills_at_once(pipelined: bool) -> None:
    first, second = request_of(PROMPT * 3, 10), request_of((7, 6, 5) * 5, 10)
    async with rigged(model(), [model_proposer(model(), 2)], pipelined=pipelined) as rig:
        outcomes = await asyncio.gather(rig.loop.prefill(first), rig.loop.prefill(second), return_exceptions=True)
        assert any(isinstance(outcome, RuntimeError) for outcome in outcomes)
        assert (await rig.run(first)).ids == one_token_decoding(model(), first)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"max_gamma": -1}, ValueError),
        ({"max_gamma": 2.5}, TypeError),
        ({"max_gamma": "4"}, TypeError),
        ({"warmup_tokens": -5}, ValueError),
        ({"warmup_tokens": None}, TypeError),
        ({"max_lead": 0}, ValueError),
        ({"max_lead": 100_000}, ValueError),
        ({"num_awaited": -1}, ValueError),
        ({"num_awaited": True}, TypeError),
        ({"num_verdict_slots": 0}, ValueError),
        ({"num_verdict_slots": 2.5}, TypeError),
    ],
)
async def test_settings_out_of_range(options: dict[str, Any], error: type[Exception]) -> None:
    (name,) = options
    with pytest.raises(error, match=name):
        async with rigged(
            model(), [model_proposer(model())], pipelined=True, new_stream=VirtualDevice().stream, **options
        ):
            pass


@pytest.mark.parametrize("options", [{"seed": "x"}, {"seed": 1.5}, {"seed": True}, {"costs": 3}])
def test_a_device_of_the_wrong_kind(options: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=next(iter(options))):
        VirtualDevice(**options)
