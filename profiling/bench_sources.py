"""Whether the models that a benchmark names can be had, found out before any of them is loaded.

Owns the look into checkpoints and draft folders. Knows nothing of how runs are made.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from models import DraftTarget, ModelConfig, open_checkpoint, open_draft
from profiling.bench_options import BenchSettings
from runtime import EARLY_EXIT_SHARE, LoadSettings
from runtime.draft_spec import DraftKind, DraftSpec


@dataclass(frozen=True, kw_only=True)
class Assistant:
    """What proposes where a peer is assisted."""

    draft: str | None
    """A model, the one that our own systems have too; None where theirs is of a kind that no peer reads."""
    num_layers: int
    """How many of the target's first layers stand in then, as many as our own early exit takes."""


def check_sources(settings: BenchSettings) -> Assistant:
    """Open the target and every draft, read their headers, and close them.

    Raises:
        SlipstreamError: if one of them is missing, damaged, or made for another target.
        ValueError: if early exit is to take more layers than the target has.
    """
    with open_checkpoint(settings.target_source) as checkpoint:
        target = DraftTarget.of(checkpoint)
    assistant = _assistant(None, target.config)
    for number, choice in enumerate(settings.drafts):
        for spec in LoadSettings(target=settings.target, draft=choice.sources).draft_specs():
            _check_draft(spec, target)
            if number == 0 and spec.is_model:
                assistant = _assistant(spec, target.config)
    if settings.assistant is not None:
        open_checkpoint(settings.assistant).close()
        return replace(assistant, draft=settings.assistant)
    return assistant


def _check_draft(spec: DraftSpec, target: DraftTarget) -> None:
    match spec:
        case DraftSpec(kind=DraftKind.MODEL, source=source) if source is not None:
            open_checkpoint(source).close()
        case DraftSpec(kind=DraftKind.DISTILLED, source=source) if source is not None:
            open_draft(source, target)
        case DraftSpec(kind=DraftKind.EARLY_EXIT, num_layers=num_layers) if num_layers is not None:
            if num_layers >= target.config.num_layers:
                raise ValueError(
                    f"early-exit:{num_layers} must name fewer layers than the target's {target.config.num_layers}"
                )


def _assistant(spec: DraftSpec | None, target: ModelConfig) -> Assistant:
    num_layers = max(1, target.num_layers // EARLY_EXIT_SHARE)
    if spec is not None and spec.kind is DraftKind.MODEL:
        return Assistant(draft=str(spec.source), num_layers=num_layers)
    if spec is not None and spec.kind is DraftKind.EARLY_EXIT and spec.num_layers is not None:
        num_layers = spec.num_layers
    return Assistant(draft=None, num_layers=num_layers)
