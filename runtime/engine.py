"""What a runtime runs on: streams, lanes, draft sources and the loop over them.

Owns their construction and their end. Knows nothing of requests or text.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from models import CausalModel, LoadedModel, Tokenizer, demo_weights, load_model
from runtime.load_settings import DraftKind, DraftSpec, LoadSettings
from scheduler import (
    AdaptiveGamma,
    BlockCosts,
    FixedGamma,
    GammaPolicy,
    Lane,
    ModelProposer,
    NgramProposer,
    Proposer,
    SequentialLoop,
    Stream,
    ThreadStream,
)

DEFAULT_CONTEXT_LENGTH = 8192
_PRIOR_ALPHA = {DraftKind.NGRAM: 0.5, DraftKind.EARLY_EXIT: 0.4, DraftKind.MODEL: 0.6}
"""Acceptance rate assumed before the first verdict."""


@dataclass(frozen=True, kw_only=True)
class Engine:
    """A loaded pair, ready for requests."""

    tokenizer: Tokenizer
    target: Lane
    loop: SequentialLoop
    draft_names: tuple[str, ...]
    streams: tuple[Stream, ...]
    context_length: int

    async def close(self) -> None:
        """End the streams' threads, off the event loop."""
        for stream in self.streams:
            await asyncio.to_thread(stream.close)


async def build_engine(settings: LoadSettings) -> Engine:
    """Load the pair on the worker that will run it, so that what is probed there holds there.

    Raises:
        SlipstreamError: as the loading functions of `models`.
    """
    # Draft and target take turns here: one worker serves both, and no second pool of threads stands in its way.
    stream = ThreadStream("target", num_threads=settings.threads)
    try:
        launch = stream.launch(lambda: _assemble(settings, stream))
        await stream.record()
        return launch.result()
    except BaseException:
        await asyncio.to_thread(stream.close)
        raise


def _assemble(settings: LoadSettings, stream: Stream) -> Engine:
    loaded = load_model(demo_weights() if settings.target is None else settings.target, weights=settings.weights)
    context_length = _context_length(settings, loaded.model)
    target = Lane("target", loaded.model, stream, capacity=context_length)
    target.measure_costs()
    proposers = tuple(
        _new_proposer(spec, settings, target, loaded, stream, source=source)
        for source, spec in enumerate(settings.draft_specs())
    )
    loop = SequentialLoop(
        target, stream, proposers, max_gamma=settings.gamma_limit, warmup_tokens=settings.warmup_tokens
    )
    return Engine(
        tokenizer=loaded.tokenizer,
        target=target,
        loop=loop,
        draft_names=tuple(proposer.name for proposer in proposers),
        streams=(stream,),
        context_length=context_length,
    )


def _context_length(settings: LoadSettings, model: CausalModel) -> int:
    if settings.context_length is None:
        return min(model.context_length, DEFAULT_CONTEXT_LENGTH)
    if settings.context_length > model.context_length:
        raise ValueError(
            f"context_length must be at most {model.context_length}, the model's own, got {settings.context_length}"
        )
    return settings.context_length


def _new_proposer(
    spec: DraftSpec, settings: LoadSettings, target: Lane, loaded: LoadedModel, stream: Stream, *, source: int
) -> Proposer:
    if spec.kind is DraftKind.NGRAM:
        return NgramProposer(_policy_factory(spec, settings, target.costs, None), source=source)
    model = _draft_model(spec, settings, loaded)
    lane = Lane(f"draft{source}", model, stream, capacity=min(target.capacity, model.context_length))
    lane.measure_costs()
    return ModelProposer(lane, _policy_factory(spec, settings, target.costs, lane.costs)(), source=source)


def _policy_factory(
    spec: DraftSpec, settings: LoadSettings, verify_costs: BlockCosts, draft_costs: BlockCosts | None
) -> Callable[[], GammaPolicy]:
    fixed = settings.fixed_gamma
    if fixed is not None:
        return lambda: FixedGamma(fixed)
    return lambda: AdaptiveGamma(
        max_gamma=settings.max_gamma,
        verify_costs=verify_costs,
        draft_costs=draft_costs,
        prior_alpha=_PRIOR_ALPHA[spec.kind],
    )


def _draft_model(spec: DraftSpec, settings: LoadSettings, target: LoadedModel) -> CausalModel:
    if spec.kind is DraftKind.EARLY_EXIT:
        num_layers = spec.num_layers or max(1, target.model.config.num_layers // 5)
        return target.model.first_layers(num_layers)
    draft = load_model(spec.source, weights=settings.weights)
    check_pair(target.tokenizer, draft.tokenizer)
    return draft.model
