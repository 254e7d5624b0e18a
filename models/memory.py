"""How much memory a pair will take, before any of it is allocated.

Owns the estimate and its comparison with what is free. Knows nothing of files or of how the
memory is used.
"""

from __future__ import annotations

from dataclasses import dataclass

from models.call_widths import VERIFY_BLOCK, WIDE_WIDTHS
from models.config import ModelConfig
from models.decoder_weights import key_value_dtype
from models.errors import InsufficientMemoryError
from models.free_memory import AvailableMemory
from models.kv_cache import KEY_BUCKET, key_length_at
from models.linear import MatrixKinds, WeightKind

_FLOAT32_BYTES = 4
_LOGIT_COPIES = 4
"""Logits, filtered log probabilities, noise and their sum, for each row of a verify."""


@dataclass(frozen=True, kw_only=True)
class MemoryEstimate:
    """What target and draft take together, in bytes."""

    weight_bytes: int
    cache_bytes: int
    """Keys and values of both models at `context_length`, padding included."""
    working_bytes: int
    """The larger of a widest call's activations and of the float32 copies made while weights are packed."""
    context_length: int
    """Tokens that each cache holds."""
    cache_bytes_per_token: int
    """What one more token of context costs in both caches together."""

    @property
    def total_bytes(self) -> int:
        """Everything together."""
        return self.weight_bytes + self.cache_bytes + self.working_bytes

    def context_length_within(self, available_bytes: int) -> int:
        """The longest context that fits into `available_bytes`; 0 where not even the weights do."""
        fixed = self.total_bytes - self.context_length * self.cache_bytes_per_token
        # Caches grow by whole key buckets.
        num_tokens = (available_bytes - fixed) // self.cache_bytes_per_token
        return max(0, num_tokens // KEY_BUCKET * KEY_BUCKET)


@dataclass(frozen=True, kw_only=True)
class DistilledSize:
    """What a distilled draft has of its own beside its layers, as far as it takes memory."""

    cut_head_size: int | None
    """Rows of its head; None where it has the target's."""
    reads_features: bool
    weights: WeightKind
    """How its own matrices are kept (`models.linear.draft_weight_kind`)."""


def num_parameters(config: ModelConfig) -> int:
    """Weights of a decoder; tied embeddings count once."""
    embeddings = config.vocab_size * config.hidden_size * (1 if config.tie_embeddings else 2)
    matrices = sum(rows * columns for rows, columns in _layer_matrices(config).values())
    norms = 2 * config.hidden_size + (2 * config.head_dim if config.qk_norm else 0)
    return embeddings + config.num_layers * (matrices + norms + _layer_biases(config)) + config.hidden_size


def estimate_memory(
    target: ModelConfig,
    *,
    context_length: int,
    target_weights: WeightKind | MatrixKinds = WeightKind.FLOAT16,
    draft: ModelConfig | None = None,
    draft_weights: WeightKind | MatrixKinds | None = None,
    distilled: DistilledSize | None = None,
    max_block: int = max(WIDE_WIDTHS),
) -> MemoryEstimate:
    """Add up weights, both caches and the widest call.

    Args:
        target: the target's shape.
        context_length: tokens that each cache shall hold.
        target_weights: how the target's matrices are kept.
        draft: the draft's shape; None where no model drafts.
        draft_weights: how the draft's matrices are kept; None where it shares the target's, as early exit does.
        distilled: what a draft that shares only the embedding has of its own.
        max_block: most tokens of one call.

    Raises:
        ValueError: if `context_length` or `max_block` is below 1.
    """
    for name, value in (("context_length", context_length), ("max_block", max_block)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    models = [target] if draft is None else [target, draft]
    weight_bytes = _weight_bytes(target, target_weights)
    if draft is not None and draft_weights is not None:
        weight_bytes += _weight_bytes(draft, draft_weights)
    if draft is not None and distilled is not None:
        weight_bytes += _distilled_weight_bytes(draft, distilled)
    num_positions = key_length_at(context_length + max(WIDE_WIDTHS) - 1)
    per_token = _cache_bytes_per_token(target, target_weights)
    if draft is not None:
        per_token += _cache_bytes_per_token(draft, target_weights if draft_weights is None else draft_weights)
    if distilled is not None and distilled.reads_features:
        # Both lanes keep them.
        per_token += 2 * _FLOAT32_BYTES * target.hidden_size
    return MemoryEstimate(
        weight_bytes=weight_bytes,
        cache_bytes=num_positions * per_token,
        working_bytes=max(
            sum(_activation_bytes(config, max_block, num_positions) for config in models),
            # One matrix is widened and one rearranged at a time, in each of two loading threads.
            max(2 * _largest_matrix(config) * _FLOAT32_BYTES for config in models),
        ),
        context_length=context_length,
        cache_bytes_per_token=per_token,
    )


def check_memory(estimate: MemoryEstimate, available: AvailableMemory) -> None:
    """Refuse what would not fit; where the free memory is unknown, let it pass.

    Raises:
        InsufficientMemoryError: states the estimate, what is free, and the context length that would fit.
    """
    if available.num_bytes is None or estimate.total_bytes <= available.num_bytes:
        return
    fitting = estimate.context_length_within(available.num_bytes)
    way_out = (
        f"a context length of {fitting} would fit"
        if fitting
        else "no context length would fit; choose a smaller model or smaller weights (bfloat16, float16, int8)"
    )
    raise InsufficientMemoryError(
        f"the models need about {_mebibytes(estimate.total_bytes)} (weights {_mebibytes(estimate.weight_bytes)}, "
        f"caches for {estimate.context_length} tokens {_mebibytes(estimate.cache_bytes)}, work "
        f"{_mebibytes(estimate.working_bytes)}), but {_mebibytes(available.num_bytes)} are free "
        f"({available.reason}); {way_out}"
    )


def _layer_matrices(config: ModelConfig) -> dict[str, tuple[int, int]]:
    """Output and input features of one layer's four fused matrices."""
    query_width = config.num_heads * config.head_dim
    key_value_width = 2 * config.num_kv_heads * config.head_dim
    return {
        "qkv": (query_width + key_value_width, config.hidden_size),
        "output": (config.hidden_size, query_width),
        "gate_up": (2 * config.intermediate_size, config.hidden_size),
        "down": (config.hidden_size, config.intermediate_size),
    }


def _layer_biases(config: ModelConfig) -> int:
    rows = {name: shape[0] for name, shape in _layer_matrices(config).items()}
    return (
        rows["qkv"] * config.qkv_bias
        + rows["output"] * config.output_bias
        + (rows["gate_up"] + rows["down"]) * config.mlp_bias
    )


def _largest_matrix(config: ModelConfig) -> int:
    return max(config.vocab_size * config.hidden_size, *(r * c for r, c in _layer_matrices(config).values()))


def _weight_bytes(config: ModelConfig, weights: WeightKind | MatrixKinds) -> int:
    kinds = _kinds(weights)
    head_shape = (config.vocab_size, config.hidden_size)
    embedding = _matrix_bytes(
        head_shape, WeightKind.FLOAT32 if kinds.head is WeightKind.FLOAT32 else WeightKind.FLOAT16
    )
    # FBGEMM's float16 head is a copy. On CUDA a float16 one is not, but better too much than too little.
    shared = config.tie_embeddings and kinds.head in {WeightKind.FLOAT32, WeightKind.BFLOAT16}
    head = 0 if shared else _matrix_bytes(head_shape, kinds.head)
    return config.num_layers * _layer_bytes(config, kinds) + embedding + head + _FLOAT32_BYTES * config.hidden_size


def _distilled_weight_bytes(config: ModelConfig, distilled: DistilledSize) -> int:
    kinds = MatrixKinds.of(distilled.weights)
    hidden = config.hidden_size
    num_bytes = config.num_layers * _layer_bytes(config, kinds)
    if distilled.cut_head_size is not None:
        num_bytes += _matrix_bytes((distilled.cut_head_size, hidden), kinds.head)
    if distilled.reads_features:
        num_bytes += _matrix_bytes((hidden, 2 * hidden), kinds.qkv) + 2 * _FLOAT32_BYTES * hidden
    return num_bytes


def _layer_bytes(config: ModelConfig, kinds: MatrixKinds) -> int:
    matrices = (_matrix_bytes(shape, getattr(kinds, name)) for name, shape in _layer_matrices(config).items())
    return sum(matrices) + _FLOAT32_BYTES * (2 * config.hidden_size + _layer_biases(config))


def _matrix_bytes(shape: tuple[int, int], kind: WeightKind) -> int:
    rows, columns = shape
    if kind is WeightKind.INT8:
        return rows * columns + 12 * rows  # a scale, a zero point and a column sum for each row
    return rows * columns * (_FLOAT32_BYTES if kind is WeightKind.FLOAT32 else 2)


def _cache_bytes_per_token(config: ModelConfig, weights: WeightKind | MatrixKinds) -> int:
    num_values = 2 * config.num_layers * config.num_kv_heads * config.head_dim
    return num_values * key_value_dtype(_kinds(weights)).itemsize


def _kinds(weights: WeightKind | MatrixKinds) -> MatrixKinds:
    return MatrixKinds.of(weights) if isinstance(weights, WeightKind) else weights


def _activation_bytes(config: ModelConfig, max_block: int, num_positions: int) -> int:
    """One layer's rows, the attention mask of all query heads of a group, and a verify's logits."""
    widths = sum(rows for rows, _ in _layer_matrices(config).values()) + 2 * config.hidden_size
    mask = num_positions * (config.num_heads // config.num_kv_heads)
    rows = min(VERIFY_BLOCK, max_block)
    return _FLOAT32_BYTES * (max_block * (widths + mask) + _LOGIT_COPIES * rows * config.vocab_size)


def _mebibytes(num_bytes: int) -> str:
    return f"{num_bytes / (1 << 20):,.0f} MiB"
