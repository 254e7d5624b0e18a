"""Scales that move the outliers of activations into the weights, so that eight bits hold both (SmoothQuant).

Owns the measurement of activations and the rule that turns it into scales (https://arxiv.org/abs/2211.10438,
equation 4). Knows nothing of text or files, nor of how the scales are folded (`decoder_weights.load_weights`).

Shape suffixes: T tokens, I input features.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

from models.block_width import ExactWidths
from models.call_widths import CallWidths
from models.config import ModelConfig
from models.decoder import Decoder
from models.decoder_weights import TensorSource, load_weights
from models.linear import MatrixKinds, PackedLinear, WeightKind

EXPONENT = 0.6
"""How much of an outlier goes into the weights: 0 leaves it in the activations, 1 moves all of it.

On SmolLM2-135M-Instruct the divergence of the predicted distributions from float32's falls up to 0.6 and hardly changes
until 0.7; the head's has its minimum between 0.5 and 0.6. Inputs and weights have eight bits each, but inputs have one
scale for a row, whereas every output channel of the weights has its own.
"""

STEPS_PER_OCTAVE = 4
"""Scales are 2 to the power of n / this, n whole; whole powers of two cost perplexity."""

_FUSED_TENSORS = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
}
"""The matrices of a layer that follow a norm, and what they are fused from."""

_BLOCK = 64
_SMALLEST_MAGNITUDE = 1e-5
"""Features that hardly ever speak count as this loud: their scale would otherwise be an accident."""
_LARGEST_LOG2 = 12
"""No scale is beyond 2 to this power, either way."""


def scaled_matrices(config: ModelConfig) -> dict[str, tuple[str, ...]]:
    """The matrices that follow a norm, by their keys in the scales, and the tensors that each is made from."""
    layers = {
        f"layers.{index}.{matrix}": tuple(f"model.layers.{index}.{name}.weight" for name in names)
        for index in range(config.num_layers)
        for matrix, names in _FUSED_TENSORS.items()
    }
    head = "model.embed_tokens.weight" if config.tie_embeddings else "lm_head.weight"
    return {**layers, "head": (head,)}


class MagnitudeRecorder:
    """A packed matrix that remembers the largest magnitude of each input feature."""

    def __init__(self, linear: PackedLinear) -> None:
        self._linear = linear
        self.magnitudes_I: torch.Tensor | None = None
        """None until the first call."""

    @property
    def num_bytes(self) -> int:
        """Bytes of the matrix itself."""
        return self._linear.num_bytes

    def __call__(self, x_TI: torch.Tensor) -> torch.Tensor:
        """Multiply, and take note of `x_TI`."""
        magnitudes_I = x_TI.abs().amax(dim=0)
        if self.magnitudes_I is not None:
            magnitudes_I = torch.maximum(magnitudes_I, self.magnitudes_I)
        self.magnitudes_I = magnitudes_I
        return self._linear(x_TI)


def calibrate_input_scales(
    source: TensorSource,
    sequences: Sequence[Sequence[int]],
    *,
    kinds: MatrixKinds | None = None,
    exponent: float = EXPONENT,
) -> dict[str, torch.Tensor]:
    """Run the model once over some token ids and balance the matrices after its norms.

    Args:
        source: an opened checkpoint.
        sequences: token ids, each sequence a text of its own; ids that the model lacks are left out, and what
            exceeds its context is cut off.
        kinds: how to keep the matrices meanwhile, None for the int8 mix: the measured magnitudes are the same to
            within a fifth, and no more memory is needed than for the model that is being prepared.
        exponent: see `EXPONENT`; within 0 and 1.

    Returns:
        float32 scales for `decoder_weights.load_weights`, keyed `layers.3.qkv`, `layers.3.gate_up` and
            `head`; empty where there is no token. They come in steps (`STEPS_PER_OCTAVE`): the last bits of what is
            measured, which depend on the number of threads, do not show but where they fall on an edge.

    Raises:
        ValueError: if `exponent` is out of range or this machine lacks one of `kinds`.
        CheckpointError: if a tensor is missing.
    """
    if not 0 <= exponent <= 1:
        raise ValueError(f"exponent must be within 0 and 1, got {exponent}; {EXPONENT} is the usual one")
    magnitudes = _measure_magnitudes(source, sequences, MatrixKinds.of(WeightKind.INT8) if kinds is None else kinds)
    matrices = scaled_matrices(source.config)
    return {
        key: smoothing_scale(magnitudes_I, _weight_magnitudes(source, matrices[key]), exponent=exponent)
        for key, magnitudes_I in magnitudes.items()
    }


def smoothing_scale(
    input_magnitudes_I: torch.Tensor, weight_magnitudes_I: torch.Tensor, *, exponent: float
) -> torch.Tensor:
    """input^exponent / weight^(1 - exponent) for each feature, scaled to a geometric mean of 1 and rounded to steps.

    Features whose magnitude is not finite keep the scale 1.
    """
    inputs_I = input_magnitudes_I.double().clamp_min(_SMALLEST_MAGNITUDE).log2()
    weights_I = weight_magnitudes_I.double().clamp_min(_SMALLEST_MAGNITUDE).log2()
    log2_I = exponent * inputs_I - (1 - exponent) * weights_I
    finite_I = log2_I.isfinite()
    if finite_I.any():
        log2_I = log2_I - log2_I[finite_I].mean()
    log2_I = (log2_I * STEPS_PER_OCTAVE).round() / STEPS_PER_OCTAVE
    return torch.where(finite_I, log2_I, 0.0).clamp(-_LARGEST_LOG2, _LARGEST_LOG2).exp2().float()


def _measure_magnitudes(
    source: TensorSource, sequences: Sequence[Sequence[int]], kinds: MatrixKinds
) -> dict[str, torch.Tensor]:
    """The largest magnitude of every input feature of `scaled_matrices`."""
    weights = load_weights(source, kinds, torch.device("cpu"))
    recorders: dict[str, MagnitudeRecorder] = {}

    def recorder(key: str, linear: PackedLinear) -> MagnitudeRecorder:
        return recorders.setdefault(key, MagnitudeRecorder(linear))

    layers = tuple(
        dataclasses.replace(
            layer,
            qkv=recorder(f"layers.{index}.qkv", layer.qkv),
            gate_up=recorder(f"layers.{index}.gate_up", layer.gate_up),
        )
        for index, layer in enumerate(weights.layers)
    )
    # No padding: its rows would be measured too. Bits may depend on the width here, so nothing needs to be probed.
    every_width = ExactWidths(tuple(range(1, _BLOCK + 1)))
    decoder = Decoder(
        source.config,
        dataclasses.replace(weights, layers=layers, head=recorder("head", weights.head)),
        name=source.name,
        device=torch.device("cpu"),
        max_block=_BLOCK,
        widths=CallWidths(
            layers=every_width,
            attention=every_width,
            head=every_width,
            exact=False,
            thread_counts=(torch.get_num_threads(),),
        ),
    )
    for sequence in sequences:
        _read(decoder, [token_id for token_id in sequence if 0 <= token_id < decoder.vocab_size])
    return {key: found.magnitudes_I for key, found in recorders.items() if found.magnitudes_I is not None}


def _read(decoder: Decoder, token_ids: Sequence[int]) -> None:
    token_ids_T = torch.tensor(token_ids[: decoder.context_length], dtype=torch.int64)
    if token_ids_T.shape[0] == 0:
        return
    cache = decoder.new_cache(token_ids_T.shape[0])
    for first in range(0, token_ids_T.shape[0], _BLOCK):
        block_T = token_ids_T[first : first + _BLOCK]
        decoder.forward(block_T, cache, num_logits=block_T.shape[0])


def _weight_magnitudes(source: TensorSource, tensor_names: Sequence[str]) -> torch.Tensor:
    """The largest magnitude of each column, over all that a matrix is fused from."""
    columns = [source.tensor(name).float().abs().amax(dim=0) for name in tensor_names]
    return torch.stack(columns).amax(dim=0)
