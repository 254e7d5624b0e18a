"""Decoding loops on streams of the device under test, whose rounds stay on it.

Owns the building of a loop from models and a plan, and streams whose launches are wrapped. Knows nothing of checks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from types import TracebackType
from typing import Self, TypeVar

from models import CausalModel
from profiling.gpu_checks.bench import GpuBench
from scheduler import (
    CopyDriver,
    CudaEvent,
    CudaStream,
    DecodeRequest,
    DeviceResidency,
    Event,
    FixedGamma,
    Generation,
    Lane,
    Launch,
    ModelProposer,
    PipelinedLoop,
    RoundReport,
    SequentialLoop,
)

Result = TypeVar("Result")
Around = Callable[[str], AbstractContextManager[object]]
"""What to do around the work of a launch with this label, inside of the launch."""


class LoopKind(StrEnum):
    """Which loop."""

    PLAIN = "plain"
    SEQUENTIAL = "sequential"
    PIPELINED = "pipelined"


@dataclass(frozen=True, kw_only=True)
class LoopPlan:
    """A loop and its settings."""

    kind: LoopKind
    gamma: int = 0
    lead: int = 0
    num_awaited: int | None = None
    one_stream: bool = False
    """Whether a sequential loop's lanes share their stream."""

    def __str__(self) -> str:
        if self.kind is LoopKind.PLAIN:
            return "plain"
        parts = [f"{self.kind}, gamma {self.gamma}"]
        if self.kind is LoopKind.PIPELINED:
            parts.append(f"lead {self.lead}")
        if self.num_awaited is not None:
            parts.append(f"awaits {self.num_awaited}")
        if self.one_stream:
            parts.append("one stream")
        return ", ".join(parts)


PLAIN = LoopPlan(kind=LoopKind.PLAIN)


@dataclass(frozen=True, kw_only=True)
class Output:
    """What a request came to."""

    token_ids: tuple[int, ...]
    reports: tuple[RoundReport, ...]
    times_s: tuple[float, ...]
    """When each report came, by `time.perf_counter`."""

    @property
    def num_proposed(self) -> int:
        """Tokens of all verified blocks."""
        return sum(report.num_proposed for report in self.reports)

    @property
    def num_accepted(self) -> int:
        """Those that stood."""
        return sum(report.num_accepted for report in self.reports)

    @property
    def num_hits(self) -> int:
        """Rounds whose guess was right."""
        return sum(report.hit is True for report in self.reports)

    @property
    def tokens_per_s(self) -> float:
        """Behind the first report, which the prompt belongs to."""
        num_timed = len(self.token_ids) - len(self.reports[0].token_ids)
        return num_timed / max(self.times_s[-1] - self.times_s[0], 1e-9)


class WrappedStream:
    """A stream each of whose launches has something around its work."""

    def __init__(self, stream: CudaStream, around: Around) -> None:
        """Wrap `stream`."""
        self._stream = stream
        self._around = around

    @property
    def name(self) -> str:
        """The wrapped stream's."""
        return self._stream.name

    def launch(
        self,
        work: Callable[[], Result],
        *,
        reads: Iterable[str] = (),
        writes: Iterable[str] = (),
        label: str = "",
        generation: Generation | None = None,
    ) -> Launch[Result]:
        """Launch the work with what goes around it."""

        def wrapped() -> Result:
            with self._around(label):
                return work()

        return self._stream.launch(wrapped, reads=reads, writes=writes, label=label, generation=generation)

    def record(self) -> CudaEvent:
        """An event of the wrapped stream."""
        return self._stream.record()

    def wait(self, event: Event) -> None:
        """Have the wrapped stream wait."""
        self._stream.wait(event)

    def close(self) -> None:
        """Close the wrapped stream."""
        self._stream.close()


NewStream = Callable[[CudaStream], CudaStream | WrappedStream]


class LoopRig:
    """A loop with its lanes and streams."""

    def __init__(
        self,
        bench: GpuBench,
        target: CausalModel,
        draft: CausalModel | None,
        plan: LoopPlan,
        *,
        capacity: int,
        wrap: NewStream = lambda stream: stream,
        copies: CopyDriver | None = None,
    ) -> None:
        """Make streams, caches and slots.

        Args:
            bench: the device.
            target: the model whose tokens count.
            draft: takes positions as a tensor; None where the plan has no draft.
            plan: which loop.
            capacity: most tokens of a request, with its prompt.
            wrap: what is done to each stream.
            copies: how verdicts get to the host; None has the bench's driver do it.
        """
        self._bench = bench
        self.target_stream = wrap(bench.stream("target"))
        self.draft_stream = (
            self.target_stream if plan.kind is LoopKind.PLAIN or plan.one_stream else wrap(bench.stream("draft"))
        )
        lane = Lane("target", target, self.target_stream, capacity=capacity)
        proposers = []
        if draft is not None and plan.kind is not LoopKind.PLAIN:
            draft_lane = Lane("draft", draft, self.draft_stream, capacity=capacity)
            proposers.append(ModelProposer(draft_lane, FixedGamma(plan.gamma)))
        residency = DeviceResidency(copies or bench.driver)
        self.loop: SequentialLoop | PipelinedLoop
        if plan.kind is LoopKind.PIPELINED:
            self.loop = PipelinedLoop(
                lane,
                self.draft_stream,
                proposers,
                max_gamma=plan.gamma,
                max_lead=plan.lead,
                num_awaited=plan.num_awaited,
                residency=residency,
            )
        else:
            self.loop = SequentialLoop(lane, self.draft_stream, proposers, max_gamma=plan.gamma, residency=residency)
        # Caches and slots were filled on the default stream, behind which no other one waits.
        bench.gauge.synchronize()

    async def run(self, request: DecodeRequest, *, num_reports: int | None = None) -> Output:
        """Decode, to the end or until so many rounds were reported."""
        await self.loop.prefill(request)
        reports: list[RoundReport] = []
        times_s: list[float] = []
        rounds = self.loop.rounds(request)
        async for report in rounds:
            times_s.append(time.perf_counter())
            reports.append(report)
            if len(reports) == num_reports:
                break
        await rounds.aclose()
        token_ids = tuple(token_id for report in reports for token_id in report.token_ids)
        return Output(token_ids=token_ids, reports=tuple(reports), times_s=tuple(times_s))

    async def idle(self) -> None:
        """Wait until both streams have done all they were given."""
        for stream in (self.draft_stream, self.target_stream, self.draft_stream):
            await stream.record()

    def close(self) -> None:
        """Let the streams finish."""
        self.draft_stream.close()
        self.target_stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


async def decode(
    bench: GpuBench,
    target: CausalModel,
    draft: CausalModel | None,
    plan: LoopPlan,
    request: DecodeRequest,
    *,
    wrap: NewStream = lambda stream: stream,
    copies: CopyDriver | None = None,
) -> Output:
    """One request on a rig of its own."""
    capacity = len(request.prompt_ids) + request.max_tokens + 1
    with LoopRig(bench, target, draft, plan, capacity=capacity, wrap=wrap, copies=copies) as rig:
        output = await rig.run(request)
        await rig.idle()
        return output
