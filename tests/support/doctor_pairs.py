"""Pairs of table models for the doctor to examine, healthy ones and such with one fault."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from profiling.doctor.check import Check, CheckResult, Finding
from profiling.doctor.effort import Effort
from profiling.doctor.examination import examine
from profiling.doctor.loaded_pair import LoadedPair, Surroundings
from profiling.doctor.memory_gauge import ReadMemory
from profiling.doctor.other_load import OtherLoad
from profiling.doctor.plan import ALL_CHECKS
from profiling.doctor.step_costs import Clock, StepCosts
from profiling.doctor.trials import Turn
from profiling.prompts import PromptKind
from runtime import FinishReason, GenerationResult, Metrics, Mode, Runtime
from runtime.engine import decoding_loops
from scheduler import Proposer
from tests.support.table_runtime import Rig

LITTLE = Effort(
    num_prompts=1,
    num_drawn_prompts=1,
    max_tokens=20,
    num_memory_tokens=48,
    num_draws=150,
    num_step_runs=2,
    watch_s=0.02,
    idle_s=0.02,
)
IDLE = Surroundings(num_cores=2, others=OtherLoad(num_cores=0.1, reason="planted"))


def pair_of(
    rig: Rig,
    *,
    clock: Clock = time.perf_counter,
    read_memory: ReadMemory | None = None,
    surroundings: Surroundings = IDLE,
    mismatch: str | None = None,
    **engine_changes: Any,
) -> LoadedPair:
    """A rig as the doctor sees it, parts of its engine replaced."""
    engine = dataclasses.replace(rig.engine, **engine_changes)
    return LoadedPair(
        Runtime(engine, rig.runtime.settings),
        engine,
        effort=LITTLE,
        surroundings=surroundings,
        mismatch=mismatch,
        read_memory=read_memory,
        clock=clock,
    )


def with_sources(rig: Rig, *proposers: Proposer) -> LoadedPair:
    """The same target with other draft sources."""
    settings = rig.runtime.settings
    loops = decoding_loops(settings, rig.engine.target, rig.engine.draft_stream, proposers)
    return pair_of(rig, proposers=proposers, loops=loops)


def check_named(name: str) -> Check:
    """One of the doctor's checks."""
    return next(check for check in ALL_CHECKS if check.name == name)


def diagnose(pair: LoadedPair, *names: str) -> list[Finding]:
    """What these checks find, run as the program runs them."""
    results: list[CheckResult] = []

    async def run() -> None:
        try:
            await examine(pair, [check_named(name) for name in names], put=results.append)
        finally:
            await pair.close()

    asyncio.run(run())
    return [result.finding for result in results]


def found(pair: LoadedPair, check: Callable[[LoadedPair], Coroutine[Any, Any, Finding]]) -> Finding:
    """What one check finds that is not among those of the program, or with other arguments."""

    async def run() -> Finding:
        try:
            return await check(pair)
        finally:
            await pair.close()

    return asyncio.run(run())


class KnownPair(LoadedPair):
    """A pair whose answers and costs were measured by hand."""

    known_turns: tuple[Turn, ...] = ()
    known_costs: StepCosts | None = None

    async def trials(self) -> tuple[Turn, ...]:
        return self.known_turns

    async def step_costs(self) -> StepCosts:
        assert self.known_costs is not None
        return self.known_costs


def known_pair(rig: Rig, turns: Sequence[Turn], costs: StepCosts) -> KnownPair:
    """What only times decide is decided on times that are given."""
    pair = KnownPair(rig.runtime, rig.engine, effort=LITTLE, surroundings=IDLE)
    pair.known_turns, pair.known_costs = tuple(turns), costs
    return pair


def turn_of(
    tpot_ms: dict[Mode, float],
    *,
    kind: PromptKind = PromptKind.CHAT,
    again_ms: float | None = None,
    histogram: tuple[int, ...] = (),
    token_ids: dict[Mode, tuple[int, ...]] | None = None,
) -> Turn:
    """One prompt that took so many milliseconds a token in each mode; the draft's blocks were accepted as counted.

    Plain decoding took `again_ms` the second time; None where it ran once.
    """
    num_accepted = sum(accepted * count for accepted, count in enumerate(histogram))
    num_drafted = (len(histogram) - 1) * sum(histogram)
    results = {}
    for mode, one_ms in tpot_ms.items():
        ids = tuple(range(11)) if token_ids is None else token_ids[mode]
        is_drafted = mode is not Mode.PLAIN
        metrics = Metrics(
            num_output_tokens=11,
            ttft_ms=1.0,
            total_ms=1.0 + 10 * one_ms,
            num_spec_steps=sum(histogram) * is_drafted,
            num_draft_tokens=num_drafted * is_drafted,
            num_accepted_draft_tokens=num_accepted * is_drafted,
            acceptance_histogram=histogram if is_drafted else (),
            drafts={"draft": (num_drafted, num_accepted)} if is_drafted and num_drafted else {},
            decision="as was planted" if mode is Mode.AUTO else "",
        )
        results[mode] = GenerationResult(text="", token_ids=ids, finish_reason=FinishReason.LENGTH, metrics=metrics)
    plain_again = None
    if again_ms is not None:
        plain = results[Mode.PLAIN]
        metrics = dataclasses.replace(plain.metrics, total_ms=1.0 + 10 * again_ms)
        plain_again = dataclasses.replace(plain, metrics=metrics)
    return Turn(kind=kind, temperature=0.0, seed=0, results=results, plain_again=plain_again)
