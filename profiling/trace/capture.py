"""One request, recorded: what was asked, what the lanes did, and what memory and device did meanwhile.

Owns the order of things around a recording. Knows nothing of traces, nor of who else watches.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from dataclasses import dataclass

from profiling.trace.bandwidth import measure_bandwidth
from profiling.trace.counters import Counter, CounterReadings, reading_counters
from profiling.trace.summary import TraceSummary, summarise
from profiling.trace.traffic import TargetReads
from profiling.trace.virtual_pair import build_virtual_engine
from runtime import Engine, GenerationResult, LoadSettings, Runtime, RuntimeDescription, build_engine
from scheduler import Markers, Recording

_WARM_UP = "Say hello in five languages."
_WARM_UP_TOKENS = 24
"""Enough for some rounds, in which costs are learnt and memory is allocated."""


@dataclass(frozen=True, kw_only=True)
class Capture:
    """A recorded request."""

    recording: Recording
    readings: CounterReadings
    summary: TraceSummary
    result: GenerationResult
    description: RuntimeDescription
    profiled: GenerationResult | None = None
    """The same request once more, under torch's profiler; None where nobody asked for that."""


class TracedPair:
    """A loaded pair whose requests can be recorded."""

    def __init__(self, runtime: Runtime, engine: Engine, *, virtual: bool = False) -> None:
        """Bind a runtime to what it runs on; `TracedPair.load` is the usual way.

        Args:
            runtime: answers the requests.
            engine: what it runs on.
            virtual: whether its streams go by a virtual clock, on which nothing else can be placed.
        """
        self._runtime = runtime
        self._engine = engine
        self._virtual = virtual

    @classmethod
    async def load(cls, settings: LoadSettings, *, contention: float | None = None) -> TracedPair:
        """Load a pair.

        Args:
            settings: what to load.
            contention: how many times longer each lane takes beside the other, on virtual streams; None takes the
                device's own.

        Raises:
            ValueError: if the settings ask for what the device or the model does not have.
            SlipstreamError: if a model cannot be loaded or paired.
        """
        if contention is None:
            engine = await build_engine(settings)
        else:
            engine = await build_virtual_engine(settings, contention=contention)
        return cls(Runtime(engine, settings), engine, virtual=contention is not None)

    async def warm_up(self) -> None:
        """Answer a short prompt, which nobody looks at."""
        await self.answer(_WARM_UP, _WARM_UP_TOKENS)

    async def capture(
        self,
        prompt: str,
        max_tokens: int,
        *,
        markers: Markers | None = None,
        watched: AbstractContextManager[object] | None = None,
    ) -> Capture:
        """Record one request at temperature 0, and sum it up.

        Args:
            prompt: as a user's message where the target has a chat template, else as it is.
            max_tokens: most tokens of the answer.
            markers: who else hears of launches and rounds.
            watched: entered before and left after the recorded request.

        Raises:
            ContextLengthError: if the prompt leaves no room in the context.
        """
        runtime, prompt_ids = self._runtime, self._prompt_ids(prompt)
        async with self._reading_counters() as readings:
            with watched or nullcontext():
                runtime.start_recording(markers)
                try:
                    result = await self._answer(prompt_ids, max_tokens)
                except BaseException as error:
                    await self._abandon_recording(error)
                    raise
                recording = await runtime.stop_recording()
        model = self._engine.target.model
        reads = TargetReads.of(model, num_prompt_tokens=len(prompt_ids))
        bandwidth = await measure_bandwidth(model.device, num_threads=self._engine.num_threads) if reads else None
        return Capture(
            recording=recording,
            readings=readings,
            summary=summarise(recording, reads=reads, bandwidth=bandwidth),
            result=result,
            description=runtime.description,
        )

    async def answer(self, prompt: str, max_tokens: int) -> GenerationResult:
        """The answer to a prompt at temperature 0, without a recording."""
        return await self._answer(self._prompt_ids(prompt), max_tokens)

    async def close(self) -> None:
        """End the runtime's workers."""
        await self._runtime.close()

    async def _answer(self, prompt_ids: list[int], max_tokens: int) -> GenerationResult:
        return await self._runtime.generate(prompt_ids, max_tokens=max_tokens, temperature=0.0)

    async def _abandon_recording(self, error: BaseException) -> None:
        """Stop recording after an error, which is the one that is to be heard of."""
        try:
            await self._runtime.stop_recording()
        except Exception as second:
            error.add_note(f"and the recording could not be ended: {second}")

    def _reading_counters(self) -> AbstractAsyncContextManager[CounterReadings]:
        if self._virtual:
            reason = "the lanes ran by a virtual clock"
            return nullcontext(CounterReadings(unknown=dict.fromkeys(Counter, reason)))
        return reading_counters(lambda: self._runtime.occupancy)

    def _prompt_ids(self, prompt: str) -> list[int]:
        tokenizer = self._runtime.tokenizer
        if tokenizer.has_chat_template:
            return list(tokenizer.encode_chat([{"role": "user", "content": prompt}]))
        return list(tokenizer.encode(prompt))
