"""A running request as its reader sees it.

Owns the task that drives the request and the bounded buffer between it and the reader. Knows nothing of how chunks
are made.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from types import TracebackType
from typing import Self

from runtime.result import Chunk, GenerationResult

BUFFERED_CHUNKS = 64
"""Chunks, one a round, that wait for a slow reader; then decoding waits for it."""


class TokenStream:
    """Chunks of one request, in order, each once.

        async with runtime.stream(prompt) as chunks:
            async for chunk in chunks:
                print(chunk.text, end="")

    Leaving the block, by whatever way, stops the request within one round.

    A reader may be slow: up to `BUFFERED_CHUNKS` chunks are kept for it. When they are, the request pauses, as soon as
    the round in flight has ended: nothing is launched any more, no worker waits, and the other requests wait for
    their turn, until the reader takes a chunk or leaves.
    """

    def __init__(self, source: AsyncGenerator[Chunk, None]) -> None:
        self._source = source
        self._buffer: deque[Chunk] = deque()
        self._has_news = asyncio.Event()
        self._has_space = asyncio.Event()
        self._finished = False
        self._task: asyncio.Task[None] | None = None
        self._received: list[Chunk] = []

    async def __aenter__(self) -> Self:
        if self._task is not None:
            raise RuntimeError("a stream can be entered once; call runtime.stream again")
        self._task = asyncio.create_task(self._drive(), name="slipstream-request")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Chunk:
        if self._task is None:
            raise RuntimeError("enter the stream first: async with runtime.stream(...) as chunks")
        while not self._buffer:
            if self._finished:
                await self._raise_failure()
                raise StopAsyncIteration
            self._has_news.clear()
            await self._has_news.wait()
        chunk = self._buffer.popleft()
        self._has_space.set()
        self._received.append(chunk)
        return chunk

    @property
    def text(self) -> str:
        """What was read so far."""
        return "".join(chunk.text for chunk in self._received)

    @property
    def complete(self) -> bool:
        """Whether the last chunk was read."""
        return bool(self._received) and self._received[-1].finish_reason is not None

    @property
    def result(self) -> GenerationResult:
        """The whole output, once the last chunk was read.

        Raises:
            ValueError: before that.
        """
        return GenerationResult.from_chunks(self._received)

    async def aclose(self) -> None:
        """Stop the request if it still runs; idempotent."""
        self._buffer.clear()
        if self._task is None:
            self._finished = True
            await self._source.aclose()
            return
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        # A task that is cancelled before its first step never comes to the end of `_drive`.
        self._finished = True
        self._has_news.set()

    async def _raise_failure(self) -> None:
        if self._task is not None and not self._task.cancelled():
            await self._task

    async def _drive(self) -> None:
        try:
            async for chunk in self._source:
                while len(self._buffer) >= BUFFERED_CHUNKS:
                    self._has_space.clear()
                    await self._has_space.wait()
                self._buffer.append(chunk)
                self._has_news.set()
        finally:
            await self._source.aclose()
            self._finished = True
            self._has_news.set()
