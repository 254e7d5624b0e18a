"""All layers of a decoder in one call that holds no interpreter lock.

Owns the compiling of `models.layer_script`, once a process, the weights in the form it takes, and the comparison with
the eager layers. Knows nothing of widths, heads or caches.

From Python, a forward pass makes some 35 calls a layer; each lets the interpreter go and takes it again, and another
thread that does the same can hold it in between. TorchScript runs all of them by itself. It is told not to optimise:
no fusion, no reordering, so that each operation is the eager one and so are its bits.
"""

from __future__ import annotations

import functools
import inspect
import logging
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch

from models import layer_script
from models.block_width import ExactWidths
from models.decoder_weights import LayerWeights
from models.int8_linear import SMALLEST_MAGNITUDE, Int8Linear
from models.kv_cache import KEY_BUCKET, KeyValueCache
from models.layer_script import Layer, Matrix
from models.linear import Float16Linear, Float32Linear, HalfLinear, PackedLinear
from models.placement import Placement
from models.thread_counts import intra_op_threads

_PACKED = "__torch__.torch.classes.quantized.LinearPackedParamsBase"
_MATRIX = f"tuple[Tensor, {_PACKED} | None, Tensor | None, float, int]"
_IN_SCRIPT = {
    "Matrix": _MATRIX,
    "Layer": f"tuple[Tensor, {_MATRIX}, Tensor | None, {_MATRIX}, Tensor, {_MATRIX}, {_MATRIX}]",
    "Window": "tuple[int, int, int, int, Tensor]",
    "torch.ScriptObject": _PACKED,
    "SMALLEST_MAGNITUDE": repr(SMALLEST_MAGNITUDE),
}
"""What the names of `layer_script` stand for where TorchScript cannot look them up."""

_FUNCTIONS = (
    layer_script.scale_to_unit,
    layer_script.multiply,
    layer_script.gate,
    layer_script.attend,
    layer_script.attend_in_windows,
    layer_script.run_layers,
)

WIDEST_COMPARED = 32
"""Enough for every branch: most models' SiLU goes through so many rows in pieces."""

RunLayers = Callable[[torch.Tensor, KeyValueCache, int], torch.Tensor]
"""hidden_TE of token_ids_T at a position, of the first layers."""

_logger = logging.getLogger("slipstream")


@functools.cache
def _compiled() -> Callable[..., torch.Tensor] | None:
    """`layer_script.run_layers`, compiled; None, with the reason in the log, where this torch cannot."""
    try:
        source = "\n".join(inspect.getsource(function) for function in _FUNCTIONS)
        names = "|".join(rf"\b{re.escape(name)}\b" for name in _IN_SCRIPT)
        source = re.sub(names, lambda match: _IN_SCRIPT[match[0]], source)
        unit = torch.jit.CompilationUnit()
        unit.define(source, {"torch": torch}.get)
        run_layers: Callable[..., torch.Tensor] = unit.find_function(layer_script.run_layers.__name__)
        optimized_execution = torch.jit.optimized_execution  # type: ignore[attr-defined]  # stubs leave it out
    except (AttributeError, OSError, RuntimeError) as error:
        _logger.info("layers run one operation at a time: TorchScript does not compile them here: %s", error)
        return None

    def run_unoptimised(*arguments: Any) -> torch.Tensor:
        # The switch is the calling thread's own.
        with optimized_execution(False):
            return run_layers(*arguments)

    return run_unoptimised


class ScriptedLayers:
    """Runs what `decoder_weights.LayerWeights` hold, from any thread, several at a time."""

    def __init__(
        self,
        layers: Sequence[Layer],
        compiled: Callable[..., torch.Tensor],
        *,
        hidden_eps: torch.Tensor,
        head_eps: torch.Tensor,
        most_elements: int,
    ) -> None:
        """Use `of`, which finds out whether it can be done."""
        self._layers = list(layers)
        self._compiled = compiled
        self._hidden_eps = hidden_eps
        self._head_eps = head_eps
        self._most_elements = most_elements

    @classmethod
    def of(
        cls, weights: Sequence[LayerWeights], *, hidden_eps: torch.Tensor, head_eps: torch.Tensor, most_elements: int
    ) -> ScriptedLayers | None:
        """The layers of `weights`; None where they cannot be compiled or hold a matrix of an unknown kind.

        Args:
            weights: of all layers, on the CPU.
            hidden_eps: the norms' epsilon times the hidden width.
            head_eps: the same times the head dimension.
            most_elements: most elements that one call of SiLU shall take.
        """
        compiled = _compiled()
        layers = [_layer(layer) for layer in weights]
        known = [layer for layer in layers if layer is not None]
        if compiled is None or len(known) < len(layers):
            return None
        return cls(known, compiled, hidden_eps=hidden_eps, head_eps=head_eps, most_elements=most_elements)

    def first(self, num_layers: int) -> ScriptedLayers:
        """The first layers; shares all weights."""
        return ScriptedLayers(
            self._layers[:num_layers],
            self._compiled,
            hidden_eps=self._hidden_eps,
            head_eps=self._head_eps,
            most_elements=self._most_elements,
        )

    def run(self, hidden_TE: torch.Tensor, place: Placement, rows_by_layer: Sequence[torch.Tensor]) -> None:
        """Write the cache rows of every layer, and add to `hidden_TE` what the layers add.

        Args:
            hidden_TE: float32 embeddings, changed in place.
            place: of the call.
            rows_by_layer: `place`'s.
        """
        windows = [(w.first, w.stop, w.keep_first, w.keep_stop, w.mask_NS) for w in place.windows]
        keys_values = [place.views_by_length[window.key_length] for window in place.windows]
        self._compiled(
            hidden_TE,
            self._layers,
            place.factors_T11F,
            rows_by_layer,
            keys_values,
            windows,
            self._hidden_eps,
            self._head_eps,
            self._most_elements,
        )


def _layer(layer: LayerWeights) -> Layer | None:
    matrices = [_matrix(linear) for linear in (layer.qkv, layer.output, layer.gate_up, layer.down)]
    qkv, output, gate_up, down = matrices
    if qkv is None or output is None or gate_up is None or down is None:
        return None
    return (layer.input_norm_E, qkv, layer.head_norm_GKD, output, layer.feedforward_norm_E, gate_up, down)


def _matrix(linear: PackedLinear) -> Matrix | None:
    nothing = torch.empty(0)
    if isinstance(linear, Float32Linear | HalfLinear):
        return (linear.weight_OI, None, linear.bias_O, 0.0, 0)
    if isinstance(linear, Float16Linear):
        return (nothing, linear.packed, None, 0.0, 0)
    if isinstance(linear, Int8Linear):
        return (nothing, linear.packed, linear.bias_O, linear.scale, linear.zero_point)
    return None


def gives_same_bits(
    run_scripted: RunLayers,
    run_eagerly: RunLayers,
    *,
    cache: KeyValueCache,
    vocab_size: int,
    widths: ExactWidths,
    thread_counts: Sequence[int],
) -> bool:
    """Whether both write the same cache rows and return the same hidden states, at a few of `widths`.

    Args:
        run_scripted: to be compared.
        run_eagerly: what it shall equal.
        cache: an empty one for two buckets of keys; its rows are written, its length is not.
        vocab_size: token ids lie below it.
        widths: those that layers are called at.
        thread_counts: numbers of intra-op threads to compare under.
    """
    generator = torch.Generator().manual_seed(0)
    for rows_T2KD in cache.rows(0, cache.num_positions):
        rows_T2KD.copy_(torch.randn(rows_T2KD.shape, generator=generator))

    def outcome(run: RunLayers, ids_T: torch.Tensor, position: int) -> list[torch.Tensor]:
        rows_by_layer = cache.rows(position, ids_T.shape[0])
        for rows_T2KD in rows_by_layer:
            rows_T2KD.zero_()
        hidden_TE = run(ids_T, cache, position)
        return [hidden_TE, *(rows_T2KD.clone() for rows_T2KD in rows_by_layer)]

    for width in _some_widths(widths):
        # Across the end of a bucket, so that attention runs in several windows.
        position = KEY_BUCKET - width // 2
        ids_T = torch.randint(vocab_size, (width,), generator=generator)
        for count in thread_counts:
            with intra_op_threads(count):
                expected = outcome(run_eagerly, ids_T, position)
                try:
                    found = outcome(run_scripted, ids_T, position)
                except RuntimeError as error:
                    _logger.info("layers run one operation at a time: TorchScript cannot run them here: %s", error)
                    return False
            if not all(torch.equal(ours, theirs) for ours, theirs in zip(found, expected, strict=True)):
                _logger.info("layers run one operation at a time: at width %d, bits differ otherwise", width)
                return False
    return True


def _some_widths(widths: ExactWidths) -> list[int]:
    narrow = [width for width in widths.widths if width <= WIDEST_COMPARED] or [widths.narrowest]
    return sorted({narrow[0], narrow[len(narrow) // 2], narrow[-1]})
