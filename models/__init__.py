"""Checkpoints, the decoder, its cache, tokenizers and draft sources.

The bottom floor: tokens in, logits out. Knows nothing of rounds, requests or text streams.
"""

from __future__ import annotations

from models.causal_model import Cache, CausalModel
from models.checkpoint import Checkpoint, open_checkpoint
from models.config import Family, ModelConfig, RopeConfig, RopeScaling
from models.decoder import Decoder
from models.demo import demo_weights
from models.errors import (
    CheckpointError,
    InsufficientMemoryError,
    MissingDependencyError,
    PairError,
    SlipstreamError,
    UnsupportedModelError,
)
from models.linear import WeightKind
from models.loading import LoadedModel, load_model
from models.ngram import NgramIndex, NgramMatch
from models.tokenizer import Tokenizer

__all__ = [
    "Cache",
    "CausalModel",
    "Checkpoint",
    "CheckpointError",
    "Decoder",
    "Family",
    "InsufficientMemoryError",
    "LoadedModel",
    "MissingDependencyError",
    "ModelConfig",
    "NgramIndex",
    "NgramMatch",
    "PairError",
    "RopeConfig",
    "RopeScaling",
    "SlipstreamError",
    "Tokenizer",
    "UnsupportedModelError",
    "WeightKind",
    "demo_weights",
    "load_model",
    "open_checkpoint",
]
