"""From settings to an engine: what is opened, loaded and measured, and on which worker.

Owns the construction of streams, lanes and draft sources. Knows nothing of requests or text.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import torch

from models import (
    CausalModel,
    Decoder,
    LoadedModel,
    ModelConfig,
    OpenModel,
    UnsupportedModelError,
    available_memory,
    check_memory,
    check_pair,
    estimate_memory,
    open_model,
)
from models.demo import demo_weights
from runtime.draft_spec import DraftKind, DraftSpec
from runtime.engine import Engine, close_streams, decoding_loops
from runtime.load_settings import LoadSettings, Mode
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
    Stream,
    ThreadStream,
)

DEFAULT_CONTEXT_LENGTH = 8192
DRAFT_THREADS = 1
"""Intra-op threads of a draft model beside its target: it is small, and what it has the target lacks."""
_EARLY_EXIT_SHARE = 5
"""Early exit takes one layer in this many unless told otherwise."""
_PRIOR_ALPHA = {DraftKind.NGRAM: 0.5, DraftKind.EARLY_EXIT: 0.3, DraftKind.MODEL: 0.6}
"""Acceptance rate assumed before the first verdict."""

_logger = logging.getLogger("slipstream")


async def build_engine(settings: LoadSettings) -> Engine:
    """Load each model on the worker that will run it, so that what is probed and measured there holds there.

    Raises:
        SlipstreamError: as the loading functions of `models`.
    """
    specs = settings.draft_specs()
    target_stream, draft_stream = _new_streams(settings, specs)
    try:
        loading = target_stream.launch(
            lambda: _load_target(settings, specs, target_stream), writes=("target.cache",), label="load target"
        )
        draft_stream.wait(target_stream.record())
        drafting = draft_stream.launch(
            lambda: _load_drafts(settings, specs, loading.result(), draft_stream),
            writes=("draft.cache",),
            label="load drafts",
        )
        await draft_stream.record()
    except BaseException:
        await close_streams(target_stream, draft_stream)
        raise
    loaded, proposers = loading.result(), drafting.result()
    num_draft_threads = DRAFT_THREADS if _has_own_threads(settings, specs) else 0
    return Engine(
        tokenizer=loaded.target.tokenizer,
        target=loaded.lane,
        draft_stream=draft_stream,
        proposers=proposers,
        model_sources=frozenset(index for index, spec in enumerate(specs) if spec.is_model),
        weights=loaded.target.weights,
        num_threads=loaded.num_threads + num_draft_threads,
        num_draft_threads=num_draft_threads,
        loops=decoding_loops(settings, loaded.lane, draft_stream, proposers),
    )


def _has_own_threads(settings: LoadSettings, specs: Sequence[DraftSpec]) -> bool:
    return settings.mode is Mode.PIPELINED and any(spec.is_model for spec in specs)


def _new_streams(settings: LoadSettings, specs: Sequence[DraftSpec]) -> tuple[Stream, Stream]:
    """The target's and the draft's.

    Where they take turns, one worker serves both, and no second pool of threads stands in its way. Where they work at
    once and the draft only looks things up, the target keeps all threads.
    """
    if settings.mode is not Mode.PIPELINED:
        stream = ThreadStream("target", num_threads=settings.threads)
        return stream, stream
    num_threads = settings.threads or torch.get_num_threads()
    if _has_own_threads(settings, specs):
        num_threads = max(1, num_threads - DRAFT_THREADS)
    return ThreadStream("target", num_threads=num_threads), ThreadStream("draft", num_threads=DRAFT_THREADS)


@dataclass(frozen=True, kw_only=True)
class _LoadedTarget:
    """The target on its lane, and the drafts' files, still open."""

    target: LoadedModel
    lane: Lane
    num_threads: int
    drafts: tuple[OpenModel | None, ...]
    """By source; None where it has no file of its own."""
    files: ExitStack


def _load_target(settings: LoadSettings, specs: Sequence[DraftSpec], stream: Stream) -> _LoadedTarget:
    with ExitStack() as stack:
        source = demo_weights() if settings.target is None else settings.target
        opened = stack.enter_context(open_model(source, weights=settings.weights))
        drafts = tuple(_open_draft(spec, settings, stack) for spec in specs)
        _check_memory(settings, opened.config, specs, drafts)
        loaded = opened.load()
        lane = Lane("target", loaded.model, stream, capacity=_context_length(settings, loaded.model.context_length))
        lane.measure_costs()
        return _LoadedTarget(
            target=loaded, lane=lane, num_threads=torch.get_num_threads(), drafts=drafts, files=stack.pop_all()
        )


def _load_drafts(
    settings: LoadSettings, specs: Sequence[DraftSpec], loaded: _LoadedTarget, stream: Stream
) -> tuple[Proposer, ...]:
    with loaded.files:
        return tuple(
            _new_proposer(spec, settings, loaded, draft, stream)
            for spec, draft in zip(specs, loaded.drafts, strict=True)
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
    if not spec.is_model:
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
    spec: DraftSpec, settings: LoadSettings, loaded: _LoadedTarget, opened: OpenModel | None, stream: Stream
) -> Proposer:
    target = loaded.lane
    draft = _draft_model(spec, opened, loaded.target)
    if draft is None:
        return NgramProposer(_policy_factory(spec, settings, target.costs, None))
    if opened is None and isinstance(draft.model, Decoder) and torch.get_num_threads() != loaded.num_threads:
        # Early exit takes over the widths that were found with the target's number of threads.
        draft.model.probe()
    lane = Lane("draft", draft.model, stream, capacity=min(target.capacity, draft.model.context_length))
    lane.measure_costs()
    policy = _policy_factory(spec, settings, target.costs, lane.costs)()
    return ModelProposer(lane, policy, num_shared_ids=draft.num_shared_ids)


def _policy_factory(
    spec: DraftSpec, settings: LoadSettings, verify_costs: BlockCosts, draft_costs: BlockCosts | None
) -> Callable[[], GammaPolicy]:
    fixed = settings.fixed_gamma
    if fixed is not None:
        return lambda: FixedGamma(fixed)
    return lambda: Controller(
        max_gamma=settings.max_gamma,
        costs=SourceCosts(verify=verify_costs, draft=draft_costs),
        prior_alpha=_PRIOR_ALPHA[spec.kind],
    )
