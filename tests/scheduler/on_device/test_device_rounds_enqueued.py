"""Rounds on the streams of a fake GPU: no launch reads a value, and one copy a round goes to the host."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
import torch

from models import Decoder, WeightKind
from scheduler import CudaEvent, DeviceResidency, Lane, NonFiniteLogitsError, Verification
from scheduler.block import Flight
from tests.support.device_loops import FakeGpu, close_model, new_model, target_model
from tests.support.host_reads import HostReadError
from tests.support.loops import decode, model_proposer, one_token_decoding, request_of, rigged
from tests.support.sequential_cases import OPTIONS, PROMPT, check_reports
from tests.support.tiny_decoders import llama

LOOPS: dict[str, dict[str, Any]] = {
    "sequential": {"two_streams": True},
    "one stream": {},
    "pipelined": {"pipelined": True, "max_lead": 4},
    "not awaited": {"pipelined": True, "max_lead": 2, "num_awaited": 0},
}


def decoder() -> Decoder:
    return Decoder.from_checkpoint(llama().checkpoint, weights=WeightKind.FLOAT32)


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("rule", Verification)
@pytest.mark.parametrize("name", OPTIONS)
async def test_one_copy_a_round_and_no_other_read(name: str, rule: Verification, loop: str) -> None:
    request = request_of(PROMPT, 16, **OPTIONS[name], verification=rule)
    gpu = FakeGpu(1)
    output = await decode(target_model(), request, [model_proposer(close_model(), 3)], **gpu.rig_options(**LOOPS[loop]))
    check_reports(output, 16)
    if rule is Verification.COUPLED:
        assert output.ids == one_token_decoding(target_model(), request)
    assert gpu.num_copies == len(output.reports)
    assert 0 < output.num_accepted < output.num_proposed
    assert gpu.driver.faults == []


async def test_the_guard_is_at_work() -> None:
    draft = close_model()
    rows_after = draft.rows_after

    def reading(rows: torch.Tensor, positions_R: torch.Tensor) -> torch.Tensor:
        assert positions_R.numel() == 0 or int(positions_R[0]) >= 0
        return rows_after(rows, positions_R)

    draft.rows_after = reading  # type: ignore[method-assign]  # the fault
    with pytest.raises(HostReadError, match="positions_R"):
        await decode(
            target_model(), request_of(PROMPT, 8), [model_proposer(draft, 3)], **FakeGpu().rig_options(pipelined=True)
        )


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("loop", LOOPS)
async def test_requests_in_turn_some_of_them_abandoned(loop: str, seed: int) -> None:
    gpu = FakeGpu(seed)
    async with rigged(target_model(), [model_proposer(close_model(), 3)], **gpu.rig_options(**LOOPS[loop])) as rig:
        for turn in range(8):
            request = request_of(PROMPT[turn % 4 :], 14, temperature=1.0, seed=turn)
            if turn % 2:
                await rig.loop.prefill(request)
                rounds = rig.loop.rounds(request)
                for _ in range(turn // 2 % 3):
                    await anext(rounds)
                await rounds.aclose()
            else:
                assert (await rig.run(request)).ids == one_token_decoding(target_model(), request)
    assert gpu.driver.faults == []


@pytest.mark.parametrize("loop", LOOPS)
async def test_a_cancelled_request_leaves_the_next_one_alone(loop: str) -> None:
    gpu = FakeGpu(3)
    async with rigged(target_model(), [model_proposer(close_model(), 3)], **gpu.rig_options(**LOOPS[loop])) as rig:
        for turn in range(5):
            request = request_of(PROMPT, 60, temperature=1.0, seed=turn)
            task = asyncio.create_task(rig.run(request))
            for _ in range(3 * turn):
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            short = request_of(PROMPT, 9, temperature=1.0, seed=turn)
            assert (await rig.run(short)).ids == one_token_decoding(target_model(), short)
    assert gpu.driver.faults == []


@pytest.mark.parametrize("who", ["draft", "target"])
@pytest.mark.parametrize("call", [1, 5])
@pytest.mark.parametrize("loop", LOOPS)
async def test_a_model_that_fails(loop: str, call: int, who: str) -> None:
    models = {"target": target_model(), "draft": close_model()}
    models[who].fail_at_call = call
    gpu = FakeGpu(call)
    async with rigged(models["target"], [model_proposer(models["draft"], 3)], **gpu.rig_options(**LOOPS[loop])) as rig:
        request = request_of(PROMPT, 60, temperature=1.0)
        with pytest.raises(RuntimeError, match="planted failure"):
            await asyncio.wait_for(rig.run(request), 30)
        request = request_of(PROMPT, 12, temperature=1.0)
        for _ in range(2):
            assert (await rig.run(request)).ids == one_token_decoding(target_model(), request)
    assert gpu.driver.faults == []


@pytest.mark.parametrize("loop", LOOPS)
async def test_damaged_weights(loop: str) -> None:
    target = target_model()
    target.tables[0, PROMPT[-1]] = float("nan")
    gpu = FakeGpu()
    with pytest.raises(NonFiniteLogitsError, match="the weights are damaged"):
        await decode(
            target, request_of(PROMPT, 9), [model_proposer(close_model(), 3)], **gpu.rig_options(**LOOPS[loop])
        )


@pytest.mark.parametrize("rule", Verification)
@pytest.mark.parametrize("loop", LOOPS)
async def test_steady_state_keeps_its_addresses(loop: str, rule: Verification) -> None:
    gpu = FakeGpu()
    async with rigged(target_model(), [model_proposer(new_model(2), 3)], **gpu.rig_options(**LOOPS[loop])) as rig:
        addresses = []
        for _ in range(3):
            await rig.run(request_of(PROMPT, 12, temperature=1.0, verification=rule))
            chain, target = rig.loop._drafter._chain, rig.loop._verifier._side
            addresses.append(
                [
                    tensor.data_ptr()
                    for owner in (chain._slots, chain._position, target._restarts)
                    for tensor in vars(owner).values()
                    if isinstance(tensor, torch.Tensor)
                ]
            )
        assert len(addresses[0]) >= 8
        assert addresses[0] == addresses[1] == addresses[2]


@pytest.mark.parametrize("loop", LOOPS)
async def test_the_device_tells_what_a_block_took(loop: str) -> None:
    gpu = FakeGpu(timing=True)
    async with rigged(target_model(), [model_proposer(close_model(), 3)], **gpu.rig_options(**LOOPS[loop])) as rig:
        noted: list[tuple[int, float]] = []
        rig.target.note_cost = lambda width, cost_ms: noted.append((width, cost_ms))  # type: ignore[method-assign]
        output = await rig.run(request_of(PROMPT, 16))
    widths = [report.num_proposed + 1 for report in output.reports]
    widths[0] += len(PROMPT) - 1
    told = list(zip(widths, [report.verify_ms for report in output.reports], strict=True))
    # The lane of a model on the CPU times its calls as well; a time of the host's clock is in neither.
    assert [item for item in noted if item in told] == told


async def test_waiting_for_a_guess_is_no_part_of_what_a_block_took() -> None:
    gpu = FakeGpu(timing=True)
    options = gpu.rig_options(pipelined=True, max_lead=4)
    async with rigged(target_model(), [model_proposer(close_model(), 3)], **options) as rig:
        flights: list[Flight] = []
        verify = rig.loop._verifier.verify

        def noting(*arguments: Any) -> Flight:
            flights.append(verify(*arguments))
            return flights[-1]

        rig.loop._verifier.verify = noting  # type: ignore[method-assign]  # to see what it gives
        output = await rig.run(request_of(PROMPT, 16))
    assert len(flights) == len(output.reports)
    for flight, report in zip(flights, output.reports, strict=True):
        began, read, verified = (cast(CudaEvent, event) for event in (flight.began, flight.read, flight.verified))
        assert report.verify_ms == read.elapsed_ms_since(began) < verified.elapsed_ms_since(began)


class TestDecoder:
    """The same with a real decoder, whose draft may differ from its target in last bits, and whose target may not."""

    @pytest.mark.parametrize("loop", LOOPS)
    @pytest.mark.parametrize("name", ["greedy", "sampled"])
    async def test_a_real_decoder(self, name: str, loop: str) -> None:
        target, draft = decoder(), decoder()
        request = request_of(tuple(range(20)), 24, **OPTIONS[name])
        plain = await decode(target, request, capacity=128)
        gpu = FakeGpu(2)
        output = await decode(
            target, request, [model_proposer(draft, 4, capacity=128)], capacity=128, **gpu.rig_options(**LOOPS[loop])
        )
        assert output.ids == plain.ids
        assert gpu.num_copies == len(output.reports)
        assert output.num_accepted >= 0.9 * output.num_proposed > 0

    def test_lanes_of_a_decoder_can_be_counted_in(self) -> None:
        stream = FakeGpu().stream("all")
        lane = Lane("draft", decoder(), stream, capacity=64)
        assert DeviceResidency().target_side(lane, max_gamma=2, num_slots=2).learns_late
        lane.feed([1, 2, 3], num_logits=1)
        lane.read_at(torch.tensor([4, 5]), torch.tensor([3, 4]), key_length=5, num_logits=1)
        assert lane.num_held == 3
        lane.count_in([4, 5])
        after = lane.feed([6], num_logits=1)
        lane.roll_back(0)
        assert torch.allclose(after, lane.feed([1, 2, 3, 4, 5, 6], num_logits=1), atol=1e-5)
