"""Is a rejection cheap, and do the caches stay where they are?

Owns both verdicts, and how the memory of any cache is found: every tensor that the object holds, wherever it keeps it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch

from profiling.doctor.check import CannotTell, Finding, Verdict, graded
from profiling.doctor.loaded_pair import LoadedPair
from profiling.prompts import PromptKind, bench_prompts
from runtime import Mode
from scheduler import Lane

WARN_SHARE = 0.02
"""Of a step; a roll-back that writes one number takes less than a thousandth."""
FAIL_SHARE = 0.5
_NUM_TOKENS = 24
_MOST_DEPTH = 8

Addresses = frozenset[tuple[int, int]]
"""Where pieces of memory begin, and how many bytes they have."""


async def check_rollback(pair: LoadedPair) -> Finding:
    """The time of cutting the target's cache back behind a verify, over a step."""
    costs = await pair.step_costs()
    share = costs.rollback_ms / costs.step_ms
    verdict = graded(share, warn_above=WARN_SHARE, fail_above=FAIL_SHARE)
    return Finding(
        verdict=verdict,
        measured=f"a roll-back takes {costs.rollback_ms * 1e3:.1f} µs, {share:.2%} of a step; at most {WARN_SHARE:.0%}",
        advice=""
        if verdict is Verdict.OK
        else "the cache copies or frees something on every rejection; use a model whose cache is cut back by writing "
        "its length, as those of the lean decoder and of the transformers adapter are",
        figures={"rollback_ms": costs.rollback_ms, "step_ms": costs.step_ms, "share": share},
    )


async def check_cache_addresses(pair: LoadedPair) -> Finding:
    """The memory of both caches before answers with rejections in them, and after each round."""
    lanes = [pair.engine.target, *(source.lane for source in pair.draft_models)]
    mode = Mode.SEQUENTIAL if Mode.SEQUENTIAL in pair.modes else Mode.PLAIN
    prompt_ids = pair.prompt_ids(bench_prompts(PromptKind.CHAT)[1].messages, _NUM_TOKENS)
    seen = {lane.name: {await _addresses(lane)} for lane in lanes}
    if not any(any(addresses) for addresses in seen.values()):
        raise CannotTell("the caches hold no tensors")
    num_rejected = 0
    # Greedy and drawn: many a pair agrees in one of the two.
    for temperature in (0.0, 1.0):
        answer = pair.runtime.stream(
            prompt_ids,
            max_tokens=_NUM_TOKENS // 2,
            temperature=temperature,
            seed=0,
            mode=mode,
            gamma=None if mode is Mode.PLAIN else pair.gamma,
            ignore_eos=True,
        )
        async with answer as chunks:
            async for chunk in chunks:
                # After each round: memory that is freed and taken in turn is soon back where it was.
                for lane in lanes:
                    seen[lane.name].add(await _addresses(lane))
                if chunk.metrics is not None:
                    num_rejected += chunk.metrics.num_draft_tokens - chunk.metrics.num_accepted_draft_tokens
    moved = [name for name, addresses in seen.items() if len(addresses) > 1]
    figures: dict[str, object] = {"num_rejected": num_rejected, "moved": moved}
    if moved:
        return Finding(
            verdict=Verdict.FAIL,
            measured=f"the cache of {' and '.join(moved)} moved while {_NUM_TOKENS} tokens were written",
            advice="allocate keys and values once, for the whole context, and write into them; roll back by length",
            figures=figures,
        )
    return Finding(
        verdict=Verdict.OK,
        measured=f"same addresses over {_NUM_TOKENS} tokens with {num_rejected} rejected proposals",
        figures=figures,
    )


async def _addresses(lane: Lane) -> Addresses:
    looking = lane.stream.launch(lambda: addresses_in(lane.cache), reads=(lane.cache_buffer,), label="look at cache")
    await lane.stream.record()
    return looking.result()


def addresses_in(holder: object) -> Addresses:
    """The memory of all tensors that an object holds, directly or in its attributes, sequences and mappings."""
    storages = (tensor.untyped_storage() for tensor in _tensors(holder, set(), 0))
    return frozenset((storage.data_ptr(), storage.nbytes()) for storage in storages if storage.nbytes())


def _tensors(holder: object, seen: set[int], depth: int) -> Iterator[torch.Tensor]:
    if id(holder) in seen or depth > _MOST_DEPTH:
        return
    seen.add(id(holder))
    if isinstance(holder, torch.Tensor):
        yield holder
        return
    held: list[object] = []
    if isinstance(holder, Mapping):
        held = list(holder.values())
    elif isinstance(holder, Sequence) and not isinstance(holder, str | bytes | bytearray):
        held = list(holder)
    elif not isinstance(holder, type):
        held = list(getattr(holder, "__dict__", {}).values())
    for part in held:
        yield from _tensors(part, seen, depth + 1)
