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
    Controller,
    CoreShare,
    FixedGamma,
    GammaPolicy,
    Lane,
    MachinePace,
    ModelProposer,
    NgramProposer,
    Proposer,
    SourceCosts,
    Stream,
    ThreadStream,
    measure_together,
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
    plan = _plan_threads(settings, specs)
    target_stream, draft_stream = _new_streams(settings, plan)
    try:
        loading = target_stream.launch(
            lambda: _load_target(settings, specs, plan, target_stream), writes=("target.cache",), label="load target"
        )
        draft_stream.wait(target_stream.record())
        drafting = draft_stream.launch(
            lambda: _load_drafts(settings, specs, loading.result(), draft_stream),
            writes=("draft.cache",),
            label="load drafts",
        )
        await draft_stream.record()
        loaded, drafts = loading.result(), drafting.result()
        if drafts.lane is not None and plan.overlaps:
            await measure_together(loaded.lane, drafts.lane)
    except BaseException:
        await close_streams(target_stream, draft_stream)
        raise
    return Engine(
        tokenizer=loaded.target.tokenizer,
        target=loaded.lane,
        draft_stream=draft_stream,
        proposers=drafts.proposers,
        model_sources=frozenset(index for index, spec in enumerate(specs) if spec.is_model),
        weights=loaded.target.weights,
        num_threads=plan.total,
        num_draft_threads=DRAFT_THREADS if plan.overlaps else 0,
        loops=decoding_loops(settings, loaded.lane, draft_stream, drafts.proposers),
        controllers=drafts.controllers,
    )


@dataclass(frozen=True, kw_only=True)
class _ThreadPlan:
    """Who computes with how many intra-op threads."""

    num_threads: int
    """Of a lane that works alone."""
    overlaps: bool
    """Whether a draft model may work beside the target."""

    @property
    def total(self) -> int:
        """Most threads that work at once: one is the least for each lane."""
        return max(self.num_threads, DRAFT_THREADS + 1) if self.overlaps else self.num_threads

    @property
    def target(self) -> CoreShare:
        """The target's share of them."""
        together = self.num_threads - DRAFT_THREADS if self.overlaps else self.num_threads
        return CoreShare(alone=self.num_threads, together=max(1, together))

    @property
    def draft(self) -> CoreShare:
        """The draft's."""
        return CoreShare(alone=self.num_threads, together=DRAFT_THREADS if self.overlaps else self.num_threads)


def _plan_threads(settings: LoadSettings, specs: Sequence[DraftSpec]) -> _ThreadPlan:
    """One thread for two lanes is no choice to make: they take turns, unless overlap was asked for in so many words."""
    num_threads = settings.threads or torch.get_num_threads()
    wanted = settings.mode is Mode.PIPELINED or (settings.mode is Mode.AUTO and num_threads > DRAFT_THREADS)
    overlaps = wanted and any(spec.is_model for spec in specs)
    return _ThreadPlan(num_threads=num_threads, overlaps=overlaps)


def _new_streams(settings: LoadSettings, plan: _ThreadPlan) -> tuple[Stream, Stream]:
    """The target's and the draft's.

    Where they take turns, one worker serves both, and no second pool of threads stands in its way. A draft that only
    looks things up has a worker of its own where that was asked for in so many words.
    """
    target_stream = ThreadStream("target", num_threads=plan.num_threads)
    if plan.overlaps:
        return target_stream, ThreadStream("draft", num_threads=plan.num_threads)
    if settings.mode is Mode.PIPELINED:
        return target_stream, ThreadStream("draft", num_threads=DRAFT_THREADS)
    return target_stream, target_stream


@dataclass(frozen=True, kw_only=True)
class _LoadedTarget:
    """The target on its lane, and the drafts' files, still open."""

    target: LoadedModel
    lane: Lane
    plan: _ThreadPlan
    drafts: tuple[OpenModel | None, ...]
    """By source; None where it has no file of its own."""
    files: ExitStack


@dataclass(frozen=True, kw_only=True)
class _LoadedDrafts:
    """The draft sources, and what belongs to them."""

    proposers: tuple[Proposer, ...]
    controllers: tuple[Controller, ...]
    lane: Lane | None
    """Of the draft model, where there is one."""


def _load_target(
    settings: LoadSettings, specs: Sequence[DraftSpec], plan: _ThreadPlan, stream: Stream
) -> _LoadedTarget:
    with ExitStack() as stack:
        source = demo_weights() if settings.target is None else settings.target
        opened = stack.enter_context(open_model(source, weights=settings.weights))
        drafts = tuple(_open_draft(spec, settings, stack) for spec in specs)
        _check_memory(settings, opened.config, specs, drafts)
        cores = plan.target
        loaded = opened.load(thread_counts={cores.alone, cores.together})
        if cores.together not in loaded.thread_counts:
            # Other threads would mean other bits, and the same seed other tokens.
            cores = CoreShare(alone=cores.alone, together=cores.alone)
        lane = Lane(
            "target",
            loaded.model,
            stream,
            capacity=_context_length(settings, loaded.model.context_length),
            cores=cores,
            pace=MachinePace(),
        )
        lane.measure_costs()
        return _LoadedTarget(target=loaded, lane=lane, plan=plan, drafts=drafts, files=stack.pop_all())


def _load_drafts(
    settings: LoadSettings, specs: Sequence[DraftSpec], loaded: _LoadedTarget, stream: Stream
) -> _LoadedDrafts:
    controllers: list[Controller] = []
    proposers: list[Proposer] = []
    draft_lane = None
    with loaded.files:
        for spec, opened in zip(specs, loaded.drafts, strict=True):
            draft = _draft_model(spec, opened, loaded)
            if draft is None:
                costs = SourceCosts(verify=loaded.lane.costs, draft=None)
                proposers.append(NgramProposer(_policy_factory(spec, settings, costs, controllers)))
                continue
            draft_lane = _draft_lane(draft.model, loaded, stream)
            policy = _policy_factory(spec, settings, _costs_of(loaded.lane, draft_lane), controllers)()
            proposers.append(ModelProposer(draft_lane, policy, num_shared_ids=draft.num_shared_ids))
    return _LoadedDrafts(proposers=tuple(proposers), controllers=tuple(controllers), lane=draft_lane)


def _draft_lane(model: CausalModel, loaded: _LoadedTarget, stream: Stream) -> Lane:
    target = loaded.lane
    lane = Lane(
        "draft",
        model,
        stream,
        capacity=min(target.capacity, model.context_length),
        cores=loaded.plan.draft,
        pace=target.pace,
    )
    lane.measure_costs()
    return lane


def _costs_of(target: Lane, draft: Lane) -> SourceCosts:
    return SourceCosts(
        verify=target.costs,
        draft=draft.costs,
        verify_together=target.costs_together,
        draft_together=draft.costs_together,
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


def _draft_model(spec: DraftSpec, draft: OpenModel | None, loaded_target: _LoadedTarget) -> _DraftModel | None:
    if not spec.is_model:
        return None
    target = loaded_target.target
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


def _policy_factory(
    spec: DraftSpec, settings: LoadSettings, costs: SourceCosts, controllers: list[Controller]
) -> Callable[[], GammaPolicy]:
    """Makes a source's policies, and notes those that choose."""
    fixed = settings.fixed_gamma
    if fixed is not None and settings.mode is not Mode.AUTO:
        return lambda: FixedGamma(fixed)

    def new_controller() -> Controller:
        controller = Controller(
            max_gamma=settings.max_gamma, costs=costs, prior_alpha=_PRIOR_ALPHA[spec.kind], fixed_gamma=fixed
        )
        controllers.append(controller)
        return controller

    return new_controller
