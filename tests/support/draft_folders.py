"""Distilled drafts that nobody has trained: random layers for a given target.

Shape suffix: C tokens of a cut head.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import torch

from models.config import ModelConfig
from models.draft_folder import HEAD_TOKEN_IDS, DraftDesign, DraftTarget, draft_tensors, write_draft


def random_draft_tensors(
    config: ModelConfig,
    design: DraftDesign,
    *,
    num_layers: int = 1,
    head_size: int | None = None,
    seed: int = 11,
    dtype: torch.dtype = torch.float16,
) -> dict[str, torch.Tensor]:
    """All tensors of a draft for a target of that config."""
    generator = torch.Generator().manual_seed(seed)
    config = dataclasses.replace(config, num_layers=num_layers)
    tensors = {
        name: (
            torch.rand(shape, generator=generator) + 0.5
            if "norm" in name
            else torch.randn(shape, generator=generator) * 0.15
        ).to(dtype)
        for name, shape in draft_tensors(config, design)
    }
    if head_size is not None:
        ids_C = torch.randperm(config.vocab_size, generator=generator)[:head_size]
        tensors[HEAD_TOKEN_IDS] = ids_C.sort().values.to(torch.int32)
    return tensors


def write_random_draft(
    folder: Path,
    target: DraftTarget,
    design: DraftDesign,
    *,
    num_layers: int = 1,
    head_size: int | None = None,
    seed: int = 11,
) -> Path:
    """Such a draft as a folder."""
    tensors = random_draft_tensors(target.config, design, num_layers=num_layers, head_size=head_size, seed=seed)
    return write_draft(folder, design=design, num_layers=num_layers, target=target, tensors=tensors)
