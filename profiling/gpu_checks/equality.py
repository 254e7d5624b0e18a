"""Plain, sequential and pipelined decoding give the same tokens, and no launch of a round looks at a value.

Owns the requests and plans that are compared.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from profiling.gpu_checks.bench import DraftKind, GpuBench
from profiling.gpu_checks.check import Budget, Finding
from profiling.gpu_checks.rig import PLAIN, LoopKind, LoopPlan, WrappedStream, decode
from profiling.gpu_checks.text_equality import explain_difference
from scheduler import CopyDriver, CudaStream, DecodeRequest, SamplingSettings
from scheduler.streams.cuda import DriverEvent

PLANS = (
    LoopPlan(kind=LoopKind.SEQUENTIAL, gamma=1),
    LoopPlan(kind=LoopKind.SEQUENTIAL, gamma=4),
    LoopPlan(kind=LoopKind.SEQUENTIAL, gamma=8, one_stream=True),
    LoopPlan(kind=LoopKind.PIPELINED, gamma=2, lead=1),
    LoopPlan(kind=LoopKind.PIPELINED, gamma=4, lead=4),
    LoopPlan(kind=LoopKind.PIPELINED, gamma=6, lead=8, num_awaited=0),
)
_TEMPERATURES = (0.0, 1.0, 0.7)
_MOST_FAULTS = 5
"""One would do; a few may show what they have in common."""
_NUM_GUARDED_TOKENS = 12
_UNGUARDED = frozenset(("resume", "prefill"))
"""Launches that are no part of a round."""


def request_of(bench: GpuBench, seed: int, *, max_tokens: int) -> DecodeRequest:
    """A random prompt of random length; every third request is greedy."""
    draw = random.Random(seed)
    vocab_size = bench.sizes.small_draft.vocab_size
    prompt_ids = tuple(draw.randrange(vocab_size) for _ in range(draw.randint(1, 40)))
    settings = SamplingSettings(temperature=_TEMPERATURES[seed % len(_TEMPERATURES)], seed=seed)
    return DecodeRequest(prompt_ids=prompt_ids, settings=settings, max_tokens=max_tokens)


async def check_equality(bench: GpuBench, budget: Budget) -> Finding:
    """Every plan on every seed, with a draft that is always right, one that often is and one that seldom is."""
    faults: list[str] = []
    num_runs = num_ties = num_proposed = num_accepted = num_hits = 0
    twin_proposed = twin_accepted = num_seeds = 0
    for seed in budget.spend(range(bench.sizes.num_equality_seeds), "seeds"):
        num_seeds += 1
        request = request_of(bench, seed, max_tokens=bench.sizes.num_equality_tokens)
        for kind in DraftKind:
            pair = bench.small_pair(kind)
            plain = await decode(bench, pair.target, None, PLAIN, request)
            for plan in PLANS:
                output = await decode(bench, pair.target, pair.draft, plan, request)
                num_runs += 1
                fault, is_tie = explain_difference(pair.target, request, plain.token_ids, output.token_ids)
                num_ties += is_tie
                if fault is not None:
                    faults.append(f"seed {seed}, {plan}, the draft is {kind}: {fault}")
                num_proposed += output.num_proposed
                num_accepted += output.num_accepted
                num_hits += output.num_hits
                if kind is DraftKind.TWIN and not is_tie:
                    twin_proposed += output.num_proposed
                    twin_accepted += output.num_accepted
        if len(faults) >= _MOST_FAULTS:
            break
    if twin_accepted < 0.9 * twin_proposed or not twin_proposed:
        faults.append(f"of a draft with the target's weights {twin_accepted} of {twin_proposed} tokens were accepted")
    return Finding(
        summary=f"{num_runs - len(faults)} of {num_runs} runs give plain decoding's tokens"
        + (f", {num_ties} of them up to a tie" if num_ties else ""),
        figures={
            "num_seeds": num_seeds,
            "num_runs": num_runs,
            "num_ties": num_ties,
            "num_proposed": num_proposed,
            "num_accepted": num_accepted,
            "num_hits": num_hits,
            "twin_acceptance": twin_accepted / max(1, twin_proposed),
        },
        faults=tuple(faults),
    )


class CountedCopies:
    """A driver's copies to the host, counted."""

    def __init__(self, driver: CopyDriver) -> None:
        """Count from 0."""
        self._driver = driver
        self.num_copies = 0

    def host_buffer(self, num_bytes: int) -> torch.Tensor:
        """The driver's."""
        return self._driver.host_buffer(num_bytes)

    def copy_to_host(self, host: torch.Tensor, source: torch.Tensor) -> DriverEvent:
        """The driver's, counted."""
        self.num_copies += 1
        return self._driver.copy_to_host(host, source)


async def check_host_reads(bench: GpuBench, budget: Budget) -> Finding:
    """Every launch of a round guarded: no read, and exactly one copy a round."""

    @contextmanager
    def around(label: str) -> Iterator[None]:
        if label in _UNGUARDED:
            yield
            return
        with bench.gauge.forbid_host_reads():
            yield

    def wrap(stream: CudaStream) -> WrappedStream:
        return WrappedStream(stream, around)

    faults: list[str] = []
    num_runs = num_rounds = 0
    copies = CountedCopies(bench.driver)
    pair = bench.small_pair()
    for plan in budget.spend((PLAIN, *PLANS), "loops", least=3):
        for seed in range(2):
            request = request_of(bench, seed, max_tokens=_NUM_GUARDED_TOKENS)
            num_runs += 1
            num_before = copies.num_copies
            try:
                output = await decode(bench, pair.target, pair.draft, plan, request, wrap=wrap, copies=copies)
            except RuntimeError as error:
                faults.append(f"{plan}: {error}")
                continue
            num_rounds += len(output.reports)
            if copies.num_copies - num_before != len(output.reports):
                faults.append(f"{plan}: {copies.num_copies - num_before} copies in {len(output.reports)} rounds")
    return Finding(
        summary=f"{num_runs - len(faults)} of {num_runs} guarded runs got by with one copy a round and no host read",
        figures={"num_runs": num_runs, "num_rounds": num_rounds, "num_copies": copies.num_copies},
        faults=tuple(faults),
    )
