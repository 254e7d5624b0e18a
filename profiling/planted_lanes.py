"""A target and its planted draft on streams, and one request on them, timed.

Owns the two arrangements of threads, the systems over them and the figures of one run. Knows nothing of which runs are
made, nor of text.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

from models import Decoder
from profiling.planted_draft import PlantedDraft
from profiling.trace.lane_times import BusyShares, busy_shares
from profiling.trace.traced_round import TARGET, Stretch, of_lane
from scheduler import (
    DecodeRequest,
    FixedGamma,
    Lane,
    LaunchKind,
    ModelProposer,
    PipelinedLoop,
    Recording,
    RoundReport,
    SamplingSettings,
    SequentialLoop,
    SpanRecorder,
    ThreadStream,
)


class PlantedSystem(StrEnum):
    """What is compared."""

    PLAIN = "plain"
    SEQUENTIAL = "sequential"
    SEQUENTIAL_SPLIT = "sequential, split"
    """On the pipelined system's threads: what overlap alone brings is the ratio to this one."""
    PIPELINED = "pipelined"

    @property
    def is_split(self) -> bool:
        """Whether each lane has threads of its own, instead of all threads for the lane that runs."""
        return self in (PlantedSystem.SEQUENTIAL_SPLIT, PlantedSystem.PIPELINED)


@dataclass(frozen=True, kw_only=True)
class Choice:
    """How far a system drafts."""

    gamma: int = 0
    """Tokens of a block; 0 is plain decoding."""
    max_lead: int = 0
    """Most tokens drafted past a block; 0 where the system is sequential."""


@dataclass(frozen=True, kw_only=True)
class PlantedPrompt:
    """A prompt, and what the draft shall say after it."""

    token_ids: tuple[int, ...]
    planted_ids: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PlantedRun:
    """One system on one prompt. Times and shares are those between the first round's report and the last one's."""

    token_ids: tuple[int, ...]
    tokens_per_s: float
    shares: BusyShares
    num_rounds: int
    num_proposed: int
    num_accepted: int
    num_discarded: int
    num_judged: int
    """Planted tokens, guesses among them, that were compared with the target's own token."""
    num_right: int
    """Those that were equal to it."""
    num_guessed: int
    """Rounds that had a guess; it is lost where its block is not accepted as a whole."""
    num_hits: int
    draft_step_ms: float | None
    """Median of the draft's calls for a token."""
    verify_ms: float
    """Median of the target's launches, the prompt's left out."""
    verify_width: float
    """Mean number of tokens they took."""


class PlantedLanes:
    """A target and a planted draft, each on its lane; while nothing runs here, the workers sleep."""

    def __init__(
        self,
        target: Decoder,
        draft: Decoder,
        *,
        target_threads: int,
        draft_threads: int | None,
        capacity: int,
    ) -> None:
        """Start the workers and find the widths that hold on them.

        Args:
            target: the model whose tokens count; its weights are shared, not its widths.
            draft: a decoder for the draft's cost.
            target_threads: intra-op threads of the target's worker.
            draft_threads: those of the draft's own worker; None has one worker serve both lanes.
            capacity: most tokens of a request, with its prompt.
        """
        self._workers = ExitStack()
        self._target_stream = self._worker("target", target_threads)
        self._draft_stream = self._target_stream if draft_threads is None else self._worker("draft", draft_threads)
        try:
            own_target, own_draft = _probed(target, self._target_stream), _probed(draft, self._draft_stream)
        except BaseException:
            self.close()
            raise
        self._planted = PlantedDraft(own_draft, vocab_size=own_target.vocab_size)
        self._target = Lane("target", own_target, self._target_stream, capacity=capacity)
        self._draft = Lane("draft", self._planted, self._draft_stream, capacity=capacity)

    def _worker(self, name: str, num_threads: int) -> ThreadStream:
        worker = ThreadStream(name, num_threads=num_threads)
        self._workers.callback(worker.close)
        return worker

    def close(self) -> None:
        """End the workers."""
        self._workers.close()

    async def run(self, system: PlantedSystem, choice: Choice, prompt: PlantedPrompt, *, num_tokens: int) -> PlantedRun:
        """Decode greedily from empty caches.

        Raises:
            ValueError: if the output came in one round, so that there is no time to measure.
        """
        await self._reset(prompt)
        spans = SpanRecorder()
        loop = self._loop(system, choice, spans)
        request = DecodeRequest(
            prompt_ids=prompt.token_ids, settings=SamplingSettings(temperature=0.0), max_tokens=num_tokens
        )
        spans.start()
        await loop.prefill(request)
        reports: list[RoundReport] = []
        times_ms: list[float] = []
        async for report in loop.rounds(request):
            times_ms.append(time.perf_counter() * 1e3)
            reports.append(report)
        await self._drain()
        if len(reports) < 2:
            raise ValueError(f"num_tokens {num_tokens} fit into one round of gamma {choice.gamma}; ask for more")
        return self._measured(reports, times_ms, spans.stop())

    def _loop(self, system: PlantedSystem, choice: Choice, spans: SpanRecorder) -> SequentialLoop | PipelinedLoop:
        if system is PlantedSystem.PLAIN:
            return SequentialLoop(self._target, self._target_stream, max_gamma=0, spans=spans)
        proposer = ModelProposer(self._draft, FixedGamma(choice.gamma))
        if system is PlantedSystem.PIPELINED:
            return PipelinedLoop(
                self._target,
                self._draft_stream,
                [proposer],
                max_gamma=choice.gamma,
                max_lead=choice.max_lead,
                spans=spans,
            )
        return SequentialLoop(self._target, self._draft_stream, [proposer], max_gamma=choice.gamma, spans=spans)

    async def _reset(self, prompt: PlantedPrompt) -> None:
        """Forget the last request on both lanes, and plant the next."""
        for lane in (self._target, self._draft):
            lane.stream.launch(partial(lane.roll_back, 0), writes=(lane.cache_buffer,), label="forget")
        await self._drain()
        self._planted.plant(prompt.planted_ids, first_position=len(prompt.token_ids))

    async def _drain(self) -> None:
        await self._draft_stream.record()
        await self._target_stream.record()

    def _measured(self, reports: Sequence[RoundReport], times_ms: Sequence[float], recording: Recording) -> PlantedRun:
        # Of the same clock as the recording.
        stretch = Stretch(start_ms=times_ms[0], end_ms=times_ms[-1])
        token_ids = tuple(token_id for report in reports for token_id in report.token_ids)
        num_timed = len(token_ids) - len(reports[0].token_ids)
        num_judged, num_right = judged(reports)
        step_times_ms = self._planted.step_times_ms
        # The first round takes the prompt along.
        verify_ms = [
            launch.duration_ms for launch in of_lane(recording.launches, TARGET) if launch.label == LaunchKind.VERIFY
        ]
        return PlantedRun(
            token_ids=token_ids,
            tokens_per_s=num_timed / stretch.span_ms * 1e3,
            shares=busy_shares(recording.launches, stretch),
            num_rounds=len(reports),
            num_proposed=sum(report.num_proposed for report in reports),
            num_accepted=sum(report.num_accepted for report in reports),
            num_discarded=sum(report.num_discarded for report in reports),
            num_judged=num_judged,
            num_right=num_right,
            num_guessed=sum(report.hit is not None for report in reports),
            num_hits=sum(report.hit is True for report in reports),
            draft_step_ms=statistics.median(step_times_ms) if step_times_ms else None,
            verify_ms=statistics.median(verify_ms[1:]),
            verify_width=1 + sum(report.num_proposed for report in reports[1:]) / len(reports[1:]),
        )


def judged(reports: Sequence[RoundReport]) -> tuple[int, int]:
    """Tokens compared with the target's own, and those equal to it; behind the first difference nothing is compared."""
    num_right = sum(report.num_accepted + (report.hit is True) for report in reports)
    num_wrong = sum(report.num_accepted < report.num_proposed or report.hit is False for report in reports)
    return num_right + num_wrong, num_right


def _probed(decoder: Decoder, worker: ThreadStream) -> Decoder:
    """The same weights with the widths that agree on that worker's threads."""
    own = decoder.first_layers(decoder.config.num_layers)
    worker.launch(own.probe, label="probe")
    worker.record().synchronize()
    return own
