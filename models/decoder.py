"""The lean decoder-only transformer of the Llama family over a preallocated cache.

Owns the forward pass and its widths. Knows nothing of files, text, rounds or streams.

Few, large operations: at a handful of rows an eager operation costs more than its arithmetic.
Every operation between the matrices rounds each element by itself (no fused multiply-add whose use depends
on an element's place in memory), so a row's bits depend on the row alone; the matrices and the
attention are called at widths that a probe found to agree (`models.call_widths`).

Shape suffixes: T tokens of this call, R logit rows, E hidden width, F feed-forward width, H all query heads'
features, G queries a group, K key/value heads, D head dimension, S cache positions, V vocabulary.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Iterable, Mapping

import torch
import torch.nn.functional as F

from models.attention import attend
from models.block_width import ExactWidths
from models.call_widths import WIDE_WIDTHS, CallWidths, probe_call_widths
from models.causal_model import Cache, check_call, check_call_size
from models.config import ModelConfig
from models.decoder_weights import DecoderWeights, LayerWeights, TensorSource, load_weights
from models.elementwise import SHARED_OUT, rms_norm, silu
from models.kv_cache import KEY_BUCKET, KeyValueCache
from models.linear import MatrixKinds, WeightKind, default_weight_kind
from models.placement import Placement, place_along, place_at
from models.positioned_model import check_positioned_call
from models.rope import RotaryTable
from models.scripted_layers import ScriptedLayers, gives_same_bits
from models.thread_counts import with_present_count

DEFAULT_MAX_BLOCK = 256
PROBED_LAYERS = 1
"""All layers have the same shapes, so they run the same kernels."""

COMPARED_LAYERS = 2
"""Layers that are run both ways: the second sees what the first has made."""

_logger = logging.getLogger("slipstream")


class Decoder:
    """A `models.positioned_model.PositionedModel` on one device; safe to call from any one thread at a time."""

    def __init__(
        self,
        config: ModelConfig,
        weights: DecoderWeights,
        *,
        name: str,
        device: torch.device,
        max_block: int = DEFAULT_MAX_BLOCK,
        widths: CallWidths | None = None,
        thread_counts: Iterable[int] = (),
        scripted: bool = True,
    ) -> None:
        """Take packed weights; probes the widths, under `thread_counts`, unless they are given.

        With `scripted`, all layers run in one call where that gives the same bits; see `runs_scripted`.

        Raises:
            ValueError: if `max_block` is below 1, heads cannot be grouped, or a thread count is below 1.
        """
        if max_block < 1:
            raise ValueError(f"max_block must be at least 1, got {max_block}")
        if config.num_heads % config.num_kv_heads:
            raise ValueError(f"num_heads {config.num_heads} must be a multiple of num_kv_heads {config.num_kv_heads}")
        self.config = config
        self._weights = weights
        self._name = name
        self._device = device
        self._max_block = max_block
        self._group_size = config.num_heads // config.num_kv_heads
        self._rotary = RotaryTable(config.rope, config.head_dim, device)
        # Width times epsilon goes with a sum of squares, as epsilon with their mean. Kept as tensors: a Python number
        # would be converted at each use.
        self._hidden_eps = torch.tensor(config.rms_norm_eps * config.hidden_size, device=device)
        self._head_eps = torch.tensor(config.rms_norm_eps * config.head_dim, device=device)
        self._widths = self._probe(thread_counts) if widths is None else widths
        self._may_script = scripted
        self._scripted_layers = self._script_layers()

    @classmethod
    def from_checkpoint(
        cls,
        checkpoint: TensorSource,
        *,
        weights: WeightKind | MatrixKinds | None = None,
        max_block: int = DEFAULT_MAX_BLOCK,
        device: str | torch.device = "cpu",
        input_scales: Mapping[str, torch.Tensor] | None = None,
        thread_counts: Iterable[int] = (),
        scripted: bool = True,
    ) -> Decoder:
        """Fuse and pack a checkpoint's tensors, then find the widths whose rows agree.

        Args:
            checkpoint: anything with `name`, `config`, `tensor(name)` and `has(name)`.
            weights: one kind for all matrices, a kind for each, or None for the device's default: bfloat16 on CUDA,
                float16 where the CPU has FBGEMM (x86-64), float32 elsewhere.
            max_block: most tokens one `forward` call shall take.
            device: where to run; int8 weights need an x86-64 CPU.
            input_scales: see `decoder_weights.load_weights`.
            thread_counts: numbers of intra-op threads that calls will be made with, beside this thread's present
                one; see `probe`.
            scripted: whether all layers may run in one call; see `runs_scripted`.

        Raises:
            ValueError: if an argument is out of range or the device lacks the weight kind.
            CheckpointError: if a tensor is missing.
        """
        device = torch.device(device)
        if weights is None:
            weights = default_weight_kind(device)
        kinds = MatrixKinds.of(weights) if isinstance(weights, WeightKind) else weights
        packed = load_weights(checkpoint, kinds, device, input_scales=input_scales)
        return cls(
            checkpoint.config,
            packed,
            name=checkpoint.name,
            device=device,
            max_block=max_block,
            thread_counts=thread_counts,
            scripted=scripted,
        )

    def first_layers(self, num_layers: int) -> Decoder:
        """A decoder of this one's first layers, final norm and head; shares all weights, has caches of its own.

        Raises:
            ValueError: if `num_layers` is not within 1 and this model's layers.
        """
        if not 1 <= num_layers <= self.config.num_layers:
            raise ValueError(f"num_layers must be within 1 and {self.config.num_layers}, got {num_layers}")
        first = Decoder(
            dataclasses.replace(self.config, num_layers=num_layers),
            dataclasses.replace(self._weights, layers=self._weights.layers[:num_layers]),
            name=f"{self._name} (first {num_layers} layers)",
            device=self._device,
            max_block=self._max_block,
            widths=self._widths,
            scripted=False,
        )
        first._may_script = self._may_script
        if self._scripted_layers is not None:
            first._scripted_layers = self._scripted_layers.first(num_layers)
        return first

    @property
    def name(self) -> str:
        """A name for messages and metrics."""
        return self._name

    @property
    def vocab_size(self) -> int:
        """Width V of a logit row."""
        return self.config.vocab_size

    @property
    def context_length(self) -> int:
        """Most positions the model was made for."""
        return self.config.context_length

    @property
    def max_block(self) -> int:
        """Most tokens one `forward` call takes."""
        return self._max_block

    @property
    def device(self) -> torch.device:
        """Where token ids are expected and logits are returned."""
        return self._device

    @property
    def feature_size(self) -> int:
        """Width E of a feature."""
        return self.config.hidden_size

    @property
    def packed_weights(self) -> DecoderWeights:
        """The weights in use, for models that share some of them."""
        return self._weights

    @property
    def widths(self) -> CallWidths:
        """The widths in use."""
        return self._widths

    @property
    def thread_counts(self) -> tuple[int, ...]:
        """Numbers of intra-op threads, ascending, among which a caller may change without changing a row's bits.

        Holds all that were asked for and the present one of the probing thread, or that one alone.
        """
        return self._widths.thread_counts

    @property
    def runs_scripted(self) -> bool:
        """Whether `forward` runs all layers in one call without the interpreter (`models.scripted_layers`).

        On a CPU it does, unless it was forbidden, torch cannot, or the bits would differ.
        """
        return self._scripted_layers is not None

    @property
    def num_weight_bytes(self) -> int:
        """Bytes of all weights."""
        return self._weights.num_bytes

    def num_read_bytes(self, num_positions: int) -> int:
        """Bytes that a call reads: all weights, of the embedding a few rows only, and so many positions of a cache."""
        return self._weights.num_read_bytes(self.config, num_positions)

    def new_cache(self, capacity: int) -> KeyValueCache:
        """An empty cache for one sequence of at most `capacity` tokens.

        Raises:
            ValueError: if `capacity` is below 1.
        """
        config = self.config
        cache = KeyValueCache(
            capacity=capacity,
            num_layers=config.num_layers,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            spare_positions=max(WIDE_WIDTHS),
            device=self._device,
            dtype=self._weights.key_value_dtype,
        )
        self._rotary.reserve(cache.num_positions)
        return cache

    @torch.inference_mode()
    def forward(self, token_ids_T: torch.Tensor, cache: Cache, *, num_logits: int) -> torch.Tensor:
        """Append T tokens to the cache and return the logits of the last `num_logits` rows.

        Args:
            token_ids_T: int64, 1 <= T <= max_block, on `device`; position of the first is `cache.length`.
            cache: one that this model's `new_cache` made.
            num_logits: 0 <= num_logits <= T; 0 only fills the cache.

        Returns:
            logits_RV, float32. Made in inference mode: clone it before writing to it outside of that mode.

        Raises:
            ValueError: if T is 0, above `max_block`, does not fit into the cache, or `cache` is not this model's.
            IndexError: if a token id is not within 0 and `vocab_size` - 1; the cache's length is as it was.
                A CUDA device cannot say so: it fails for good at its next synchronisation.
        """
        cache = self._check_cache(cache)
        check_call(token_ids_T, cache, num_logits, max_block=self._max_block)
        hidden_RE = self._run_blocks(self.embed(token_ids_T), cache, num_rows=num_logits)
        return self._logits(hidden_RE, self._widths.head)

    def forward_with_features(
        self, token_ids_T: torch.Tensor, cache: Cache, *, num_logits: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """What `forward` does and returns, and the features of all T tokens.

        See `models.feature_model.FeatureSource`.
        """
        check_call(token_ids_T, self._check_cache(cache), num_logits, max_block=self._max_block)
        return self.forward_embedded(self.embed(token_ids_T), cache, num_logits=num_logits)

    @torch.inference_mode()
    def forward_embedded(
        self, hidden_TE: torch.Tensor, cache: Cache, *, num_logits: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append T rows that stand for tokens, such as `embed` gives.

        Args:
            hidden_TE: float32 on `device`; may be written to.
            cache: one that this model's `new_cache` made.
            num_logits: 0 <= num_logits <= T.

        Returns:
            logits_RV as `forward` gives them, and hidden_TE, float32, after the last layer and before the final norm.

        Raises:
            ValueError: as `forward` does.
        """
        cache = self._check_cache(cache)
        num_tokens = hidden_TE.shape[0]
        check_call_size(num_tokens, cache, num_logits, max_block=self._max_block)
        hidden_TE = self._run_blocks(hidden_TE, cache, num_rows=num_tokens)
        return self._logits(hidden_TE[num_tokens - num_logits :], self._widths.head), hidden_TE

    def embed(self, token_ids_T: torch.Tensor) -> torch.Tensor:
        """hidden_TE, float32: the embeddings, which the first layer reads.

        Raises:
            IndexError: if a token id is not within 0 and `vocab_size` - 1; a CUDA device cannot say so.
        """
        return F.embedding(token_ids_T, self._weights.embedding_VE).float()

    @torch.inference_mode()
    def forward_at(
        self,
        token_ids_T: torch.Tensor,
        positions_T: torch.Tensor,
        cache: Cache,
        *,
        key_length: int,
        num_logits: int,
    ) -> torch.Tensor:
        """Write the tokens' rows at positions that only the device knows; logits of the last `num_logits` rows.

        See `models.positioned_model.PositionedModel.forward_at`.

        Raises:
            ValueError: if shapes, dtypes or host numbers are outside their limits, or `cache` is not this model's.
        """
        cache = self._check_cache(cache)
        check_positioned_call(
            token_ids_T, positions_T, cache, key_length=key_length, num_logits=num_logits, max_block=self._max_block
        )
        place = place_at(
            positions_T,
            cache,
            self._rotary,
            key_length=key_length,
            group_size=self._group_size,
            sliding_window=self.config.sliding_window,
        )
        hidden_TE = self._run_layers(self.embed(token_ids_T), place, self.config.num_layers)
        return self._logits(hidden_TE[hidden_TE.shape[0] - num_logits :], ExactWidths((max(1, num_logits),)))

    def _run_blocks(self, hidden_TE: torch.Tensor, cache: KeyValueCache, *, num_rows: int) -> torch.Tensor:
        """Run all layers over rows behind the cache's length and count them; hidden_RE of the last `num_rows`."""
        num_tokens = hidden_TE.shape[0]
        cover = self._widths.layers.cover(num_tokens)
        hidden_blocks = [hidden_TE[:0]]
        done = 0
        for width in cover:
            block_TE = hidden_TE[done : done + width]
            num_real = block_TE.shape[0]
            if num_real < width:
                # The padding's rows lie beyond the length that is kept: no query ever sees them.
                block_TE = F.pad(block_TE, (0, 0, 0, width - num_real))
            place = self._place_along(cache, cache.length + done, width, self._widths.attention)
            block_TE = self._run_layers(block_TE, place, self.config.num_layers, self._scripted_layers)
            done += num_real
            if done > num_tokens - num_rows:
                hidden_blocks.append(block_TE[:num_real])
        # Only now: a call that fails leaves the cache as it was.
        cache.advance(num_tokens)
        hidden_RE = hidden_blocks[-1] if len(hidden_blocks) <= 2 else torch.cat(hidden_blocks)
        return hidden_RE[hidden_RE.shape[0] - num_rows :]

    def _check_cache(self, cache: Cache) -> KeyValueCache:
        config = self.config
        shape = (config.num_layers, config.num_kv_heads, config.head_dim)
        if not isinstance(cache, KeyValueCache) or cache.shape_LKD != shape:
            raise ValueError("cache must come from this model's new_cache; this one is of another kind or shape")
        return cache

    def _place_along(
        self, cache: KeyValueCache, position: int, num_tokens: int, attention_widths: ExactWidths
    ) -> Placement:
        return place_along(
            position,
            num_tokens,
            cache,
            self._rotary,
            group_size=self._group_size,
            sliding_window=self.config.sliding_window,
            widths=attention_widths,
        )

    def _run_layers(
        self, hidden_TE: torch.Tensor, place: Placement, num_layers: int, scripted: ScriptedLayers | None = None
    ) -> torch.Tensor:
        """Write T cache rows, without counting them; returns `hidden_TE`, changed in place, before the final norm.

        `scripted` holds the same layers, to be run in one call where the place allows it.
        """
        if scripted is not None and place.rows_by_layer is not None:
            scripted.run(hidden_TE, place, place.rows_by_layer)
            return hidden_TE
        for index, layer in enumerate(self._weights.layers[:num_layers]):
            self._attention(index, layer, hidden_TE, place)
            self._feed_forward(layer, hidden_TE)
        return hidden_TE

    def _attention(self, index: int, layer: LayerWeights, hidden_TE: torch.Tensor, place: Placement) -> None:
        group_size, config = self._group_size, self.config
        qkv_TO = layer.qkv(rms_norm(hidden_TE, layer.input_norm_E, self._hidden_eps))
        num_tokens, num_kv_heads, head_dim = hidden_TE.shape[0], config.num_kv_heads, config.head_dim
        qkv_TGKD = qkv_TO.view(num_tokens, group_size + 2, num_kv_heads, head_dim)
        rotated_TGKD = qkv_TGKD[:, : group_size + 1]
        if layer.head_norm_GKD is not None:
            rotated_TGKD.copy_(rms_norm(rotated_TGKD, layer.head_norm_GKD, self._head_eps))
        pairs_TGKF2 = rotated_TGKD.view(num_tokens, group_size + 1, num_kv_heads, head_dim // 2, 2)
        torch.view_as_complex(pairs_TGKF2).mul_(place.factors_T11F)
        place.store(index, qkv_TGKD[:, group_size:])
        attended_TH = attend(qkv_TGKD[:, :group_size], place.keys_values(index), place.windows)
        hidden_TE.add_(layer.output(attended_TH))

    def _feed_forward(self, layer: LayerWeights, hidden_TE: torch.Tensor) -> None:
        gate_up_TO = layer.gate_up(rms_norm(hidden_TE, layer.feedforward_norm_E, self._hidden_eps))
        gate_TF, up_TF = gate_up_TO.chunk(2, dim=-1)
        hidden_TE.add_(layer.down(silu(gate_TF).mul_(up_TF)))

    def _logits(self, hidden_RE: torch.Tensor, head_widths: ExactWidths) -> torch.Tensor:
        num_rows = hidden_RE.shape[0]
        if num_rows == 0:
            return torch.empty(0, self.vocab_size, device=self._device)
        cover = head_widths.cover(num_rows)
        padding = sum(cover) - num_rows
        if padding:
            hidden_RE = F.pad(hidden_RE, (0, 0, 0, padding))
        blocks = [
            self._weights.head(rms_norm(rows_RE, self._weights.final_norm_E, self._hidden_eps))
            for rows_RE in torch.split(hidden_RE, list(cover))
        ]
        logits_RV = blocks[0] if len(blocks) == 1 else torch.cat(blocks)
        return logits_RV[:num_rows]

    def probe(self, thread_counts: Iterable[int] = ()) -> CallWidths:
        """Find the widths again, and use them from now on.

        Args:
            thread_counts: numbers of intra-op threads, beside this thread's present one, under which a row shall have
                the same bits. This thread runs with each of them meanwhile. Where no widths agree under all of them at
                a bearable cost, `thread_counts` afterwards holds the present one alone.

        Raises:
            TypeError, ValueError: if a count is not a whole number from 1 on.
        """
        self._widths = self._probe(thread_counts)
        self._scripted_layers = self._script_layers()
        return self._widths

    @torch.inference_mode()
    def _script_layers(self) -> ScriptedLayers | None:
        """All layers in one call, if a few of them give the same bits so as one operation after the other."""
        if not self._may_script or self._device.type != "cpu":
            return None
        scripted = ScriptedLayers.of(
            self._weights.layers,
            hidden_eps=self._hidden_eps,
            head_eps=self._head_eps,
            most_elements=SHARED_OUT - 1,
        )
        if scripted is None:
            return None
        num_layers = min(COMPARED_LAYERS, self.config.num_layers)

        def run(
            first: ScriptedLayers | None, token_ids_T: torch.Tensor, cache: KeyValueCache, position: int
        ) -> torch.Tensor:
            place = self._place_along(cache, position, token_ids_T.shape[0], self._widths.attention)
            return self._run_layers(self.embed(token_ids_T), place, num_layers, first)

        same = gives_same_bits(
            functools.partial(run, scripted.first(num_layers)),
            functools.partial(run, None),
            cache=self.new_cache(2 * KEY_BUCKET),
            vocab_size=self.vocab_size,
            widths=self._widths.layers,
            thread_counts=self._widths.thread_counts,
        )
        return scripted if same else None

    @torch.inference_mode()
    def _probe(self, thread_counts: Iterable[int]) -> CallWidths:
        def run_first_layers(
            token_ids_T: torch.Tensor, cache: KeyValueCache, position: int, attention_widths: ExactWidths
        ) -> torch.Tensor:
            place = self._place_along(cache, position, token_ids_T.shape[0], attention_widths)
            return self._run_layers(self.embed(token_ids_T), place, PROBED_LAYERS)

        on_cpu, counts = self._device.type == "cpu", with_present_count(thread_counts)
        found = probe_call_widths(
            self.config,
            max_block=self._max_block,
            cache=self.new_cache(max(WIDE_WIDTHS)),
            run_layers=run_first_layers,
            run_head=self._logits,
            narrowest=2 if self._weights.rounds_products else 1,
            must_agree=on_cpu,
            thread_counts=counts if on_cpu else with_present_count(()),
        )
        if not found.exact:
            _logger.warning(
                "%s: on %s a row's last bits depend on its place in a call; where two logits all but tie, "
                "text may differ between decoding with and without proposals",
                self._name,
                self._device,
            )
        # Elsewhere the host's threads compute nothing, whatever their number.
        return found if on_cpu else dataclasses.replace(found, thread_counts=counts)
