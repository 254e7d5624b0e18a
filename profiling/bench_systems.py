"""The systems of a benchmark: our own modes and the peers, each ready to be asked.

Owns how they are loaded and how one run of each is made. Knows nothing of the order of runs, nor of the report.
Our own modes run in the benchmark's process, as in any program that has a runtime; each system of a peer has a process
of its own, and so has, once, each of our runtimes: to see what memory it takes alone.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from tqdm import tqdm

from models import SlipstreamError, WeightKind
from profiling.bench_options import BenchSettings, DraftChoice
from profiling.bench_run import OWN, PeerRecord, PeerState, Run
from profiling.bench_sources import Assistant
from profiling.peers.label import SystemLabel
from profiling.peers.peer import PeerMode, PeerName, PeerSettings
from profiling.peers.plans import PeerPlan, plan_peers
from profiling.peers.process import PeerLostError, PeerMissingError, PeerProcess, PeerRefusedError
from profiling.prompts import BenchPrompt, PromptKind, prompt_ids
from profiling.ticker import ticking
from runtime import GenerationResult, Mode, Runtime

WARM_UP = BenchPrompt(kind=PromptKind.CHAT, messages=({"role": "user", "content": "Say hello in five languages."},))
_WAKING_TOKENS = 4
_ROOM_TOKENS = 64
"""What a peer's cache has beyond prompt and output: room for proposals that are rejected."""


@dataclass(frozen=True, kw_only=True)
class Turn:
    """What all systems answer before the next is asked."""

    prompt: BenchPrompt
    index: int
    """Of the prompt among those of its kind."""
    temperature: float
    seed: int
    repeat: int = 0
    """Above 0 it was asked before, and is asked again to see how much two runs differ."""


class RunMissingError(Exception):
    """A system gave no time for one prompt; the message is the reason, in words for a table."""


@dataclass(frozen=True, kw_only=True)
class System:
    """Something that can be timed."""

    label: SystemLabel
    run: Callable[[Turn], Awaitable[Run]]
    """Raises PeerLostError where it has to be left out from now on, RunMissingError where only this run is missing."""
    greedy_only: bool = False
    """Whether it is left out where tokens are drawn."""

    @property
    def name(self) -> str:
        """As it stands in tables."""
        return self.label.name


@dataclass(frozen=True, kw_only=True)
class LineUp:
    """Who takes part at one number of threads, and what is said of the peers and of what could not be loaded."""

    systems: list[System] = field(default_factory=list)
    records: list[PeerRecord] = field(default_factory=list)


async def line_up(
    settings: BenchSettings,
    threads: int,
    assistant: Assistant,
    prompts: Sequence[BenchPrompt],
    stack: AsyncExitStack,
) -> LineUp:
    """Load all systems; `stack` closes them.

    Args:
        prompts: all that will be asked.
    """
    lined_up = LineUp()
    encode: Callable[[BenchPrompt], list[int]] | None = None
    for weights in settings.weights:
        for choice in settings.drafts:
            memory_bytes = None
            try:
                # Where the peers run, whatever else there is.
                loaded = await Runtime.load(
                    settings.target, threads=threads, weights=weights, draft=_sources(choice), device="cpu"
                )
            except SlipstreamError as error:
                name = f"{OWN} {weights.value} {choice.suffix}".rstrip()
                lined_up.records.append(_failed(name, threads, error))
                continue
            runtime = await stack.enter_async_context(loaded)
            encode = _encoder(runtime)
            if settings.peers:
                longest = max((encode(prompt) for prompt in prompts), key=len)
                memory_bytes = await _memory_alone(settings, threads, weights, choice, longest, lined_up.records)
            # The modes of one choice run on the same weights; of the others only the choice itself is of interest.
            modes = [mode for mode in runtime.modes if mode in settings.modes]
            for mode in modes if choice is settings.drafts[0] else (Mode.AUTO,):
                draft = "" if mode is Mode.PLAIN else choice.suffix
                label = SystemLabel(owner=OWN, weights=weights.value, mode=mode.value, draft=draft)
                run = _own_runner(runtime, label, mode, threads, settings.max_tokens, memory_bytes)
                lined_up.systems.append(System(label=label, run=run))
    if settings.peers and encode is not None:
        longest = max((encode(prompt) for prompt in (WARM_UP, *prompts)), key=len)
        plans = plan_peers(
            settings.peers,
            target=settings.target_source,
            threads=threads,
            context_length=len(longest) + settings.max_tokens + _ROOM_TOKENS,
            draft=assistant.draft,
            num_draft_layers=assistant.num_layers,
            lookup_tokens=settings.lookup_tokens,
        )
        await _add_peers(lined_up, plans, encode, settings.max_tokens, stack)
    return lined_up


def _sources(choice: DraftChoice) -> str | tuple[str, ...]:
    return choice.sources if len(choice.sources) > 1 else choice.sources[0]


def _encoder(runtime: Runtime) -> Callable[[BenchPrompt], list[int]]:
    return lambda prompt: prompt_ids(runtime.tokenizer, prompt.messages)


def _own_runner(
    runtime: Runtime, label: SystemLabel, mode: Mode, threads: int, max_tokens: int, memory_bytes: int | None
) -> Callable[[Turn], Awaitable[Run]]:
    encode = _encoder(runtime)

    async def run(turn: Turn) -> Run:
        ids = encode(turn.prompt)
        # A prompt that begins otherwise: nothing of what the last run left in the cache is of use to this one.
        await runtime.generate(_unlike(ids), max_tokens=1, ignore_eos=True, mode=mode, temperature=0.0)
        async with ticking() as gaps_s:
            result: GenerationResult = await runtime.generate(
                ids,
                max_tokens=max_tokens,
                ignore_eos=True,
                mode=mode,
                temperature=turn.temperature,
                seed=turn.seed,
            )
        metrics = result.metrics
        return Run(
            label=label,
            threads=threads,
            temperature=turn.temperature,
            kind=turn.prompt.kind,
            prompt=turn.index,
            seed=turn.seed,
            repeat=turn.repeat,
            tpot_ms=_known(metrics.tpot_ms, max_tokens),
            ttft_ms=metrics.ttft_ms or 0.0,
            token_ids=result.token_ids,
            acceptance_rate=metrics.draft_acceptance_rate,
            acceptance_length=metrics.mean_acceptance_length,
            drafts=metrics.drafts,
            worst_tick_ms=max(gaps_s, default=0.0) * 1e3,
            decision=metrics.decision,
            peak_memory_bytes=memory_bytes,
        )

    return run


def _known(tpot_ms: float | None, max_tokens: int) -> float:
    if tpot_ms is None:
        raise RunMissingError(f"an output of {max_tokens} tokens came in one round, which gives no time; ask for more")
    return tpot_ms


async def _memory_alone(
    settings: BenchSettings,
    threads: int,
    weights: WeightKind,
    choice: DraftChoice,
    longest_ids: Sequence[int],
    records: list[PeerRecord],
) -> int | None:
    """The most memory that one of our runtimes takes in a process that does nothing else, drafts and all."""
    own = PeerSettings(
        peer=PeerName.SLIPSTREAM,
        mode=PeerMode.PLAIN,
        target=settings.target_source,
        threads=threads,
        context_length=0,
        weights=weights.value,
        draft_sources=choice.sources,
    )
    try:
        process = await PeerProcess.start(own)
        try:
            return (await process.answer(longest_ids, settings.max_tokens)).peak_memory_bytes
        finally:
            await process.close()
    except (PeerLostError, PeerRefusedError) as error:
        records.append(_failed(f"{OWN} {weights.value}, memory alone {choice.suffix}".rstrip(), threads, error))
        return None


def _failed(name: str, threads: int, error: Exception) -> PeerRecord:
    return PeerRecord(system=name, threads=threads, state=PeerState.FAILED, reason=" ".join(str(error).split()))


def _unlike(ids: Sequence[int]) -> list[int]:
    """A prompt that shares no beginning with this one."""
    return [int(ids[0] == 0)]


async def _add_peers(
    lined_up: LineUp,
    plans: Sequence[PeerPlan],
    encode: Callable[[BenchPrompt], list[int]],
    max_tokens: int,
    stack: AsyncExitStack,
) -> None:
    for plan in tqdm(plans, desc="loading peers", unit="system", disable=None, file=sys.stderr):
        label, threads = plan.label, plan.settings.threads
        try:
            process, died_of = await PeerProcess.start_tried(plan.settings, plan.second_try, encode(WARM_UP))
        except PeerMissingError:
            record = PeerRecord(system=label.name, threads=threads, state=PeerState.MISSING, reason=plan.missing)
        except (PeerLostError, PeerRefusedError) as error:
            record = _failed(label.name, threads, error)
        else:
            stack.push_async_callback(process.close)
            label = plan.unrepacked_label if died_of else label
            run = _peer_runner(process, label, threads, encode, max_tokens)
            lined_up.systems.append(System(label=label, run=run, greedy_only=True))
            record = PeerRecord(
                system=label.name,
                threads=threads,
                state=PeerState.MEASURED,
                version=process.version,
                settled=process.settled + (f" (otherwise {died_of})" if died_of else ""),
            )
        lined_up.records.append(record)


def _peer_runner(
    process: PeerProcess, label: SystemLabel, threads: int, encode: Callable[[BenchPrompt], list[int]], max_tokens: int
) -> Callable[[Turn], Awaitable[Run]]:
    waking_ids = encode(WARM_UP)[:_WAKING_TOKENS]

    async def run(turn: Turn) -> Run:
        ids = encode(turn.prompt)
        try:
            # Its threads and weights come out of the same rest as ours, and what it kept of the prompt is gone.
            woken = await process.answer(waking_ids, 1)
            started, used = time.perf_counter(), time.process_time()
            answer = await process.answer(ids, max_tokens)
        except PeerRefusedError as error:
            raise RunMissingError(str(error)) from error
        bench_share = (time.process_time() - used) / (time.perf_counter() - started)
        return Run(
            label=label,
            threads=threads,
            kind=turn.prompt.kind,
            prompt=turn.index,
            seed=turn.seed,
            repeat=turn.repeat,
            tpot_ms=_known(answer.tpot_ms, max_tokens),
            ttft_ms=answer.ttft_ms,
            token_ids=answer.token_ids,
            peak_memory_bytes=answer.peak_memory_bytes,
            idle_cpu_share=woken.idle_cpu_share,
            bench_cpu_share=bench_share,
        )

    return run
