"""The systems of a benchmark: our own modes and the peers, each ready to be asked.

Owns how they are loaded and how one run of each is made. Knows nothing of the order of runs, nor of the report.
Our own modes run in the benchmark's process, as in any program that has a runtime; each system of a peer has a process
of its own, and so has, once, each of our runtimes: to see what memory it takes alone.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from tqdm import tqdm

from models import WeightKind
from profiling.bench_options import BenchSettings, DraftChoice
from profiling.bench_run import OWN, PeerRecord, PeerState, Run
from profiling.bench_sources import Assistant
from profiling.peers.peer import PeerMode, PeerName, PeerSettings
from profiling.peers.plans import PeerPlan, plan_peers
from profiling.peers.process import PeerLostError, PeerMissingError, PeerProcess
from profiling.prompts import BenchPrompt, PromptKind
from profiling.ticker import ticking
from runtime import GenerationResult, Mode, Runtime

WARM_UP = BenchPrompt(kind=PromptKind.CHAT, messages=({"role": "user", "content": "Say hello in five languages."},))
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


@dataclass(frozen=True, kw_only=True)
class System:
    """Something that can be timed."""

    name: str
    run: Callable[[Turn], Awaitable[Run]]
    """Raises PeerLostError where it has to be left out from now on."""
    greedy_only: bool = False
    """Whether it is left out where tokens are drawn."""


@dataclass(frozen=True, kw_only=True)
class LineUp:
    """Who takes part at one number of threads, and what is said of the peers."""

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
            runtime = await stack.enter_async_context(
                # Where the peers run, whatever else there is.
                await Runtime.load(
                    settings.target, threads=threads, weights=weights, draft=_sources(choice), device="cpu"
                )
            )
            encode = _encoder(runtime)
            if settings.peers:
                longest = max((encode(prompt) for prompt in prompts), key=len)
                memory_bytes = await _memory_alone(settings, threads, weights, choice, longest, lined_up.records)
            # The modes of one choice run on the same weights; of the others only the choice itself is of interest.
            modes = [mode for mode in runtime.modes if mode in settings.modes]
            for mode in modes if choice is settings.drafts[0] else (Mode.AUTO,):
                name = f"{OWN} {weights.value}, {mode.value}"
                if mode is not Mode.PLAIN:
                    name += choice.suffix
                run = _own_runner(runtime, name, mode, threads, settings.max_tokens, memory_bytes)
                lined_up.systems.append(System(name=name, run=run))
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
    return lambda prompt: runtime.tokenizer.encode_chat(prompt.messages)


def _own_runner(
    runtime: Runtime, name: str, mode: Mode, threads: int, max_tokens: int, memory_bytes: int | None
) -> Callable[[Turn], Awaitable[Run]]:
    async def run(turn: Turn) -> Run:
        prompt_ids = runtime.tokenizer.encode_chat(turn.prompt.messages)
        # A prompt that begins otherwise: nothing of what the last run left in the cache is of use to this one.
        await runtime.generate([int(prompt_ids[0] == 0)], max_tokens=1, ignore_eos=True, mode=mode, temperature=0.0)
        async with ticking() as gaps_s:
            result: GenerationResult = await runtime.generate(
                prompt_ids,
                max_tokens=max_tokens,
                ignore_eos=True,
                mode=mode,
                temperature=turn.temperature,
                seed=turn.seed,
            )
        metrics = result.metrics
        return Run(
            system=name,
            threads=threads,
            temperature=turn.temperature,
            kind=turn.prompt.kind,
            prompt=turn.index,
            seed=turn.seed,
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
        raise ValueError(f"an output of {max_tokens} tokens came in one round, which gives no time; ask for more")
    return tpot_ms


async def _memory_alone(
    settings: BenchSettings,
    threads: int,
    weights: WeightKind,
    choice: DraftChoice,
    prompt_ids: Sequence[int],
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
            return (await process.answer(prompt_ids, settings.max_tokens)).peak_memory_bytes
        finally:
            await process.close()
    except PeerLostError as error:
        name = f"{OWN} {weights.value}, memory alone{choice.suffix}"
        records.append(PeerRecord(system=name, threads=threads, state=PeerState.FAILED, reason=str(error)))
        return None


async def _add_peers(
    lined_up: LineUp,
    plans: Sequence[PeerPlan],
    encode: Callable[[BenchPrompt], list[int]],
    max_tokens: int,
    stack: AsyncExitStack,
) -> None:
    for plan in tqdm(plans, desc="loading peers", unit="system", disable=None, file=sys.stderr):
        name, threads = plan.system, plan.settings.threads
        try:
            process, died_of = await PeerProcess.start_tried(plan.settings, plan.second_try, encode(WARM_UP))
        except PeerMissingError:
            record = PeerRecord(system=name, threads=threads, state=PeerState.MISSING, reason=plan.missing)
        except PeerLostError as error:
            record = PeerRecord(system=name, threads=threads, state=PeerState.FAILED, reason=str(error))
        else:
            stack.push_async_callback(process.close)
            run = _peer_runner(process, name, threads, encode, max_tokens)
            lined_up.systems.append(System(name=name, run=run, greedy_only=True))
            record = PeerRecord(
                system=name,
                threads=threads,
                state=PeerState.MEASURED,
                version=process.version,
                settled=process.settled + (f" (otherwise {died_of})" if died_of else ""),
            )
        lined_up.records.append(record)


def _peer_runner(
    process: PeerProcess, name: str, threads: int, encode: Callable[[BenchPrompt], list[int]], max_tokens: int
) -> Callable[[Turn], Awaitable[Run]]:
    async def run(turn: Turn) -> Run:
        answer = await process.answer(encode(turn.prompt), max_tokens)
        return Run(
            system=name,
            threads=threads,
            kind=turn.prompt.kind,
            prompt=turn.index,
            seed=turn.seed,
            tpot_ms=answer.tpot_ms,
            ttft_ms=answer.ttft_ms,
            token_ids=answer.token_ids,
            peak_memory_bytes=answer.peak_memory_bytes,
            idle_cpu_share=answer.idle_cpu_share,
        )

    return run
