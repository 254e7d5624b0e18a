"""Recording on a runtime: between requests, whatever becomes of them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from runtime import Mode, RuntimeClosedError
from scheduler import LaunchOutcome
from tests.support.table_runtime import Rig, build_rig, similar_draft, table_target

PROMPT = [5, 17, 40, 8]


@pytest.fixture(params=[Mode.SEQUENTIAL, Mode.PIPELINED])
async def rig(request: pytest.FixtureRequest) -> AsyncIterator[Rig]:
    target = table_target()
    made = build_rig(target, similar_draft(target), mode=request.param)
    yield made
    await made.runtime.close()


async def test_every_launch_is_over_when_a_recording_is_had(rig: Rig) -> None:
    rig.runtime.start_recording()
    results = [await rig.runtime.generate(PROMPT, max_tokens=20, seed=seed, temperature=1.0) for seed in range(3)]
    recording = await rig.runtime.stop_recording()
    assert {span.outcome for span in recording.launches} <= {LaunchOutcome.RAN, LaunchOutcome.SKIPPED}
    assert sum(span.num_tokens for span in recording.rounds) >= sum(len(result.token_ids) for result in results)
    assert [span.number for span in recording.rounds] == list(range(len(recording.rounds)))


async def test_it_begins_between_requests(rig: Rig) -> None:
    with pytest.raises(RuntimeError, match="nothing is recording; start a recording first"):
        await rig.runtime.stop_recording()
    async with rig.runtime.stream(PROMPT, max_tokens=200, ignore_eos=True) as chunks:
        await anext(chunks)
        with pytest.raises(RuntimeError, match="a request is running; start recording before it"):
            rig.runtime.start_recording()
    rig.runtime.start_recording()
    with pytest.raises(RuntimeError, match="is recording already"):
        rig.runtime.start_recording()
    assert (await rig.runtime.stop_recording()).rounds == ()


async def test_it_may_end_in_the_middle_and_after_a_cancel(rig: Rig) -> None:
    rig.runtime.start_recording()
    async with rig.runtime.stream(PROMPT, max_tokens=200, ignore_eos=True) as chunks:
        await anext(chunks)
        recording = await rig.runtime.stop_recording()
    assert recording.launches
    rig.runtime.start_recording()
    result = await rig.runtime.generate(PROMPT, max_tokens=10)
    after = await rig.runtime.stop_recording()
    assert sum(span.num_tokens for span in after.rounds) >= len(result.token_ids)


async def test_what_was_recorded_is_had_even_from_a_closed_runtime(rig: Rig) -> None:
    rig.runtime.start_recording()
    await rig.runtime.generate(PROMPT, max_tokens=10)
    await rig.runtime.close()
    assert (await rig.runtime.stop_recording()).rounds
    with pytest.raises(RuntimeClosedError):
        rig.runtime.start_recording()
