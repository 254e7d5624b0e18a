"""Which draft sources a runtime gets in the end: what suits the target, and what its device can run.

Owns the choice. Knows nothing of how sources are loaded.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from models import (
    DraftDesign,
    DraftTarget,
    SlipstreamError,
    has_shipped_drafts,
    open_checkpoint,
    read_draft_description,
    shipped_draft,
)
from models.demo import demo_weights
from runtime.draft_spec import DraftKind, DraftSpec
from runtime.load_settings import LoadSettings
from runtime.placement import Placement

_logger = logging.getLogger("slipstream")


async def wanted_sources(settings: LoadSettings) -> tuple[DraftSpec, ...]:
    """The sources that the settings name; `auto` finds the draft that came with the project for this very target.

    Such a draft takes the place of early exit, beside n-gram look-ups.
    """
    specs = settings.draft_specs()
    if not settings.chooses_draft or not specs or not has_shipped_drafts():
        return specs
    folder = await asyncio.to_thread(_shipped_for, settings)
    if folder is None:
        return specs
    return (DraftSpec(kind=DraftKind.NGRAM), folder)


def _shipped_for(settings: LoadSettings) -> DraftSpec | None:
    try:
        source = demo_weights() if settings.target is None else settings.target
        with open_checkpoint(source) as checkpoint:
            folder = shipped_draft(DraftTarget.of(checkpoint))
    except SlipstreamError:
        # Loading the target comes to the same, or transformers can run it.
        return None
    return None if folder is None else DraftSpec(kind=DraftKind.DISTILLED, source=folder)


def sources_on(placement: Placement, settings: LoadSettings, specs: Sequence[DraftSpec]) -> tuple[DraftSpec, ...]:
    """The sources that can be had there: rounds that stay on a device cannot look anything up on the host.

    Raises:
        ValueError: if one that cannot be had was asked for by name.
        CheckpointError: if a distilled draft does not say what it is.
    """
    if not placement.enqueues:
        return tuple(specs)
    is_auto = settings.chooses_draft
    if any(_reads_features(spec) for spec in specs):
        if not is_auto:
            raise ValueError(
                f"a feature-conditioned draft runs on the CPU only so far, not on {placement.device}; name a distilled "
                "draft that reads tokens alone, another draft model or 'early-exit', or load with device='cpu'"
            )
        _logger.info(
            "the draft that came with the project runs on the CPU only; on %s it is left out", placement.device
        )
        specs = settings.draft_specs()
    kept = tuple(spec for spec in specs if spec.is_model)
    if len(kept) == len(specs):
        return kept
    if not is_auto:
        raise ValueError(
            f"draft 'ngram' looks tokens up on the host, which rounds on {placement.device} never ask; name a draft "
            "model or 'early-exit' alone, or load with device='cpu'"
        )
    _logger.warning(
        "n-gram look-ups are left out on %s%s",
        placement.device,
        "" if kept else ", so nothing is drafted: name a draft model, or 'early-exit'",
    )
    return kept


def _reads_features(spec: DraftSpec) -> bool:
    if spec.kind is not DraftKind.DISTILLED or spec.source is None:
        return False
    return read_draft_description(spec.source).design is DraftDesign.FEATURE
