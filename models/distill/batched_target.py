"""The target over a batch of sequences: what writes the training text and gives the features to learn from.

Owns the frozen weights in a training form, the batched cache and the call. Knows nothing of sampling or files.

Shape suffixes: B sequences, T tokens of this call, S cache positions, E hidden width, V vocabulary, K key/value heads,
G queries a group, H query heads, D head dimension.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from models.config import ModelConfig
from models.decoder_weights import TensorSource
from models.distill.batched_layers import AttentionKeys, BatchedLayer, RotaryAngles, WithinCall, rms_norm, unit_rms


class BatchedCache:
    """Keys and values of B sequences that grow together, allocated once."""

    def __init__(
        self, config: ModelConfig, *, num_sequences: int, capacity: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        shape = (config.num_layers, 2, num_sequences, config.num_kv_heads, capacity, config.head_dim)
        self._keys_values_L2BKSD = torch.zeros(shape, dtype=dtype, device=device)
        self.length = 0

    def attend(
        self, layer: int, queries_BHTD: torch.Tensor, keys_BKTD: torch.Tensor, values_BKTD: torch.Tensor
    ) -> torch.Tensor:
        """Write the call's keys and values behind `length`; attended_BHTD over all up to each query's own."""
        num_tokens, stop = keys_BKTD.shape[2], self.length + keys_BKTD.shape[2]
        keys_BKSD, values_BKSD = self._keys_values_L2BKSD[layer]
        keys_BKSD[:, :, self.length : stop] = keys_BKTD
        values_BKSD[:, :, self.length : stop] = values_BKTD
        seen_keys_BKSD, seen_values_BKSD = keys_BKSD[:, :, :stop], values_BKSD[:, :, :stop]
        queries_BHTD = queries_BHTD.to(keys_BKSD.dtype)
        if num_tokens == 1:
            # A group's queries as rows of one head: on a CPU twice as fast as repeating the keys for each of them.
            grouped_BKGD = queries_BHTD.view(queries_BHTD.shape[0], keys_BKSD.shape[1], -1, keys_BKSD.shape[3])
            attended_BKGD = F.scaled_dot_product_attention(grouped_BKGD, seen_keys_BKSD, seen_values_BKSD)
            return attended_BKGD.reshape(queries_BHTD.shape)
        mask_TS = torch.ones(num_tokens, stop, dtype=torch.bool, device=keys_BKSD.device).tril(self.length)
        return F.scaled_dot_product_attention(
            queries_BHTD, seen_keys_BKSD, seen_values_BKSD, attn_mask=mask_TS, enable_gqa=True
        )


class BatchedTarget:
    """A checkpoint's decoder, frozen; matrices in `dtype`, everything between them in float32."""

    def __init__(
        self,
        source: TensorSource,
        *,
        dtype: torch.dtype,
        device: torch.device,
        num_positions: int,
        with_layers: bool = True,
    ) -> None:
        """Read the weights.

        Args:
            source: an opened checkpoint of a family that the lean decoder runs.
            dtype: of matrices and cached keys: float32 or bfloat16.
            device: where to run.
            num_positions: longest sequence.
            with_layers: False leaves out all but embedding, final norm and head, which are what a draft shares; there
                are no `features` then.

        Raises:
            CheckpointError: if a tensor is missing.
        """
        self.config = config = source.config
        self.dtype, self.device = dtype, device
        self.num_positions = num_positions
        self.embedding_VE = source.tensor("model.embed_tokens.weight").to(device, dtype)
        head = "model.embed_tokens.weight" if config.tie_embeddings else "lm_head.weight"
        self.head_VE = self.embedding_VE if config.tie_embeddings else source.tensor(head).to(device, dtype)
        self.final_norm_E = source.tensor("model.norm.weight").to(device, torch.float32)
        self.rotary = RotaryAngles(config, num_positions, device)
        self._layers = [self._layer(source, index) for index in range(config.num_layers if with_layers else 0)]

    def _layer(self, source: TensorSource, index: int) -> BatchedLayer:
        with torch.device("meta"):
            layer = BatchedLayer(self.config)
        layer = layer.to_empty(device=self.device).requires_grad_(False)
        layer.load(source, f"model.layers.{index}.")
        for linear in (layer.qkv, layer.output, layer.gate_up, layer.down):
            linear.to(self.dtype)
        return layer

    def new_cache(self, num_sequences: int, capacity: int) -> BatchedCache:
        """An empty cache for sequences of at most `capacity` tokens."""
        return BatchedCache(
            self.config, num_sequences=num_sequences, capacity=capacity, dtype=self.dtype, device=self.device
        )

    def features(self, token_ids_BT: torch.Tensor, cache: BatchedCache | None = None) -> torch.Tensor:
        """features_BTE: the residual stream after the last layer over its root mean square, float32.

        Appends to `cache` where there is one; without, the tokens are whole sequences.

        Raises:
            RuntimeError: if the layers were left out.
        """
        if not self._layers:
            raise RuntimeError("this target was read without its layers")
        position = 0 if cache is None else cache.length
        keys: AttentionKeys = WithinCall() if cache is None else cache
        hidden_BTE = F.embedding(token_ids_BT, self.embedding_VE).float()
        with torch.inference_mode(), torch.autocast(self.device.type, self.dtype, enabled=self.computes_short):
            for index, layer in enumerate(self._layers):
                hidden_BTE = layer(hidden_BTE, keys, self.rotary, layer=index, position=position)
            if cache is not None:
                cache.length += token_ids_BT.shape[1]
            return unit_rms(hidden_BTE, self.config.rms_norm_eps)

    @property
    def computes_short(self) -> bool:
        """Whether matrix products take bfloat16."""
        return self.dtype is not torch.float32

    def head_input(self, features_NE: torch.Tensor) -> torch.Tensor:
        """What the head is multiplied with, in `dtype`: features under the final norm's weight."""
        return (features_NE.float() * self.final_norm_E).to(self.dtype)

    @torch.inference_mode()
    def logits(self, features_NE: torch.Tensor) -> torch.Tensor:
        """logits_NV, float32."""
        return F.linear(self.head_input(features_NE), self.head_VE).float()


def final_head_input(hidden_NE: torch.Tensor, target: BatchedTarget) -> torch.Tensor:
    """The same of a draft's own residual stream, which is normed here; differentiable."""
    return rms_norm(hidden_NE, target.final_norm_E, target.config.rms_norm_eps)
