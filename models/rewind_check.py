"""Which transformers models can be rolled back exactly, by what they say and by what they do.

Owns the refusals. Knows of the adapter only that it is a causal model. What a configuration says is not
enough: a model that builds its own masks, or sees the future, shows only when it runs.

Shape suffixes: T tokens of a call, V vocabulary; the leading 1 is the batch.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Protocol

import torch

from models.causal_model import CausalModel
from models.errors import UnsupportedModelError
from models.kv_cache import KEY_BUCKET

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from models.rewindable_cache import LayerShape, RewindableCache

EXACT_LAYER_TYPES = frozenset({"full_attention", "sliding_attention"})
"""Layers whose past is one key and one value for each position. A sliding window is only a mask over these."""


class Adapter(CausalModel, Protocol):
    """The model under check, behind the project's protocol."""

    def new_cache(self, capacity: int) -> RewindableCache:
        """As in `CausalModel`."""
        ...


def refuse_unless_rewindable(model: PreTrainedModel) -> None:
    """Raise UnsupportedModelError, naming the class, where it is known beforehand that the past cannot be cut back."""
    class_name, config = type(model).__name__, model.config
    if config.is_encoder_decoder:
        raise UnsupportedModelError(f"{class_name} is an encoder-decoder; Slipstream runs decoder-only models")
    if getattr(model, "_is_stateful", False):
        raise UnsupportedModelError(
            f"{class_name} carries a recurrent or convolutional state, which cannot be cut back to an earlier token"
        )
    if not model.can_generate():
        raise UnsupportedModelError(f"{class_name} has no language-modelling head; load it as AutoModelForCausalLM")
    layer_types = set(getattr(config.get_text_config(decoder=True), "layer_types", None) or ())
    if layer_types - EXACT_LAYER_TYPES:
        raise UnsupportedModelError(
            f"{class_name} has layers of type {', '.join(sorted(layer_types - EXACT_LAYER_TYPES))}; "
            f"only {', '.join(sorted(EXACT_LAYER_TYPES))} can be rolled back exactly"
        )
    if "cache" not in inspect.signature(model.forward).parameters:
        raise UnsupportedModelError(f"{class_name} takes no key/value cache that could be rolled back")
    attention = getattr(config, "_attn_implementation", None)
    if attention not in {"sdpa", "eager"}:
        raise UnsupportedModelError(
            f"{class_name} was loaded with {attention} attention, which takes no mask over a preallocated cache; "
            "load it with attn_implementation='sdpa'"
        )


def stated_context_length(model: PreTrainedModel) -> int:
    """How many positions the model's configuration grants it.

    Raises:
        ValueError: if it states none.
    """
    config = model.config.get_text_config(decoder=True)
    names = ("max_position_embeddings", "max_seq_len", "seq_length")
    found: list[int] = [getattr(config, name) for name in names if isinstance(getattr(config, name, None), int)]
    if not found:
        raise ValueError(f"{type(model).__name__}'s configuration has none of {', '.join(names)}: give context_length")
    return min([found[0], *_positions_before_rescaling(getattr(config, "rope_parameters", None))])


def measure_layers(model: PreTrainedModel) -> tuple[tuple[LayerShape, ...], int]:
    """The cache shape of each layer and the width of a logit row, from one token with transformers' own cache.

    Raises:
        UnsupportedModelError: if not every layer caches keys and values.
    """
    from transformers import DynamicCache

    from models.rewindable_cache import LayerShape

    config = model.config.get_text_config(decoder=True)
    cache = DynamicCache(config=config)
    ids_1T = torch.zeros(1, 1, dtype=torch.int64, device=model.device)
    logits_1TV = model(input_ids=ids_1T, cache=cache, use_cache=True).logits
    keys_values = [(layer.keys, layer.values) for layer in cache.layers if getattr(layer, "keys", None) is not None]
    if len(keys_values) != config.num_hidden_layers:
        raise UnsupportedModelError(
            f"{type(model).__name__} caches keys and values in {len(keys_values)} of its {config.num_hidden_layers} "
            "layers; only models that do so in every layer can be rolled back exactly"
        )
    shapes = tuple(
        LayerShape(
            num_kv_heads=keys.shape[1],
            key_dim=keys.shape[3],
            value_dim=values.shape[3],
            dtype=keys.dtype,
            device=keys.device,
        )
        for keys, values in keys_values
    )
    return shapes, logits_1TV.shape[-1]


def check_rollback(adapter: Adapter, model: PreTrainedModel) -> None:
    """Compare blocks with a rollback between them against one pass of `model` without any cache.

    Raises:
        UnsupportedModelError: if the logits differ.
    """
    num_tokens = min(12, adapter.context_length)
    ids_T = random_ids(num_tokens, adapter.vocab_size, adapter.device)
    expected_TV = model(input_ids=ids_T[None], use_cache=False).logits[0]
    cache = adapter.new_cache(num_tokens)
    kept = num_tokens // 2
    if kept:
        adapter.forward(ids_T[:kept], cache, num_logits=0)
    adapter.forward(ids_T.flip(0)[kept:], cache, num_logits=0)
    cache.rollback(kept)
    _compare(model, adapter.forward(ids_T[kept:], cache, num_logits=num_tokens - kept), expected_TV[kept:])


def check_long_past(adapter: Adapter, model: PreTrainedModel) -> None:
    """Compare a block behind a past longer than any window against `model` over transformers' own growing cache.

    Raises:
        UnsupportedModelError: if the logits differ.
    """
    from transformers import DynamicCache

    config = model.config.get_text_config(decoder=True)
    windows = [size for name, size in config.to_dict().items() if "window" in name and isinstance(size, int)]
    num_tokens = min(4, adapter.context_length)
    num_past = min(max(windows, default=0) + 2 * KEY_BUCKET, adapter.context_length - num_tokens)
    if num_past == 0:
        return
    ids_T = random_ids(num_tokens, adapter.vocab_size, adapter.device)
    cache = adapter.new_cache(num_past + num_tokens)
    cache.fill_at_random()
    cache.advance(num_past)
    growing = DynamicCache(config=config)
    buffers = iter(cache.buffers())
    for index, (keys, values) in enumerate(zip(buffers, buffers, strict=True)):
        growing.update(keys[:, :, :num_past].clone(), values[:, :, :num_past].clone(), index)
    expected_TV = model(input_ids=ids_T[None], cache=growing, use_cache=True).logits[0]
    _compare(model, adapter.forward(ids_T, cache, num_logits=num_tokens), expected_TV)


def random_ids(num_tokens: int, vocab_size: int, device: torch.device) -> torch.Tensor:
    """Token ids that are the same at every call."""
    return torch.randint(vocab_size, (num_tokens,), generator=torch.Generator().manual_seed(num_tokens)).to(device)


def _compare(model: PreTrainedModel, rows_TV: torch.Tensor, expected_TV: torch.Tensor) -> None:
    worst = float((rows_TV - expected_TV.float()).abs().max())
    tolerance = 1e-3 if model.dtype == torch.float32 else 0.1
    # Written so that a NaN is refused too.
    if not worst <= tolerance * max(float(expected_TV.float().std()), 1e-6):
        raise UnsupportedModelError(
            f"{type(model).__name__} gives other logits over a preallocated cache (by {worst:.3g}) "
            "than by itself, so it cannot be rolled back exactly"
        )


def _positions_before_rescaling(rope_parameters: Any) -> list[int]:
    """LongRoPE rotates by other angles once a text outgrows the original context, also what is cached already."""
    if not isinstance(rope_parameters, dict):
        return []
    found = [number for nested in rope_parameters.values() for number in _positions_before_rescaling(nested)]
    if rope_parameters.get("rope_type") == "longrope":
        original = rope_parameters.get("original_max_position_embeddings")
        found += [original] if isinstance(original, int) else []
    return found
