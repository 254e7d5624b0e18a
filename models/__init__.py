"""Checkpoints, the decoder, its cache, tokenizers and draft sources.

The bottom floor: tokens in, logits out. Knows nothing of rounds, requests or text streams.
"""

from __future__ import annotations

from models.openmp import environment_as_given, limit_spinning

limit_spinning()  # before anything imports torch

from models.causal_model import Cache, CausalModel
from models.checkpoint import Checkpoint, open_checkpoint
from models.close_match import closest_name
from models.config import Family, ModelConfig, RopeConfig, RopeScaling
from models.console import BaseConsole, silence_standard_output
from models.decoder import Decoder
from models.draft_folder import (
    DraftDesign,
    DraftFolder,
    DraftTarget,
    is_draft_folder,
    open_draft,
    read_draft_description,
    write_draft,
)
from models.errors import (
    CheckpointError,
    InsufficientMemoryError,
    MissingDependencyError,
    PairError,
    SlipstreamError,
    UnsupportedModelError,
)
from models.feature_model import FeatureReader, FeatureSource
from models.figure import new_figure
from models.fingerprint import WeightFile, fingerprint_files
from models.free_memory import available_memory
from models.gguf_file import GgufFile
from models.linear import CPU_WEIGHT_KIND, WeightKind, default_weight_kind, draft_weight_kind
from models.loading import LoadedModel, OpenModel, open_model
from models.memory import DistilledSize, MemoryEstimate, check_memory, estimate_memory
from models.ngram import NgramIndex, NgramMatch
from models.pair import LARGEST_DRAFT_SHARE, check_pair
from models.positioned_model import PositionedCache, PositionedModel
from models.random_model import QWEN2_5_0_5B, QWEN2_5_7B, TOY_DRAFT, TOY_TARGET, RandomTensors, random_decoder
from models.shallow import FeatureDraft, bind_draft
from models.shipped import SHIPPED_FOLDER, has_shipped_drafts, shipped_draft
from models.thread_counts import intra_op_threads
from models.tokenizer import Tokenizer
from models.user_cache import write_atomically
from models.wrapped_decoder import WrappedDecoder

__all__ = [
    "BaseConsole",
    "CPU_WEIGHT_KIND",
    "Cache",
    "CausalModel",
    "Checkpoint",
    "CheckpointError",
    "Decoder",
    "DistilledSize",
    "DraftDesign",
    "DraftFolder",
    "DraftTarget",
    "Family",
    "FeatureDraft",
    "FeatureReader",
    "FeatureSource",
    "GgufFile",
    "InsufficientMemoryError",
    "LARGEST_DRAFT_SHARE",
    "LoadedModel",
    "MemoryEstimate",
    "MissingDependencyError",
    "ModelConfig",
    "NgramIndex",
    "NgramMatch",
    "OpenModel",
    "PairError",
    "PositionedCache",
    "PositionedModel",
    "QWEN2_5_0_5B",
    "QWEN2_5_7B",
    "RandomTensors",
    "RopeConfig",
    "RopeScaling",
    "SHIPPED_FOLDER",
    "SlipstreamError",
    "TOY_DRAFT",
    "TOY_TARGET",
    "Tokenizer",
    "UnsupportedModelError",
    "WeightFile",
    "WeightKind",
    "WrappedDecoder",
    "available_memory",
    "bind_draft",
    "check_memory",
    "check_pair",
    "closest_name",
    "default_weight_kind",
    "draft_weight_kind",
    "environment_as_given",
    "estimate_memory",
    "fingerprint_files",
    "has_shipped_drafts",
    "intra_op_threads",
    "is_draft_folder",
    "new_figure",
    "open_checkpoint",
    "open_draft",
    "open_model",
    "random_decoder",
    "read_draft_description",
    "shipped_draft",
    "silence_standard_output",
    "write_atomically",
    "write_draft",
]
