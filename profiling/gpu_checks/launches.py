"""The host's part of a round: from a verdict to the next launch, and what each kind of launch takes to enqueue.

Owns the clock that a stream carries for that. Every launch is eager, kernel by kernel from Python: where a launch takes
the host longer than its kernels take the device, the device waits.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from profiling.gpu_checks.bench import GpuBench
from profiling.gpu_checks.check import Budget, Finding
from profiling.gpu_checks.planted_speed import PlantedRuns
from profiling.gpu_checks.rig import PLAIN, LoopKind, LoopPlan, LoopRig, WrappedStream
from profiling.gpu_checks.timing import Spread
from scheduler import CudaEvent, CudaStream, Event, Generation, Launch

Result = TypeVar("Result")


class ClockedStream(WrappedStream):
    """Notes how long launches take the host, and when the device was done with one round and was given the next."""

    def __init__(self, stream: CudaStream) -> None:
        """Clock `stream`, which must have times."""
        super().__init__(stream, self._clocked)
        self.host_ms: dict[str, list[float]] = {}
        self._last_label = ""
        self.rounds: list[tuple[CudaEvent, CudaEvent, CudaEvent]] = []
        """Verdict there, host knows of it, next round is begun to be launched."""
        self._verified: CudaEvent | None = None
        self._noticed: CudaEvent | None = None

    def launch(
        self,
        work: Callable[[], Result],
        *,
        reads: Iterable[str] = (),
        writes: Iterable[str] = (),
        label: str = "",
        generation: Generation | None = None,
    ) -> Launch[Result]:
        """Launch, noting what it is."""
        if label == "confirm" and self._verified is not None:
            self._noticed = super().record()
        elif label != "confirm":
            self._next_round()
        self._last_label = label
        return super().launch(work, reads=reads, writes=writes, label=label, generation=generation)

    def record(self) -> CudaEvent:
        """An event; behind a judgement it is the verdict's."""
        event = super().record()
        if self._last_label == "judge":
            self._verified = event
        self._last_label = ""
        return event

    def wait(self, event: Event) -> None:
        """Have the stream wait; a round may begin with that."""
        self._next_round()
        super().wait(event)

    def _next_round(self) -> None:
        if self._verified is not None and self._noticed is not None:
            self.rounds.append((self._verified, self._noticed, super().record()))
            self._verified = self._noticed = None

    @contextmanager
    def _clocked(self, label: str) -> Iterator[None]:
        started_s = time.perf_counter()
        yield
        self.host_ms.setdefault(label, []).append((time.perf_counter() - started_s) * 1e3)


async def measure_launches(bench: GpuBench, budget: Budget) -> Finding:
    """Plain, sequential and pipelined rounds of the large pair under a clock."""
    sizes = bench.sizes
    acceptance = sizes.acceptances[-1]
    runs = PlantedRuns(bench)
    plans = (
        PLAIN,
        LoopPlan(kind=LoopKind.SEQUENTIAL, gamma=sizes.gamma),
        LoopPlan(kind=LoopKind.PIPELINED, gamma=sizes.gamma, lead=sizes.lead),
    )
    figures: dict[str, object] = {}
    words = []
    for plan in budget.spend(plans, "loops"):
        clocks: list[ClockedStream] = []

        def clocked(stream: CudaStream, clocks: list[ClockedStream] = clocks) -> ClockedStream:
            clocks.append(ClockedStream(stream))
            return clocks[-1]

        with runs.rig(plan, acceptance, wrap=clocked) as rig:
            await _run_warm(runs, rig, clocks, num_tokens=sizes.num_planted_tokens)
        target = clocks[0]
        noticed = Spread.of([noticed.elapsed_ms_since(verified) for verified, noticed, _ in target.rounds])
        launched = Spread.of([begun.elapsed_ms_since(verified) for verified, _, begun in target.rounds])
        host_ms = {
            f"{clock.name}, {label}": dataclasses.asdict(Spread.of(own))
            for clock in clocks
            for label, own in sorted(clock.host_ms.items())
        }
        figures[str(plan)] = {
            "verdict_to_noticed_ms": dataclasses.asdict(noticed),
            "verdict_to_next_launch_ms": dataclasses.asdict(launched),
            "host_ms_of_launches": host_ms,
        }
        verify_ms = Spread.of(target.host_ms["verify"]).median
        words.append(f"{plan.kind} {launched.median:.2f} ms, then {verify_ms:.2f} ms to enqueue a verify")
    return Finding(summary="from verdict to next launch: " + "; ".join(words), figures=figures)


async def _run_warm(runs: PlantedRuns, rig: LoopRig, clocks: list[ClockedStream], *, num_tokens: int) -> None:
    request = runs.request(max_tokens=num_tokens)
    await rig.run(request, num_reports=2)
    await rig.idle()
    for clock in clocks:
        clock.host_ms.clear()
        clock.rounds.clear()
    await rig.run(request)
    await rig.idle()
