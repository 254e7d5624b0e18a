"""Does memory stay as it is over a long text, and is it as much as was expected?

Owns both verdicts. The text is written twice: memory that was allocated and never touched is not there before the first
time, and what grows the second time is lost.
"""

from __future__ import annotations

from profiling.doctor.check import CannotTell, Finding, Verdict
from profiling.doctor.loaded_pair import LoadedPair
from profiling.doctor.memory_gauge import HeldMemory
from profiling.prompts import PromptKind, bench_prompts

LOOSE_TENSOR_BYTES = 1 << 20
"""Rounds hold a few small tensors, more or fewer."""
LOOSE_PROCESS_BYTES = 16 << 20
"""Allocators keep what was freed, in pieces that do not always fit."""
LEAK_BYTES_PER_TOKEN = 16 << 10
"""A row of logits that is kept, or keys and values of one token, are more than that."""
_LOOSE_SHARE = 1.3
_LIBRARY_BYTES = 192 << 20
"""Libraries that loading a checkpoint imports, and what torch's kernels keep for themselves."""


async def check_memory_growth(pair: LoadedPair) -> Finding:
    """What the process holds behind a long text, and behind as long a text once more."""
    num_tokens = pair.effort.num_memory_tokens
    await _write(pair, num_tokens)
    before = pair.read_memory()
    await _write(pair, num_tokens)
    return judge_growth(before, pair.read_memory(), num_tokens=num_tokens)


def judge_growth(before: HeldMemory, after: HeldMemory, *, num_tokens: int) -> Finding:
    """The verdict on two readings with so many tokens between them."""
    tensor_growth = after.tensor_bytes - before.tensor_bytes
    process_growth = (
        None
        if before.process_bytes is None or after.process_bytes is None
        else after.process_bytes - before.process_bytes
    )
    in_process = "unknown" if process_growth is None else _mebibytes(process_growth)
    figures: dict[str, object] = {
        "num_tokens": num_tokens,
        "tensor_growth_bytes": tensor_growth,
        "process_growth_bytes": process_growth,
        "source": after.source,
    }
    measured = f"over {num_tokens:,} tokens tensors grew by {_mebibytes(tensor_growth)}, the process by {in_process}"
    is_large = tensor_growth > LOOSE_TENSOR_BYTES or (process_growth or 0) > LOOSE_PROCESS_BYTES
    if not is_large:
        return Finding(verdict=Verdict.OK, measured=measured, figures=figures)
    is_steady = max(tensor_growth, process_growth or 0) >= LEAK_BYTES_PER_TOKEN * num_tokens
    return Finding(
        verdict=Verdict.FAIL if is_steady else Verdict.WARN,
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
