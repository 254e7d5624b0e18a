"""Answers to the same prompts in every mode, in turn: what most checks look at.

Owns the order of the runs and which runs belong together. Knows nothing of verdicts.

In `sequential` and `pipelined` runs gamma is fixed, so that drafts are heard whatever the controller thinks of them;
`auto` runs are left as the caller of a runtime would have them.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from profiling.doctor.effort import Effort
from profiling.prompts import PromptKind, bench_prompts
from runtime import GenerationResult, Mode

TEMPERATURE = 0.8
"""Of the answers that are drawn."""


class PromptReader(Protocol):
    """Turns a prompt into token ids that leave room for an answer."""

    def __call__(self, messages: Sequence[Mapping[str, str]], max_tokens: int) -> tuple[int, ...]:
        """At most as many ids as the context has room for beside `max_tokens`."""
        ...


class Generate(Protocol):
    """Answers a prompt; `runtime.Runtime.generate`."""

    async def __call__(
        self,
        prompt: Sequence[int],
        *,
        max_tokens: int,
        temperature: float,
        seed: int,
        mode: Mode,
        gamma: int | None,
        ignore_eos: bool,
    ) -> GenerationResult:
        """The whole answer."""
        ...


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One prompt at one temperature, answered once in each mode."""

    kind: PromptKind
    temperature: float
    seed: int
    results: Mapping[Mode, GenerationResult]
    prompt_ids: tuple[int, ...] = ()
    plain_again: GenerationResult | None = None
    """Plain decoding once more: what differs between the two times is the machine's."""

    @property
    def plain(self) -> GenerationResult:
        """What the target alone wrote."""
        return self.results[Mode.PLAIN]

    @property
    def speculative(self) -> dict[Mode, GenerationResult]:
        """What was written with drafts."""
        return {mode: result for mode, result in self.results.items() if mode is not Mode.PLAIN}

    def speedup(self, mode: Mode, over: Mode) -> float | None:
        """Speed of one mode over another's; None where a run came in one round, or was not made."""
        fast_ms, slow_ms = self._tpot_ms(mode), self._tpot_ms(over)
        return slow_ms / fast_ms if fast_ms and slow_ms else None

    def _tpot_ms(self, mode: Mode) -> float | None:
        """Milliseconds a token, the mean where the mode ran twice."""
        runs = [self.results.get(mode), self.plain_again if mode is Mode.PLAIN else None]
        known_ms = [run.metrics.tpot_ms for run in runs if run is not None and run.metrics.tpot_ms]
        return statistics.fmean(known_ms) if known_ms else None

    @property
    def noise(self) -> float | None:
        """By how much the slower of two plain runs was slower; None where it ran once, or in one round."""
        if self.plain_again is None:
            return None
        first_ms, second_ms = self.plain.metrics.tpot_ms, self.plain_again.metrics.tpot_ms
        if not first_ms or not second_ms:
            return None
        return max(first_ms, second_ms) / min(first_ms, second_ms) - 1

    def __str__(self) -> str:
        return f"{self.kind.value}, temperature {self.temperature:g}"


async def run_trials(
    generate: Generate, modes: Sequence[Mode], read: PromptReader, effort: Effort, *, gamma: int
) -> tuple[Turn, ...]:
    """Answer every prompt in every mode, plain decoding twice; the modes take turns at being first.

    Both models have read the prompt before, so that no mode is the first to do so.
    """
    turns: list[Turn] = []
    # Caches, pages and clocks are cold in the first runs, which is nobody's fault.
    for mode in modes:
        warm_up = read(bench_prompts(PromptKind.CHAT)[-1].messages, effort.max_tokens)
        await _answer(generate, warm_up, mode, max_tokens=min(8, effort.max_tokens), temperature=0.0, gamma=gamma)
    for number, (kind, messages, temperature) in enumerate(_asked(effort)):
        prompt_ids = read(messages, effort.max_tokens)
        reads = min(2 * (gamma + 1), effort.max_tokens)
        # The first rounds of a mode with drafts have both models read.
        reader = modes[min(1, len(modes) - 1)]
        await _answer(generate, prompt_ids, reader, max_tokens=reads, temperature=temperature, gamma=gamma, seed=number)
        first = number % len(modes)
        results = {
            mode: await _answer(
                generate,
                prompt_ids,
                mode,
                max_tokens=effort.max_tokens,
                temperature=temperature,
                gamma=gamma,
                seed=number,
            )
            for mode in (*modes[first:], *modes[:first])
        }
        plain_again = await _answer(
            generate,
            prompt_ids,
            Mode.PLAIN,
            max_tokens=effort.max_tokens,
            temperature=temperature,
            gamma=gamma,
            seed=number,
        )
        turns.append(
            Turn(
                kind=kind,
                temperature=temperature,
                seed=number,
                results=results,
                prompt_ids=tuple(prompt_ids),
                plain_again=plain_again,
            )
        )
    return tuple(turns)


def median_speedup(turns: Sequence[Turn], mode: Mode, over: Mode) -> float | None:
    """The median of the turns' ratios; None where none is known."""
    known = [ratio for turn in turns if (ratio := turn.speedup(mode, over)) is not None]
    return statistics.median(known) if known else None


def median_noise(turns: Sequence[Turn]) -> float:
    """The median of what two plain runs of a turn differ by, as a share; 0 where none ran twice."""
    known = [noise for turn in turns if (noise := turn.noise) is not None]
    return statistics.median(known) if known else 0.0


def _asked(effort: Effort) -> Iterator[tuple[PromptKind, Sequence[Mapping[str, str]], float]]:
    num_drawn = 0
    for index in range(effort.num_prompts):
        for kind in PromptKind:
            messages = bench_prompts(kind)[index].messages
            yield kind, messages, 0.0
            if kind is not PromptKind.CODE or effort.num_drawn_prompts > len(PromptKind):
                num_drawn += 1
                if num_drawn <= effort.num_drawn_prompts:
                    yield kind, messages, TEMPERATURE


async def _answer(
    generate: Generate,
    prompt_ids: Sequence[int],
    mode: Mode,
    *,
    max_tokens: int,
    temperature: float,
    gamma: int,
    seed: int = 0,
) -> GenerationResult:
    return await generate(
        prompt_ids,
        max_tokens=max_tokens,
        temperature=temperature,
        seed=seed,
        mode=mode,
        gamma=gamma if mode in (Mode.SEQUENTIAL, Mode.PIPELINED) else None,
        ignore_eos=True,
    )
