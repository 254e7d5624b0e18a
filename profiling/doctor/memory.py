"""Does memory stay as it is over a long text, and is it as much as was expected?

Owns both verdicts. The text is written twice: memory that was allocated and never touched is not there before the first
time, and what grows the second time may be lost. A short text is written a third time where it grew: an allocator takes
memory in steps, and a leak grows every time.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from profiling.doctor.check import CannotTell, Finding, Verdict
from profiling.doctor.loaded_pair import LoadedPair
from profiling.doctor.memory_gauge import HeldMemory
from profiling.prompts import PromptKind, bench_prompts

LOOSE_TENSOR_BYTES = 1 << 20
"""Rounds hold a few small tensors, more or fewer."""
LOOSE_PROCESS_BYTES = 16 << 20
"""Allocators keep what was freed, in pieces that do not always fit."""
LONG_TEXT = 2000
"""Tokens, over which a leak stands out from an allocator's steps without a third text."""
_FLOAT32_BYTES = 4
_LOOSE_SHARE = 1.3
_LIBRARY_BYTES = 192 << 20
"""Libraries that loading a checkpoint imports, and what torch's kernels keep for themselves."""


async def check_memory_growth(pair: LoadedPair) -> Finding:
    """What the process holds behind a text, behind as long a text once more, and where that is short once again."""
    num_tokens = pair.effort.num_memory_tokens
    estimate = pair.engine.memory_estimate
    # Keys and values of a token where they are known; else a row of logits, the least that a step makes.
    bytes_per_token = (
        estimate.cache_bytes_per_token if estimate is not None else _FLOAT32_BYTES * pair.engine.target.model.vocab_size
    )
    await _write(pair, num_tokens)
    readings = [pair.read_memory()]
    await _write(pair, num_tokens)
    readings.append(pair.read_memory())
    if num_tokens < LONG_TEXT and Growth.between(*readings).is_large:
        await _write(pair, num_tokens)
        readings.append(pair.read_memory())
    return judge_growth(readings, num_tokens=num_tokens, bytes_per_token=bytes_per_token)


@dataclass(frozen=True, kw_only=True)
class Growth:
    """What one text added."""

    tensor_bytes: int
    process_bytes: int | None
    """None where the system does not tell."""

    @classmethod
    def between(cls, before: HeldMemory, after: HeldMemory) -> Growth:
        """From two readings."""
        is_known = before.process_bytes is not None and after.process_bytes is not None
        return cls(
            tensor_bytes=after.tensor_bytes - before.tensor_bytes,
            process_bytes=(after.process_bytes or 0) - (before.process_bytes or 0) if is_known else None,
        )

    @property
    def is_large(self) -> bool:
        """Whether it is more than what comes and goes."""
        return self.tensor_bytes > LOOSE_TENSOR_BYTES or (self.process_bytes or 0) > LOOSE_PROCESS_BYTES

    @property
    def most_bytes(self) -> int:
        """By the reading that grew more."""
        return max(self.tensor_bytes, self.process_bytes or 0)

    def __str__(self) -> str:
        in_process = "unknown" if self.process_bytes is None else _mebibytes(self.process_bytes)
        return f"tensors grew by {_mebibytes(self.tensor_bytes)}, the process by {in_process}"


def judge_growth(readings: Sequence[HeldMemory], *, num_tokens: int, bytes_per_token: int) -> Finding:
    """The verdict on readings with so many tokens between each and the next.

    Args:
        readings: two, or three where the second text made memory grow and was short.
        num_tokens: of each text.
        bytes_per_token: what a token at least leaves behind where something keeps it.
    """
    steps = [Growth.between(before, after) for before, after in itertools.pairwise(readings)]
    figures: dict[str, object] = {
        "num_tokens": num_tokens,
        "bytes_per_token": bytes_per_token,
        "tensor_growth_bytes": [step.tensor_bytes for step in steps],
        "process_growth_bytes": [step.process_bytes for step in steps],
        "source": readings[-1].source,
    }
    measured = f"over {num_tokens:,} tokens {', over as many more '.join(map(str, steps))}"
    if not steps[-1].is_large:
        return Finding(verdict=Verdict.OK, measured=measured, figures=figures)
    is_known = num_tokens >= LONG_TEXT or len(steps) > 1
    is_leak = is_known and all(step.most_bytes >= bytes_per_token * num_tokens for step in steps)
    return Finding(
        verdict=Verdict.FAIL if is_leak else Verdict.WARN,
        measured=measured,
        advice="something keeps what each token leaves behind: a model that stores tensors between calls, callers that "
        "keep every chunk, or this library; run the check again without --quick, and if it fails there, report it",
        figures=figures,
    )


async def check_memory_estimate(pair: LoadedPair) -> Finding:
    """What loading and decoding added to the process, against weights, both caches and activations as estimated."""
    estimate = pair.engine.memory_estimate
    if estimate is None:
        raise CannotTell("nothing was estimated, as transformers runs the target")
    before, now = pair.surroundings.memory, pair.read_memory()
    if pair.engine.target.model.device.type == "cuda":
        held_bytes, source = now.tensor_bytes, "torch's allocator"
    elif before is None or before.process_bytes is None or now.process_bytes is None:
        raise CannotTell(f"the process does not tell what it holds: {now.source}")
    else:
        held_bytes, source = now.process_bytes - before.process_bytes, now.source
    limit_bytes = int(_LOOSE_SHARE * estimate.total_bytes) + _LIBRARY_BYTES
    is_over = held_bytes > limit_bytes
    return Finding(
        verdict=Verdict.WARN if is_over else Verdict.OK,
        measured=f"the pair holds {_mebibytes(held_bytes)}, at most {_mebibytes(limit_bytes)} with libraries is as "
        f"expected; estimated {_mebibytes(estimate.total_bytes)}: weights "
        f"{_mebibytes(estimate.weight_bytes)}, caches for {estimate.context_length:,} tokens "
        f"{_mebibytes(estimate.cache_bytes)}, activations {_mebibytes(estimate.working_bytes)}",
        advice="admission reckons with the estimate, so leave room above it, and report the difference; a smaller "
        "context_length or smaller weights take less"
        if is_over
        else "",
        figures={
            "held_bytes": held_bytes,
            "source": source,
            "weight_bytes": estimate.weight_bytes,
            "cache_bytes": estimate.cache_bytes,
            "working_bytes": estimate.working_bytes,
            "limit_bytes": limit_bytes,
        },
    )


async def _write(pair: LoadedPair, num_tokens: int) -> None:
    """So many tokens as the runtime writes them on its own, in as few answers as the context allows."""
    left = num_tokens
    seed = 0
    while left:
        step = min(left, max(1, pair.runtime.context_length // 2))
        prompt_ids = pair.prompt_ids(bench_prompts(PromptKind.CHAT)[2].messages, step)
        async with pair.runtime.stream(
            prompt_ids, max_tokens=step, temperature=1.0, seed=seed, ignore_eos=True
        ) as chunks:
            async for _ in chunks:
                pass
        left -= step
        seed += 1


def _mebibytes(num_bytes: int) -> str:
    return f"{num_bytes / (1 << 20):,.1f} MiB"
