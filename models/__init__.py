"""Checkpoints, the decoder, its cache, tokenizers and draft sources.

The bottom floor: tokens in, logits out. Knows nothing of rounds, requests or text streams.
"""

from __future__ import annotations

from models.causal_model import Cache, CausalModel
from models.config import Family, ModelConfig, RopeConfig, RopeScaling
from models.errors import (
    CheckpointError,
    InsufficientMemoryError,
    MissingDependencyError,
    PairError,
    SlipstreamError,
    UnsupportedModelError,
)
from models.ngram import NgramIndex, NgramMatch

__all__ = [
    "Cache",
    "CausalModel",
    "CheckpointError",
    "Family",
    "InsufficientMemoryError",
    "MissingDependencyError",
    "ModelConfig",
    "NgramIndex",
    "NgramMatch",
    "PairError",
    "RopeConfig",
    "RopeScaling",
    "SlipstreamError",
    "UnsupportedModelError",
]
