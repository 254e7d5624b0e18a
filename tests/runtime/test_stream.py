"""Streams as their readers see them: over a source made by hand, then over a runtime."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable

import pytest

from runtime import Chunk, FinishReason, Metrics, Mode, TokenStream
from runtime.token_stream import BUFFERED_CHUNKS
from tests.support.table_runtime import Rig, build_rig, greedy_ids, similar_draft, table_target
from tests.support.watched_model import Gate

PROMPT = [5, 17, 40, 8]


class Source:
    """Chunks of one token each: counts those it was asked for, knows whether it was closed, may fail at one."""

    def __init__(self, num_chunks: int, *, fail_at: int | None = None) -> None:
        self._num_chunks = num_chunks
        self._fail_at = fail_at
        self.num_made = 0
        self.num_closed = 0
        self.chunks = self._chunks()

    async def _chunks(self) -> AsyncGenerator[Chunk, None]:
        try:
            for index in range(self._num_chunks):
                await asyncio.sleep(0)
                if index == self._fail_at:
                    raise ZeroDivisionError(index)
                self.num_made += 1
                last = index == self._num_chunks - 1
                yield Chunk(
                    text=chr(97 + index % 26),
                    token_ids=(index,),
                    finish_reason=FinishReason.LENGTH if last else None,
                    metrics=Metrics(num_output_tokens=self._num_chunks) if last else None,
                )
        finally:
            self.num_closed += 1


@pytest.fixture(autouse=True)
async def no_loose_ends() -> AsyncIterator[None]:
    """Every test ends without a task, and without an exception that nobody took."""
    complaints: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    yield
    gc.collect()
    await asyncio.sleep(0)
    assert complaints == []
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def settled() -> None:
    """Let the driver run as far as it can."""
    for _ in range(4 * BUFFERED_CHUNKS):
        await asyncio.sleep(0)


async def test_every_chunk_comes_once_and_in_order() -> None:
    source = Source(10)
    async with TokenStream(source.chunks) as stream:
        token_ids = [chunk.token_ids[0] async for chunk in stream]
        assert token_ids == list(range(10))
        with pytest.raises(StopAsyncIteration):
            await anext(stream)
    assert stream.result.token_ids == tuple(range(10))
    assert stream.result.text == stream.text == "abcdefghij"
    assert stream.result.finish_reason is FinishReason.LENGTH
    assert source.num_closed == 1


async def test_the_result_waits_for_the_last_chunk() -> None:
    async with TokenStream(Source(3).chunks) as stream:
        await anext(stream)
        await settled()
        assert not stream.complete
        with pytest.raises(ValueError, match="before their request did"):
            _ = stream.result
        async for _ in stream:
            pass
        assert stream.complete


async def test_the_source_runs_ahead_by_the_buffer_and_no_further() -> None:
    source = Source(3 * BUFFERED_CHUNKS)
    async with TokenStream(source.chunks) as stream:
        token_ids = []
        async for chunk in stream:
            token_ids.append(chunk.token_ids[0])
            await settled()
            # Those read, those in the buffer, and the one that waits for room.
            assert source.num_made <= len(token_ids) + BUFFERED_CHUNKS + 1
            if len(token_ids) < BUFFERED_CHUNKS:
                assert source.num_made == len(token_ids) + BUFFERED_CHUNKS + 1, "decoding shall run ahead that far"
    assert token_ids == list(range(3 * BUFFERED_CHUNKS))


async def test_what_came_before_a_failure_is_read_first() -> None:
    source = Source(10, fail_at=3)
    async with TokenStream(source.chunks) as stream:
        await settled()
        assert [(await anext(stream)).token_ids[0] for _ in range(3)] == [0, 1, 2]
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                await anext(stream)
    assert source.num_closed == 1


async def test_a_failure_wakes_a_reader_that_waits() -> None:
    async with TokenStream(Source(10, fail_at=0).chunks) as stream:
        with pytest.raises(ZeroDivisionError):
            await asyncio.wait_for(anext(stream), 30)


async def test_a_failure_that_nobody_reads_is_dropped_with_the_stream() -> None:
    source = Source(10, fail_at=3)
    async with TokenStream(source.chunks) as stream:
        await anext(stream)
        await settled()
    assert source.num_closed == 1


async def leave_by_break(stream: TokenStream) -> None:
    async with stream:
        async for _ in stream:
            break


async def leave_by_closing(stream: TokenStream) -> None:
    async with stream:
        await anext(stream)
        await stream.aclose()
        await stream.aclose()


async def leave_by_error(stream: TokenStream) -> None:
    async def read_one_and_fail() -> None:
        async with stream:
            await anext(stream)
            raise KeyError

    with pytest.raises(KeyError):
        await read_one_and_fail()


async def read_one_and_sleep(stream: TokenStream) -> None:
    async with stream:
        await anext(stream)
        await asyncio.Event().wait()


async def leave_by_cancel(stream: TokenStream) -> None:
    reader = asyncio.create_task(read_one_and_sleep(stream))
    await settled()
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader


async def leave_by_time_out(stream: TokenStream) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(read_one_and_sleep(stream), 0.05)


WAYS_OUT = pytest.mark.parametrize(
    "leave", [leave_by_break, leave_by_closing, leave_by_error, leave_by_cancel, leave_by_time_out]
)


@WAYS_OUT
async def test_every_way_out_ends_the_source(leave: Callable[[TokenStream], Awaitable[None]]) -> None:
    source = Source(10 * BUFFERED_CHUNKS)
    stream = TokenStream(source.chunks)
    await leave(stream)
    assert source.num_closed == 1
    assert source.num_made < 3 * BUFFERED_CHUNKS
    with pytest.raises(StopAsyncIteration):
        await asyncio.wait_for(anext(stream), 30)
    assert source.num_made < 3 * BUFFERED_CHUNKS


async def test_left_before_the_first_step() -> None:
    """The driving task is then cancelled before it has begun."""
    source = Source(10)
    async with TokenStream(source.chunks) as stream:
        pass
    with pytest.raises(StopAsyncIteration):
        await asyncio.wait_for(anext(stream), 30)
    assert source.num_made == 0


async def test_closing_wakes_a_reader_in_another_task() -> None:
    async def never() -> AsyncGenerator[Chunk, None]:
        await asyncio.Event().wait()
        yield Chunk(text="", token_ids=())

    async def read_all(stream: TokenStream) -> int:
        return len([chunk async for chunk in stream])

    async with TokenStream(never()) as stream:
        reader = asyncio.create_task(read_all(stream))
        await settled()
        await stream.aclose()
        assert await asyncio.wait_for(reader, 30) == 0


async def test_a_stream_is_entered_once_and_read_only_inside() -> None:
    stream = TokenStream(Source(3).chunks)
    with pytest.raises(RuntimeError, match="async with runtime"):
        await anext(stream)
    async with stream:
        with pytest.raises(RuntimeError, match=r"call runtime\.stream again"):
            await stream.__aenter__()


async def test_a_stream_that_is_never_entered_costs_nothing() -> None:
    source = Source(3)
    TokenStream(source.chunks)
    gc.collect()
    closed = Source(3)
    stream = TokenStream(closed.chunks)
    await stream.aclose()
    assert (source.num_made, closed.num_made) == (0, 0)


@pytest.fixture
async def rig(mode: Mode) -> AsyncIterator[Rig]:
    target = table_target()
    made = build_rig(target, similar_draft(target), mode=mode)
    async with made.runtime:
        yield made


@WAYS_OUT
async def test_every_way_out_stops_the_models_within_a_round(
    rig: Rig, leave: Callable[[TokenStream], Awaitable[None]]
) -> None:
    await leave(rig.runtime.stream(PROMPT, max_tokens=450, ignore_eos=True))
    before = rig.num_calls
    await rig.drained()
    # Four draft steps and one verification, which stand on the worker's queue when the reader leaves; pipelined, the
    # steps are skipped but for the one under way.
    assert rig.num_calls - before <= 5
    stopped = rig.num_calls
    await settled()
    await rig.drained()
    assert rig.num_calls == stopped
    result = await asyncio.wait_for(rig.runtime.generate(PROMPT, max_tokens=20, ignore_eos=True), 30)
    assert result.token_ids == greedy_ids(table_target(), PROMPT, 20)


async def test_leaving_does_not_wait_for_a_model_that_is_busy(rig: Rig) -> None:
    gate = Gate(rig.target, call=2)
    async with rig.runtime.stream(PROMPT, max_tokens=100, ignore_eos=True) as chunks:
        await anext(chunks)
        await asyncio.to_thread(gate.wait_reached)
    assert not rig.stream.record().done()
    gate.open()
    result = await rig.runtime.generate(PROMPT, max_tokens=20, ignore_eos=True)
    assert result.token_ids == greedy_ids(table_target(), PROMPT, 20)


async def test_a_full_buffer_pauses_the_models(mode: Mode) -> None:
    rig = build_rig(table_target(), mode=mode)
    num_tokens = 3 * BUFFERED_CHUNKS
    # Of what was read, of the buffer, of the chunk that waits for room, and pipelined, of the round behind it.
    num_rounds = 1 + BUFFERED_CHUNKS + 1 + (mode is Mode.PIPELINED)
    async with rig.runtime:
        async with rig.runtime.stream(PROMPT, max_tokens=num_tokens, ignore_eos=True) as chunks:
            received = [*(await anext(chunks)).token_ids]
            async with asyncio.timeout(60):
                while rig.num_calls < num_rounds:  # noqa: ASYNC110 - another thread counts
                    await asyncio.sleep(0.001)
            for _ in range(3):
                await settled()
                await rig.drained()
            assert rig.num_calls == num_rounds
            async for chunk in chunks:
                received += chunk.token_ids
        assert tuple(received) == greedy_ids(table_target(), PROMPT, num_tokens)


@pytest.mark.parametrize("leaves", [False, True])
async def test_a_reader_that_stops_reading_stalls_no_lane(mode: Mode, leaves: bool) -> None:
    """With a full buffer both lanes come to rest, none waiting for the other, and go on when the reader does."""
    target = table_target()
    rig = build_rig(target, similar_draft(target, share=0.6), mode=mode, gamma=2)
    num_tokens = 450
    async with rig.runtime, asyncio.timeout(60):
        async with rig.runtime.stream(PROMPT, max_tokens=num_tokens, ignore_eos=True) as chunks:
            received = [*(await anext(chunks)).token_ids]
            following = asyncio.create_task(rig.runtime.generate(PROMPT[:2], max_tokens=20, ignore_eos=True))
            while rig.target.num_calls < 1 + BUFFERED_CHUNKS + 1:  # noqa: ASYNC110 - another thread counts
                await asyncio.sleep(0.001)
            num_calls = []
            for _ in range(8):
                await settled()
                await rig.drained()
                num_calls.append(rig.num_calls)
            assert len(set(num_calls[4:])) == 1, "the rounds in flight have ended, and no other has begun"
            assert not chunks.complete
            assert not following.done()
            async for chunk in chunks:
                if leaves:
                    break
                received += chunk.token_ids
        expected = greedy_ids(target, PROMPT, num_tokens)
        assert tuple(received) == (expected[: len(received)] if leaves else expected)
        assert (await following).token_ids == greedy_ids(target, PROMPT[:2], 20)


async def test_chunks_are_the_rounds_and_metrics_come_last(rig: Rig) -> None:
    async with rig.runtime.stream(PROMPT, max_tokens=40, ignore_eos=True, logprobs=2) as stream:
        chunks = [chunk async for chunk in stream]
    metrics = chunks[-1].metrics
    assert metrics is not None
    assert all(chunk.metrics is None and chunk.finish_reason is None for chunk in chunks[:-1])
    assert len(chunks) == metrics.num_spec_steps + metrics.num_plain_steps
    assert sum(len(chunk.token_ids) for chunk in chunks) == metrics.num_output_tokens == 40
    for chunk in chunks:
        assert tuple(logprob.token_id for logprob in chunk.logprobs) == chunk.token_ids
    assert stream.result.text == "".join(chunk.text for chunk in chunks)
    assert stream.result.metrics is metrics
