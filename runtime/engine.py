"""What a runtime runs on: streams, lanes, draft sources and the loop over them.

Owns their construction and their end. Knows nothing of requests or text.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property

import torch

from models import (
    CausalModel,
    Decoder,
    LoadedModel,
    ModelConfig,
    OpenModel,
    Tokenizer,
    UnsupportedModelError,
    WeightKind,
    available_memory,
    check_memory,
    check_pair,
    estimate_memory,
    open_model,
)
from models.demo import demo_weights
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
_EARLY_EXIT_SHARE = 5
"""Early exit takes one layer in this many unless told otherwise."""
_PRIOR_ALPHA = {DraftKind.NGRAM: 0.5, DraftKind.EARLY_EXIT: 0.3, DraftKind.MODEL: 0.6}
"""Acceptance rate assumed before the first verdict."""

_logger = logging.getLogger("slipstream")


@dataclass(frozen=True, kw_only=True)
class Engine:
    """A loaded pair, ready for requests."""

    tokenizer: Tokenizer
    target: Lane
    weights: WeightKind
    num_threads: int
    """Intra-op threads of the worker that runs the models."""
    loop: SequentialLoop
    draft_names: tuple[str, ...]
    model_sources: frozenset[int]
    """The draft sources that are models; the others' proposals cost nothing, so a low acceptance rate is no fault."""
    streams: tuple[Stream, ...]

    @cached_property
    def plain_loop(self) -> SequentialLoop:
        """One-token decoding on the same target lane: same weights, same cache, no draft is asked."""
        return SequentialLoop(self.target, self.target.stream, max_gamma=0)

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
        launch = stream.launch(lambda: _assemble(settings, stream), writes=("target.cache",))
        await stream.record()
        return launch.result()
    except BaseException:
        await asyncio.to_thread(stream.close)
        raise


def _assemble(settings: LoadSettings, stream: Stream) -> Engine:
    specs = settings.draft_specs()
    with ExitStack() as stack:
        source = demo_weights() if settings.target is None else settings.target
        opened = stack.enter_context(open_model(source, weights=settings.weights))
        drafts = [_open_draft(spec, settings, stack) for spec in specs]
        _check_memory(settings, opened.config, specs, drafts)
        loaded = opened.load()
        target = Lane("target", loaded.model, stream, capacity=_context_length(settings, loaded.model.context_length))
        target.measure_costs()
        proposers = tuple(
            _new_proposer(index, spec, settings, target, _draft_model(spec, draft, loaded))
            for index, (spec, draft) in enumerate(zip(specs, drafts, strict=True))
        )
    return Engine(
        tokenizer=loaded.tokenizer,
        target=target,
        weights=loaded.weights,
        num_threads=torch.get_num_threads(),
        loop=SequentialLoop(
            target, stream, proposers, max_gamma=settings.gamma_limit, warmup_tokens=settings.warmup_tokens
        ),
        draft_names=tuple(proposer.name for proposer in proposers),
        model_sources=frozenset(index for index, spec in enumerate(specs) if spec.kind is not DraftKind.NGRAM),
        streams=(stream,),
    )


def _open_draft(spec: DraftSpec, settings: LoadSettings, stack: ExitStack) -> OpenModel | None:
    if spec.source is None:
        return None
    return stack.enter_context(open_model(spec.source, weights=settings.weights))


def _check_memory(
    settings: LoadSettings,
    target: ModelConfig | None,
    specs: Sequence[DraftSpec],
    drafts: Sequence[OpenModel | None],
) -> None:
    """Refuse before anything large is allocated; models that transformers runs cannot be estimated and pass."""
    if target is None:
        return
    draft_config = None
    for spec, draft in zip(specs, drafts, strict=True):
        if draft is not None:
            draft_config = draft.config
        elif spec.kind is DraftKind.EARLY_EXIT:
            draft_config = dataclasses.replace(target, num_layers=_num_exit_layers(spec, target))
    has_own_weights = any(draft is not None for draft in drafts)
    estimate = estimate_memory(
        target,
        context_length=_context_length(settings, target.context_length),
        target_weights=settings.weights,
        draft=draft_config,
        draft_weights=settings.weights if has_own_weights else None,
    )
    check_memory(estimate, available_memory())


def _context_length(settings: LoadSettings, model_context_length: int) -> int:
    if settings.context_length is None:
        return min(model_context_length, DEFAULT_CONTEXT_LENGTH)
    if settings.context_length > model_context_length:
        raise ValueError(
            f"context_length must be at most {model_context_length}, the model's own, got {settings.context_length}"
        )
    return settings.context_length


def _num_exit_layers(spec: DraftSpec, target: ModelConfig) -> int:
    if spec.num_layers is None:
        return max(1, target.num_layers // _EARLY_EXIT_SHARE)
    if spec.num_layers >= target.num_layers:
        raise ValueError(
            f"early-exit:{spec.num_layers} must name fewer layers than the target's {target.num_layers}; "
            f"about {max(1, target.num_layers // _EARLY_EXIT_SHARE)} is a good start"
        )
    return spec.num_layers


@dataclass(frozen=True, kw_only=True)
class _DraftModel:
    """A draft that fits its target."""

    model: CausalModel
    num_shared_ids: int


def _draft_model(spec: DraftSpec, draft: OpenModel | None, target: LoadedModel) -> _DraftModel | None:
    if spec.kind is DraftKind.NGRAM:
        return None
    if draft is None:
        if not isinstance(target.model, Decoder):
            raise UnsupportedModelError(f"early exit needs the lean decoder, but transformers runs {target.model.name}")
        model = target.model.first_layers(_num_exit_layers(spec, target.model.config))
        return _DraftModel(model=model, num_shared_ids=model.vocab_size)
    loaded = draft.load()
    report = check_pair(
        target.tokenizer,
        loaded.tokenizer,
        target_vocab_size=target.model.vocab_size,
        draft_vocab_size=loaded.model.vocab_size,
        target_num_parameters=target.num_parameters,
        draft_num_parameters=loaded.num_parameters,
    )
    for warning in report.warnings:
        _logger.warning("%s", warning)
    return _DraftModel(model=loaded.model, num_shared_ids=report.num_shared_ids)


def _new_proposer(
    index: int, spec: DraftSpec, settings: LoadSettings, target: Lane, draft: _DraftModel | None
) -> Proposer:
    if draft is None:
        return NgramProposer(_policy_factory(spec, settings, target.costs, None))
    lane = Lane("draft", draft.model, target.stream, capacity=min(target.capacity, draft.model.context_length))
    lane.measure_costs()
    policy = _policy_factory(spec, settings, target.costs, lane.costs)()
    return ModelProposer(lane, policy, num_shared_ids=draft.num_shared_ids)


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
