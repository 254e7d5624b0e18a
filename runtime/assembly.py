"""From settings to an engine: what is opened, loaded and measured, and on which worker.

Owns the construction of streams, lanes and draft sources. Knows nothing of requests or text.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import torch

from models import (
    CausalModel,
    Decoder,
    DistilledSize,
    DraftDesign,
    DraftFolder,
    FeatureReader,
    LoadedModel,
    MemoryEstimate,
    ModelConfig,
    OpenModel,
    UnsupportedModelError,
    WeightKind,
    available_memory,
    bind_draft,
    check_memory,
    check_pair,
    default_weight_kind,
    draft_weight_kind,
    estimate_memory,
    open_draft,
    open_model,
)
from models.demo import demo_weights
from runtime.draft_choice import sources_on, wanted_sources
from runtime.draft_spec import DraftKind, DraftSpec
from runtime.engine import Engine, close_streams, decoding_loops
from runtime.load_settings import LoadSettings, Mode
from runtime.overlap_watch import OverlapWatch
from runtime.placement import Placement, place
from scheduler import (
    Controller,
    CoreShare,
    FeatureLane,
    FeatureProposer,
    FixedGamma,
    GammaPolicy,
    Lane,
    Launch,
    MachinePace,
    ModelProposer,
    NgramProposer,
    Proposer,
    SourceCosts,
    SpanRecorder,
    check_admission,
    measure_enqueued_together,
    measure_together,
)

DEFAULT_CONTEXT_LENGTH = 8192
EARLY_EXIT_SHARE = 5
"""Early exit takes one layer in this many unless told otherwise."""
_PRIOR_ALPHA = {
    DraftKind.NGRAM: 0.5,
    DraftKind.EARLY_EXIT: 0.3,
    DraftKind.MODEL: 0.6,
    DraftKind.DISTILLED: 0.45,
}
"""Acceptance rate assumed before the first verdict."""

_OpenDraft = OpenModel | DraftFolder | None
"""None where a source has no file of its own."""

_logger = logging.getLogger("slipstream")


async def build_engine(
    settings: LoadSettings, *, rearrange: Callable[[Placement], Placement] = lambda placement: placement
) -> Engine:
    """Load each model on the stream that will run it, so that what is probed and measured there holds there.

    Args:
        settings: what to load.
        rearrange: puts the lanes on other streams than those that were chosen, whose end is then its affair.

    Raises:
        DeviceUnavailableError: if there is no such device.
        ValueError: if a draft source cannot be had on the device.
        SlipstreamError: as the loading functions of `models`.
    """
    specs = await wanted_sources(settings)
    placement = rearrange(await place(settings, specs))
    # Else the first request would take what loading does to the device for others' work.
    loading = contextlib.nullcontext() if placement.probe is None else placement.probe.own_work()
    try:
        with loading:
            return await _engine_on(placement, settings, specs)
    except BaseException:
        await close_streams(placement.target_stream, placement.draft_stream)
        if placement.probe is not None:
            placement.probe.close()
        raise


async def _engine_on(placement: Placement, settings: LoadSettings, specs: Sequence[DraftSpec]) -> Engine:
    draft_stream = placement.draft_stream
    specs = sources_on(placement, settings, specs)
    if placement.enqueues:
        # Launches run where they are made, and loading takes seconds.
        loaded, drafts = await asyncio.to_thread(_launch_loading, settings, specs, placement)
    else:
        loaded, drafts = _launch_loading(settings, specs, placement)
    await draft_stream.record()
    target, sources = loaded.result(), drafts.result()
    if sources.lane is not None and placement.overlaps:
        measure = measure_enqueued_together if placement.enqueues else measure_together
        await measure(target.lane, sources.lane)
    spans = SpanRecorder()
    # In a launch, since what loops keep on a device is filled there, and both streams come after it.
    building = target.lane.stream.launch(
        lambda: decoding_loops(
            settings, target.lane, draft_stream, sources.proposers, residency=placement.residency, spans=spans
        ),
        label="build loops",
    )
    draft_stream.wait(target.lane.stream.record())
    await draft_stream.record()
    return Engine(
        tokenizer=target.target.tokenizer,
        target=target.lane,
        draft_stream=draft_stream,
        proposers=sources.proposers,
        model_sources=frozenset(index for index, spec in enumerate(specs) if spec.is_model),
        weights=target.target.weights,
        num_threads=dataclasses.replace(placement, target_cores=target.cores).num_threads,
        num_draft_threads=placement.num_draft_threads,
        loops=building.result(),
        memory_estimate=target.memory_estimate,
        spans=spans,
        draft_timed=not placement.enqueues,
        probe=placement.probe,
        overlap_watch=None if placement.probe is None else OverlapWatch(placement.probe, sources.controllers),
    )


def _launch_loading(
    settings: LoadSettings, specs: Sequence[DraftSpec], placement: Placement
) -> tuple[Launch[_LoadedTarget], Launch[_LoadedDrafts]]:
    target_stream, draft_stream = placement.target_stream, placement.draft_stream
    loading = target_stream.launch(
        lambda: _load_target(settings, specs, placement), writes=("target.cache",), label="load target"
    )
    draft_stream.wait(target_stream.record())
    drafting = draft_stream.launch(
        lambda: _load_drafts(settings, specs, loading.result(), placement),
        writes=("draft.cache",),
        label="load drafts",
    )
    return loading, drafting


@dataclass(frozen=True, kw_only=True)
class _LoadedTarget:
    """The target on its lane, and the drafts' files, still open."""

    target: LoadedModel
    lane: Lane
    cores: CoreShare | None
    """What the lane got, which is all of them where its rows would differ with fewer."""
    drafts: tuple[_OpenDraft, ...]
    """By source."""
    memory_estimate: MemoryEstimate | None
    files: ExitStack


@dataclass(frozen=True, kw_only=True)
class _LoadedDrafts:
    """The draft sources, and what belongs to them."""

    proposers: tuple[Proposer, ...]
    controllers: tuple[Controller, ...]
    lane: Lane | None
    """Of the draft model, where there is one."""


def _load_target(settings: LoadSettings, specs: Sequence[DraftSpec], placement: Placement) -> _LoadedTarget:
    with ExitStack() as stack:
        source = demo_weights() if settings.target is None else settings.target
        opened = stack.enter_context(open_model(source, weights=settings.weights, device=placement.device))
        drafts = tuple(_open_draft(spec, settings, placement, opened, stack) for spec in specs)
        estimate = _check_memory(settings, placement, opened.config, specs, drafts)
        cores = placement.target_cores
        loaded = opened.load(thread_counts=() if cores is None else {cores.alone, cores.together})
        if cores is not None and cores.together not in loaded.thread_counts:
            # Other threads would mean other bits, and the same seed other tokens.
            cores = CoreShare(alone=cores.alone, together=cores.alone)
        lane = Lane(
            "target",
            loaded.model,
            placement.target_stream,
            capacity=_context_length(settings, loaded.model.context_length),
            cores=cores,
            pace=MachinePace(),
            keeps_features=any(_reads_features(draft) for draft in drafts),
        )
        lane.measure_costs()
        return _LoadedTarget(
            target=loaded, lane=lane, cores=cores, drafts=drafts, memory_estimate=estimate, files=stack.pop_all()
        )


def _load_drafts(
    settings: LoadSettings, specs: Sequence[DraftSpec], loaded: _LoadedTarget, placement: Placement
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
            draft_lane = _draft_lane(draft.model, loaded.lane, placement)
            policy = _policy_factory(spec, settings, _costs_of(loaded.lane, draft_lane), controllers)()
            if isinstance(draft_lane, FeatureLane):
                proposers.append(FeatureProposer(draft_lane, policy, proposable_ids_C=draft.proposable_ids_C))
            else:
                proposers.append(
                    ModelProposer(
                        draft_lane,
                        policy,
                        num_shared_ids=draft.num_shared_ids,
                        proposable_ids_C=draft.proposable_ids_C,
                    )
                )
    return _LoadedDrafts(proposers=tuple(proposers), controllers=tuple(controllers), lane=draft_lane)


def _draft_lane(model: CausalModel, target: Lane, placement: Placement) -> Lane:
    new_lane = (
        partial(FeatureLane, "draft", model) if isinstance(model, FeatureReader) else partial(Lane, "draft", model)
    )
    lane = new_lane(
        placement.draft_stream,
        capacity=min(target.capacity, model.context_length),
        cores=placement.draft_cores,
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


def _open_draft(
    spec: DraftSpec, settings: LoadSettings, placement: Placement, target: OpenModel, stack: ExitStack
) -> _OpenDraft:
    if spec.source is None:
        return None
    if spec.kind is DraftKind.DISTILLED:
        if target.as_target is None:
            raise UnsupportedModelError(
                f"the distilled draft {spec.source} needs its target in the lean decoder, but transformers would run "
                "this one; name another draft"
            )
        return open_draft(spec.source, target.as_target)
    return stack.enter_context(open_model(spec.source, weights=settings.weights, device=placement.device))


def _check_memory(
    settings: LoadSettings,
    placement: Placement,
    target: ModelConfig | None,
    specs: Sequence[DraftSpec],
    drafts: Sequence[_OpenDraft],
) -> MemoryEstimate | None:
    """Refuse before anything large is allocated; models that transformers runs cannot be estimated and pass."""
    if target is None:
        return None
    draft_config = None
    for spec, draft in zip(specs, drafts, strict=True):
        if draft is not None:
            draft_config = draft.config
        elif spec.kind is DraftKind.EARLY_EXIT:
            draft_config = dataclasses.replace(target, num_layers=_num_exit_layers(spec, target))
    has_own_weights = any(isinstance(draft, OpenModel) for draft in drafts)
    weights = settings.weights or default_weight_kind(placement.device)
    draft_kind = draft_weight_kind(weights, placement.device)
    estimate = estimate_memory(
        target,
        context_length=_context_length(settings, target.context_length),
        target_weights=weights,
        draft=draft_config,
        draft_weights=weights if has_own_weights else None,
        distilled=next((_size_of(draft, draft_kind) for draft in drafts if isinstance(draft, DraftFolder)), None),
    )
    available = available_memory(placement.device)
    check_memory(estimate, available)
    if placement.probe is not None:
        # The driver's own count, in which other processes show as soon as they allocate.
        check_admission(max(0, estimate.total_bytes - available.kept_bytes), placement.probe.read())
    return estimate


def _size_of(draft: DraftFolder, weights: WeightKind) -> DistilledSize:
    return DistilledSize(
        cut_head_size=None if draft.head_token_ids_C is None else draft.head_size,
        reads_features=_reads_features(draft),
        weights=weights,
    )


def _reads_features(draft: _OpenDraft) -> bool:
    return isinstance(draft, DraftFolder) and draft.design is DraftDesign.FEATURE


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
        return max(1, target.num_layers // EARLY_EXIT_SHARE)
    if spec.num_layers >= target.num_layers:
        raise ValueError(
            f"early-exit:{spec.num_layers} must name fewer layers than the target's {target.num_layers}; "
            f"about {max(1, target.num_layers // EARLY_EXIT_SHARE)} is a good start"
        )
    return spec.num_layers


@dataclass(frozen=True, kw_only=True)
class _DraftModel:
    """A draft that fits its target."""

    model: CausalModel
    num_shared_ids: int
    proposable_ids_C: torch.Tensor | None = None
    """Of a cut head."""


def _draft_model(spec: DraftSpec, draft: _OpenDraft, loaded_target: _LoadedTarget) -> _DraftModel | None:
    if not spec.is_model:
        return None
    target = loaded_target.target
    if not isinstance(draft, OpenModel):
        if not isinstance(target.model, Decoder):
            raise UnsupportedModelError(f"early exit needs the lean decoder, but transformers runs {target.model.name}")
        model = (
            target.model.first_layers(_num_exit_layers(spec, target.model.config))
            if draft is None
            else bind_draft(draft, target.model)
        )
        head_ids_C = None if draft is None else draft.head_token_ids_C
        return _DraftModel(
            model=model,
            num_shared_ids=model.vocab_size,
            proposable_ids_C=None if head_ids_C is None else head_ids_C.to(model.device, torch.int64),
        )
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
        return lambda: FixedGamma(fixed, prior_alpha=_PRIOR_ALPHA[spec.kind])

    def new_controller() -> Controller:
        controller = Controller(
            max_gamma=settings.max_gamma, costs=costs, prior_alpha=_PRIOR_ALPHA[spec.kind], fixed_gamma=fixed
        )
        controllers.append(controller)
        return controller

    return new_controller
