"""Streams that are late at random while memory is made and dropped: the tokens of one stream that nothing disturbs.

Owns the disturbance. A missing edge between two streams, or memory that one stream gives back while another still reads
it, shows here as another token, or as a number that is none.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from profiling.gpu_checks.bench import DraftKind, GpuBench
from profiling.gpu_checks.check import Budget, Finding
from profiling.gpu_checks.equality import PLANS, request_of
from profiling.gpu_checks.rig import LoopKind, LoopPlan, WrappedStream, decode
from profiling.gpu_checks.text_equality import explain_difference
from scheduler import CudaStream

_SINGLE = LoopPlan(kind=LoopKind.SEQUENTIAL, gamma=4, one_stream=True)
_NUM_REQUESTS = 8
_MOST_FAULTS = 5


class Disturbance:
    """Sleeps and dropped memory, in an order drawn from a seed."""

    def __init__(self, bench: GpuBench, seed: int) -> None:
        """Begin a run."""
        self._bench = bench
        self._draw = random.Random(seed)
        # In some runs one lane is always the late one.
        self._patience = {"target": self._draw.choice((0.0, 0.3, 1.0)), "draft": self._draw.choice((0.0, 0.3, 1.0))}

    def wrap(self, stream: CudaStream) -> WrappedStream:
        """The stream with the disturbance before and behind each launch."""
        patience = self._patience[stream.name]

        @contextmanager
        def around(label: str) -> Iterator[None]:
            self._sleep(patience)
            self._churn()
            yield
            self._churn()

        return WrappedStream(stream, around)

    def _sleep(self, patience: float) -> None:
        if self._draw.random() < patience:
            longest_ms = self._bench.sizes.churn_sleep_us / 1e3
            self._bench.driver.sleep(self._bench.cycles(self._draw.random() * longest_ms))

    def _churn(self) -> None:
        """Fill memory with NaN and give it back at once: whoever still reads it gets NaN."""
        num_floats = self._draw.randint(1, self._bench.sizes.churn_bytes // 4)
        torch.full((num_floats,), float("nan"), device=self._bench.device)
        # Sizes of which the rounds' own small tensors are.
        torch.full((self._draw.randint(1, 2048),), float("nan"), device=self._bench.device)


async def check_churn(bench: GpuBench, budget: Budget) -> Finding:
    """Disturbed runs of every plan with two streams, against undisturbed ones on one stream."""
    plans = [plan for plan in PLANS if not plan.one_stream]
    pair = bench.small_pair()
    twins = bench.small_pair(DraftKind.TWIN)
    requests = [
        request_of(bench, seed, max_tokens=bench.sizes.num_churn_tokens) for seed in range(100, 100 + _NUM_REQUESTS)
    ]
    single = [(await decode(bench, pair.target, pair.draft, _SINGLE, request)).token_ids for request in requests]
    faults: list[str] = []
    num_runs = num_ties = 0
    for run in budget.spend(range(bench.sizes.num_churn_runs), "runs"):
        request, wanted_ids = requests[run % _NUM_REQUESTS], single[run % _NUM_REQUESTS]
        plan = plans[run % len(plans)]
        draft = (twins if run // len(plans) % 2 else pair).draft
        output = await decode(bench, pair.target, draft, plan, request, wrap=Disturbance(bench, run).wrap)
        num_runs += 1
        fault, is_tie = explain_difference(pair.target, request, wanted_ids, output.token_ids)
        num_ties += is_tie
        if fault is not None:
            faults.append(f"run {run}, {plan}: {fault}")
            if len(faults) == _MOST_FAULTS:
                break
    return Finding(
        summary=f"{num_runs - len(faults)} of {num_runs} disturbed runs equal the undisturbed one"
        + (f", {num_ties} of them up to a tie" if num_ties else ""),
        figures={"num_runs": num_runs, "num_ties": num_ties},
        faults=tuple(faults),
    )
