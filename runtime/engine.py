"""What a runtime runs on: the target's lane, the draft sources, and a loop over them for each mode.

Owns the loops and the end of the streams. Knows nothing of requests or text, nor of where its parts came from.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field

from models import MemoryEstimate, Tokenizer, WeightKind
from runtime.load_settings import LoadSettings, Mode
from runtime.overlap_watch import OverlapWatch
from scheduler import (
    Lane,
    Occupancy,
    OccupancyProbe,
    PipelinedLoop,
    Proposer,
    Recording,
    Residency,
    SequentialLoop,
    SpanRecorder,
    Stream,
    StreamClosedError,
)

DecodingLoop = SequentialLoop | PipelinedLoop


@dataclass(frozen=True, kw_only=True)
class Engine:
    """A loaded pair, ready for requests."""

    tokenizer: Tokenizer
    target: Lane
    draft_stream: Stream
    """Where the draft sources run: the target's own stream, or one beside it."""
    proposers: tuple[Proposer, ...]
    """The draft sources; of two that promise as much, the earlier one is heard."""
    model_sources: frozenset[int]
    """Those that are models; the others' proposals cost nothing, so a low acceptance rate is no fault."""
    weights: WeightKind
    num_threads: int
    """Intra-op threads of model work, on all workers together."""
    num_draft_threads: int
    """Those of a draft model while it works beside its target; 0 where it never does."""
    loops: Mapping[Mode, DecodingLoop]
    """For each mode that requests may ask for, all over the same lanes."""
    spans: SpanRecorder = field(default_factory=SpanRecorder)
    """Records launches and rounds of all loops, when asked to."""
    memory_estimate: MemoryEstimate | None = None
    """What the pair was expected to take when it was loaded; None where transformers runs the target."""
    draft_timed: bool = True
    """Whether rounds tell how long drafting took; nobody can where it is only enqueued."""
    probe: OccupancyProbe | None = None
    """Watches the GPU that it runs on; None on a CPU."""
    overlap_watch: OverlapWatch | None = None
    """Asks the probe whether anything may run ahead; None on a CPU."""

    @property
    def draft_names(self) -> tuple[str, ...]:
        """Names of the draft sources; of two that promise as much, the earlier one is heard."""
        return tuple(proposer.name for proposer in self.proposers)

    @property
    def modes(self) -> tuple[Mode, ...]:
        """What requests may ask for."""
        return tuple(self.loops)

    def explain(self, mode: Mode) -> str:
        """What the last request in this mode was decided to do, and why, in words."""
        if mode is Mode.PLAIN:
            return "plain decoding was asked for"
        if not self.proposers:
            return "plain decoding: there is no draft"
        reasons = "; ".join(f"{proposer.name}: {proposer.explain()}" for proposer in self.proposers)
        heard = self.loops[mode].explain() if mode in self.loops else ""
        reasons += f"; {heard}" if heard else ""
        return reasons if mode is Mode.AUTO else f"{mode} decoding was asked for; {reasons}"

    def loop(self, mode: Mode) -> DecodingLoop:
        """The loop of one mode.

        Raises:
            KeyError: if the engine was not built for that mode.
        """
        return self.loops[mode]

    @contextmanager
    def watched_work(self) -> Generator[Callable[[], None], None, None]:
        """A request is decoded: who else uses the device decides whether anything may run ahead meanwhile.

        What it yields looks again, where that is due; to be called every round.
        """
        if self.overlap_watch is None:
            yield lambda: None
            return
        with self.overlap_watch.over_request() as look:
            yield look

    def occupancy(self) -> Occupancy:
        """How full the device is; never blocks."""
        if self.probe is None:
            return Occupancy.unknown("it runs on the CPU", taken_at_s=time.monotonic())
        return self.probe.latest()

    async def stop_recording(self) -> Recording:
        """What the lanes did since their recording began, once both are through with it."""
        # A stream that was closed meanwhile has nothing left to do.
        with suppress(StreamClosedError):
            for stream in (self.target.stream, self.draft_stream):
                # Takes up what a failed launch left behind, of which whoever awaited it has heard.
                stream.record()
                await stream.record()
        return self.spans.stop()

    async def close(self) -> None:
        """End the streams' threads, off the event loop."""
        try:
            await close_streams(self.target.stream, self.draft_stream)
        finally:
            if self.probe is not None:
                await asyncio.to_thread(self.probe.close)


async def close_streams(*streams: Stream) -> None:
    """End streams one after the other, off the event loop; the same one may stand for both lanes."""

    def close() -> None:
        with ExitStack() as stack:
            for stream in reversed(streams):
                stack.callback(stream.close)

    await asyncio.to_thread(close)


def decoding_loops(
    settings: LoadSettings,
    target: Lane,
    draft_stream: Stream,
    proposers: Sequence[Proposer],
    *,
    residency: Residency | None = None,
    spans: SpanRecorder | None = None,
) -> dict[Mode, DecodingLoop]:
    """A loop for each mode that a runtime of these settings serves.

    They share lanes and sources, so whatever the mode of a request, the same kernels run at the same widths.
    """
    loops: dict[Mode, DecodingLoop] = {}
    two_streams = draft_stream is not target.stream
    for mode in settings.mode.served:
        match mode:
            case Mode.PLAIN:
                # No draft is asked, and no room is kept for what it would propose.
                loops[mode] = SequentialLoop(
                    target, target.stream, max_gamma=0, residency=residency, spans=spans, name="plain"
                )
            case Mode.PIPELINED | Mode.AUTO if two_streams:
                loops[mode] = PipelinedLoop(
                    target,
                    draft_stream,
                    proposers,
                    max_gamma=settings.gamma_limit,
                    max_lead=settings.max_lead,
                    # The lanes may take turns where that is the controller's choice.
                    min_lead=0 if mode is Mode.AUTO else None,
                    num_awaited=settings.num_awaited,
                    warmup_tokens=settings.warmup_tokens,
                    residency=residency,
                    spans=spans,
                    name=mode.value,
                )
            case Mode.SEQUENTIAL | Mode.AUTO:
                loops[mode] = SequentialLoop(
                    target,
                    draft_stream,
                    proposers,
                    max_gamma=settings.gamma_limit,
                    warmup_tokens=settings.warmup_tokens,
                    residency=residency,
                    spans=spans,
                    name=mode.value,
                )
    return loops
