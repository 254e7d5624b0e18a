"""Runtimes over models in memory, put together as `Runtime.load` does it, but without any file."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from models import CausalModel, WeightKind
from models.tokenizer import Tokenizer
from runtime import GenerationResult, LoadSettings, Mode, Runtime
from runtime.engine import Engine, decoding_loops
from runtime.load_settings import ADAPTIVE
from scheduler import (
    BlockCosts,
    Controller,
    FixedGamma,
    GammaPolicy,
    Lane,
    ModelProposer,
    NgramProposer,
    Proposer,
    SourceCosts,
    SpanRecorder,
    ThreadStream,
)
from tests.support.table_model import TableModel
from tests.support.tiny_checkpoint import tiny_tokenizer
from tests.support.watched_model import WatchedModel

VOCAB_SIZE = 300
"""A little wider than the tokenizer's ids, as padded heads are."""

SPECULATIVE_MODES = (Mode.SEQUENTIAL, Mode.PIPELINED)


@dataclass(frozen=True)
class Rig:
    """A runtime with what a test watches or disturbs."""

    runtime: Runtime
    engine: Engine
    stream: ThreadStream
    """The target's."""
    draft_stream: ThreadStream
    """One of its own where lanes may overlap, else the target's."""
    target: WatchedModel
    draft: WatchedModel | None

    @property
    def num_calls(self) -> int:
        """Model calls so far, on both sides."""
        return self.target.num_calls + (self.draft.num_calls if self.draft else 0)

    async def drained(self) -> None:
        """Wait until everything launched so far has run, whatever came of it."""
        await asyncio.gather(self.draft_stream.record(), self.stream.record(), return_exceptions=True)

    def close_streams(self) -> None:
        """End the workers without an event loop."""
        self.stream.close()
        self.draft_stream.close()


def table_target(**changes: object) -> TableModel:
    """A table model as wide as the tokenizer needs."""
    settings: dict[str, object] = {"vocab_size": VOCAB_SIZE, "order": 2, "seed": 5, "sharpness": 3.0}
    return TableModel(**{**settings, **changes})  # type: ignore[arg-type]  # the caller names real fields


def similar_draft(target: TableModel, *, share: float = 0.3, **changes: object) -> TableModel:
    """A draft that often agrees: the target's tables with other ones mixed in."""
    draft = table_target(name="draft", **changes)
    other = table_target(seed=99).tables
    draft.tables = (1 - share) * target.tables + share * other
    return draft


def build_rig(
    target: CausalModel | None = None,
    draft: CausalModel | None = None,
    *,
    mode: Mode = Mode.SEQUENTIAL,
    gamma: int | None = 4,
    with_ngram: bool = False,
    capacity: int | None = None,
    tokenizer: Tokenizer | None = None,
    warmup_tokens: int = 0,
    acceptance_threshold: float = 0.0,
    draft_step_ms: float = 0.5,
    named: str = "table draft",
    **settings: int,
) -> Rig:
    """A runtime on one worker thread, or two where lanes may overlap, made inside or outside of a loop.

    Gamma None adapts, to made-up costs; `named` is what the caller of a runtime would have called the draft.
    """
    watched_target = WatchedModel(table_target() if target is None else target)
    watched_draft = None if draft is None else WatchedModel(draft)
    stream = ThreadStream("target")
    draft_stream = ThreadStream("draft") if mode.overlaps else stream
    lane = Lane("target", watched_target, stream, capacity=capacity or watched_target.context_length)
    proposers: list[Proposer] = []

    def policy() -> GammaPolicy:
        if gamma is not None and mode is not Mode.AUTO:
            return FixedGamma(gamma)
        flat = BlockCosts({1: 10.0, 2: 10.5, 5: 11.0, 9: 12.0})
        costs = SourceCosts(verify=flat, draft=BlockCosts({1: draft_step_ms}))
        return Controller(max_gamma=8, costs=costs, fixed_gamma=gamma)

    if with_ngram:
        proposers.append(NgramProposer(policy))
    if watched_draft is not None:
        draft_lane = Lane(
            "draft", watched_draft, draft_stream, capacity=min(lane.capacity, watched_draft.context_length)
        )
        proposers.append(ModelProposer(draft_lane, policy()))
    loaded = LoadSettings(
        target="table",
        draft=named,
        mode=mode,
        gamma=ADAPTIVE if gamma is None else gamma,
        warmup_tokens=warmup_tokens,
        acceptance_threshold=acceptance_threshold,
        **settings,  # type: ignore[arg-type]  # the caller names real fields
    )
    spans = SpanRecorder()
    engine = Engine(
        tokenizer=tokenizer or tiny_tokenizer(),
        target=lane,
        draft_stream=draft_stream,
        proposers=tuple(proposers),
        model_sources=frozenset() if watched_draft is None else frozenset({len(proposers) - 1}),
        weights=WeightKind.FLOAT32,
        num_threads=1,
        num_draft_threads=0,
        loops=decoding_loops(loaded, lane, draft_stream, proposers, spans=spans),
        spans=spans,
    )
    return Rig(
        runtime=Runtime(engine, loaded),
        engine=engine,
        stream=stream,
        draft_stream=draft_stream,
        target=watched_target,
        draft=watched_draft,
    )


def greedy_ids(model: TableModel, prompt_ids: Sequence[int], num_tokens: int) -> tuple[int, ...]:
    """What the table alone writes, by its definition."""
    token_ids = list(prompt_ids)
    for _ in range(num_tokens):
        token_ids.append(int(model.logits_after(token_ids).argmax()))
    return tuple(token_ids[len(prompt_ids) :])


def shown(result: GenerationResult) -> tuple[object, ...]:
    """All of a result that may not depend on how it came about."""
    return result.token_ids, result.text, result.finish_reason, result.logprobs
