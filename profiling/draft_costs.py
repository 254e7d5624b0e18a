"""What the steps of distilled drafts and of their target cost on this machine's CPU, alone and beside each other.

Owns the lanes and the order of the measurements. Knows nothing of how good the drafts are.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from models import (
    Decoder,
    DraftDesign,
    DraftFolder,
    FeatureReader,
    UnsupportedModelError,
    WeightKind,
    bind_draft,
    open_model,
)
from scheduler import (
    CoreShare,
    FeatureLane,
    Lane,
    LaneCosts,
    SourceCosts,
    SpeedModel,
    ThreadStream,
    measure_together,
)

DRAFT_THREADS = 1
_CAPACITY = 512
_MAX_GAMMA = 8


@dataclass(frozen=True, kw_only=True)
class CostSettings:
    """How to measure."""

    weights: WeightKind | None = None
    """How the target's matrices are kept; None is the machine's default."""
    threads: int = 2
    """Intra-op threads of the lane that runs; while both do, the draft has one and the target the others."""
    num_repeats: int = 5
    """Of each draft, in turn with the others; medians count."""


async def measure_draft_costs(
    source: str, drafts: Sequence[DraftFolder], settings: CostSettings, *, report: Callable[[], None] = lambda: None
) -> list[SpeedModel]:
    """The costs of each draft beside the same target, in the order of `drafts`.

    Args:
        source: the target, as `models.open_model` takes it.
        drafts: opened on that target.
        settings: how to measure.
        report: told after each of `num_repeats` times `len(drafts)` measurements.

    Raises:
        UnsupportedModelError: if the lean decoder does not run the target.
        CheckpointError: if a draft's weights cannot be used.
    """
    with ExitStack() as stack:
        target_stream = ThreadStream("target", num_threads=settings.threads)
        stack.callback(target_stream.close)
        draft_stream = ThreadStream("draft", num_threads=settings.threads)
        stack.callback(draft_stream.close)
        keeps_features = any(draft.design is DraftDesign.FEATURE for draft in drafts)
        loading = target_stream.launch(
            lambda: _load_target(source, settings, target_stream, keeps_features=keeps_features), label="load target"
        )
        await target_stream.record()
        target, model = loading.result()
        measured: list[list[SpeedModel]] = [[] for _ in drafts]
        for _ in range(settings.num_repeats):
            for index, draft in enumerate(drafts):
                measured[index].append(await _measured(draft, model, target, draft_stream, settings))
                report()
    return with_common_target([median_costs(models) for models in measured])


def _load_target(
    source: str, settings: CostSettings, stream: ThreadStream, *, keeps_features: bool
) -> tuple[Lane, Decoder]:
    cores = CoreShare(alone=settings.threads, together=max(1, settings.threads - DRAFT_THREADS))
    with open_model(source, weights=settings.weights) as opened:
        loaded = opened.load(thread_counts={cores.alone, cores.together})
    model = loaded.model
    if cores.together not in loaded.thread_counts:
        # A runtime would not split the cores either, as rows would have other bits.
        cores = CoreShare(alone=cores.alone, together=cores.alone)
    if not isinstance(model, Decoder):
        raise UnsupportedModelError(f"transformers would run {model.name}, and no distilled draft can be bound to that")
    lane = Lane("target", model, stream, capacity=_CAPACITY, cores=cores, keeps_features=keeps_features)
    return lane, model


async def _measured(
    draft: DraftFolder, model: Decoder, target: Lane, stream: ThreadStream, settings: CostSettings
) -> SpeedModel:
    """One after the other, then both at once, as a runtime does it when it loads."""
    alone = target.stream.launch(target.measure_costs, writes=(target.cache_buffer,), label="measure target")
    await target.stream.record()
    alone.result()
    loading = stream.launch(lambda: _load_draft(draft, model, stream, settings), label="measure draft")
    await stream.record()
    lane = loading.result()
    await measure_together(target, lane)
    costs = SourceCosts(
        verify=target.costs,
        draft=lane.costs,
        verify_together=target.costs_together,
        draft_together=lane.costs_together,
    ).speed_model(_MAX_GAMMA)
    if costs is None:
        raise RuntimeError("lanes that were measured have no costs")
    return costs


def _load_draft(draft: DraftFolder, model: Decoder, stream: ThreadStream, settings: CostSettings) -> Lane:
    cores = CoreShare(alone=settings.threads, together=DRAFT_THREADS)
    bound = bind_draft(draft, model)
    lane: Lane
    if isinstance(bound, FeatureReader):
        lane = FeatureLane("draft", bound, stream, capacity=_CAPACITY, cores=cores)
    else:
        lane = Lane("draft", bound, stream, capacity=_CAPACITY, cores=cores)
    lane.measure_costs()
    return lane


def median_costs(models: Sequence[SpeedModel]) -> SpeedModel:
    """Each cost's median over several measurements of the same."""
    together = [model.together for model in models if model.together is not None]
    return SpeedModel(
        alone=_median_lane([model.alone for model in models]), together=_median_lane(together) if together else None
    )


def with_common_target(models: Sequence[SpeedModel]) -> list[SpeedModel]:
    """The same with one target for all: alone, it costs the same whatever the draft is."""
    verify_ms = _median_verify_ms([model.alone for model in models])
    return [
        SpeedModel(
            alone=LaneCosts(draft_ms=model.alone.draft_ms, verify_ms=verify_ms),
            # Company never makes anything faster.
            together=None if model.together is None else _at_least(model.together, verify_ms),
        )
        for model in models
    ]


def _at_least(together: LaneCosts, verify_ms: Mapping[int, float]) -> LaneCosts:
    return LaneCosts(
        draft_ms=together.draft_ms,
        verify_ms={width: max(own_ms, verify_ms[width]) for width, own_ms in together.verify_ms.items()},
    )


def _median_lane(costs: Sequence[LaneCosts]) -> LaneCosts:
    return LaneCosts(draft_ms=statistics.median(lane.draft_ms for lane in costs), verify_ms=_median_verify_ms(costs))


def _median_verify_ms(costs: Sequence[LaneCosts]) -> dict[int, float]:
    return {width: statistics.median(lane.verify_ms[width] for lane in costs) for width in costs[0].verify_ms}
