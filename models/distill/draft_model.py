"""The draft while it learns: a few layers between the target's frozen embedding and head.

Owns what the draft adds, its start from the target's own layers, and how it goes on by its own features. Knows nothing
of losses, batches or files.

Shape suffixes: B sequences, T tokens, E hidden width, H query heads, K key/value heads, D head dimension, S key rows,
C tokens of the head.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import nn

from models.config import ModelConfig
from models.decoder_weights import TensorSource
from models.distill.batched_layers import AttentionKeys, BatchedLayer, RotaryAngles, WithinCall, rms_norm
from models.distill.batched_target import BatchedTarget
from models.draft_folder import (
    FUSION,
    FUSION_EMBEDDING_NORM,
    FUSION_FEATURE_NORM,
    HEAD_TOKEN_IDS,
    DraftDesign,
)


class DraftModel(nn.Module):
    """Trainable float32 parameters; what it shares with the target is passed to each call."""

    def __init__(self, config: ModelConfig, *, design: DraftDesign, num_layers: int) -> None:
        """Allocate; see `initialise`.

        Args:
            config: the target's.
            design: what it reads at each position.
            num_layers: how many layers it has.
        """
        super().__init__()
        self.config = dataclasses.replace(config, num_layers=num_layers)
        self.design = design
        self.layers = nn.ModuleList(BatchedLayer(self.config) for _ in range(num_layers))
        if design is DraftDesign.FEATURE:
            self.embedding_norm_E = nn.Parameter(torch.ones(config.hidden_size))
            self.feature_norm_E = nn.Parameter(torch.ones(config.hidden_size))
            self.fusion = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)

    @torch.no_grad()
    def initialise(self, source: TensorSource) -> None:
        """Start from the target's own layers.

        A token draft takes layers from the first to the last, evenly spaced: it has to do by itself what all of them
        do. A feature draft begins with what the target's last layer gave, so it takes the last ones, and sums its two
        inputs.
        """
        num_target_layers, num_layers = source.config.num_layers, len(self.layers)
        for index, layer in enumerate(self.layers):
            if self.design is DraftDesign.FEATURE:
                taken = max(0, num_target_layers - num_layers + index)
            else:
                taken = round(index * (num_target_layers - 1) / max(1, num_layers - 1))
            assert isinstance(layer, BatchedLayer)  # for the type checker: a ModuleList forgets
            layer.load(source, f"model.layers.{taken}.")
        if self.design is DraftDesign.FEATURE:
            identity_EE = torch.eye(self.config.hidden_size)
            self.fusion.weight.copy_(torch.cat([identity_EE, identity_EE], dim=1))

    def forward(
        self, token_ids_BT: torch.Tensor, features_BTE: torch.Tensor, target: BatchedTarget, *, num_steps: int = 1
    ) -> list[torch.Tensor]:
        """hidden_BTE before the final norm, once for each step.

        The first step reads the target's features at every position. Step k stands for the k-th token that the draft
        proposes in a row: its row at position t reads the draft's own feature at t - 1, from step k - 1, and sees rows
        of earlier steps where these would have been written. (Training on the draft's own outputs: HASS,
        https://arxiv.org/abs/2408.15766; EAGLE-3, https://arxiv.org/abs/2503.01840.)

        Args:
            token_ids_BT: int64.
            features_BTE: the target's, of the same positions.
            target: whose embedding is read.
            num_steps: 1 for a token draft, which has no features.

        Returns:
            hidden_BTE for each step. Rows at positions below k - 1 mean nothing in step k, counted from 1.
        """
        embedded_BTE = F.embedding(token_ids_BT, target.embedding_VE).float()
        if self.design is DraftDesign.TOKEN:
            return [self._run(embedded_BTE, WithinCall(), target.rotary)]
        outputs: list[torch.Tensor] = []
        keys = _KeysByStep(len(self.layers)) if num_steps > 1 else None
        read_BTE = features_BTE
        for _ in range(num_steps):
            before_BTE = F.pad(read_BTE[:, :-1], (0, 0, 1, 0))
            if keys is not None:
                keys.next_step()
            read_BTE = self._run(self._fused(embedded_BTE, before_BTE), keys or WithinCall(), target.rotary)
            outputs.append(read_BTE)
        return outputs

    def _fused(self, embedded_BTE: torch.Tensor, before_BTE: torch.Tensor) -> torch.Tensor:
        eps = self.config.rms_norm_eps
        both = [rms_norm(embedded_BTE, self.embedding_norm_E, eps), rms_norm(before_BTE, self.feature_norm_E, eps)]
        fused_BTE: torch.Tensor = self.fusion(torch.cat(both, dim=-1)).float()
        return fused_BTE

    def _run(self, hidden_BTE: torch.Tensor, keys: AttentionKeys, rotary: RotaryAngles) -> torch.Tensor:
        for index, layer in enumerate(self.layers):
            hidden_BTE = layer(hidden_BTE, keys, rotary, layer=index, position=0)
        return hidden_BTE

    def export(self, head_token_ids_C: torch.Tensor | None, *, dtype: torch.dtype) -> dict[str, torch.Tensor]:
        """Tensors by the names of `models.draft_folder`, copied."""
        exported = {name: tensor.detach().to(dtype).clone() for name, tensor in self._tensors().items()}
        if head_token_ids_C is not None:
            exported[HEAD_TOKEN_IDS] = head_token_ids_C.int().clone()
        return exported

    @torch.no_grad()
    def restore(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Take tensors by the names of `models.draft_folder`, such as `DraftFolder.tensors` gives.

        Raises:
            KeyError: if one is missing.
        """
        for name, own in self._tensors().items():
            own.copy_(tensors[name])

    def _tensors(self) -> dict[str, torch.Tensor]:
        """The parameters, or views of them, by the names of `models.draft_folder`."""
        tensors = {
            f"layers.{index}.{name}": tensor
            for index, layer in enumerate(self.layers)
            if isinstance(layer, BatchedLayer)
            for name, tensor in layer.named_tensors()
        }
        if self.design is DraftDesign.FEATURE:
            tensors[FUSION_EMBEDDING_NORM] = self.embedding_norm_E
            tensors[FUSION_FEATURE_NORM] = self.feature_norm_E
            tensors[FUSION] = self.fusion.weight
        return tensors


class _KeysByStep:
    """A query of step k at position t sees keys of step 1 up to t - k + 1, then one of each later step."""

    def __init__(self, num_layers: int) -> None:
        self._by_layer: list[list[tuple[torch.Tensor, torch.Tensor]]] = [[] for _ in range(num_layers)]
        self._step = 0

    def next_step(self) -> None:
        self._step += 1

    def attend(
        self, layer: int, queries_BHTD: torch.Tensor, keys_BKTD: torch.Tensor, values_BKTD: torch.Tensor
    ) -> torch.Tensor:
        """See `AttentionKeys.attend`."""
        rows = self._by_layer[layer]
        rows.append((keys_BKTD, values_BKTD))
        if self._step == 1:
            return WithinCall().attend(layer, queries_BHTD, keys_BKTD, values_BKTD)
        all_keys_BKSD = torch.cat([keys for keys, _ in rows], dim=2)
        all_values_BKSD = torch.cat([values for _, values in rows], dim=2)
        mask_TS = _step_mask(self._step, queries_BHTD.shape[2], queries_BHTD.device)
        return F.scaled_dot_product_attention(
            queries_BHTD, all_keys_BKSD, all_values_BKSD, attn_mask=mask_TS, enable_gqa=True
        )


def _step_mask(step: int, num_tokens: int, device: torch.device) -> torch.Tensor:
    """mask_TS over the rows of steps 1 to `step`, of T each."""
    places_T1 = torch.arange(num_tokens, device=device)[:, None]
    places_1T = torch.arange(num_tokens, device=device)[None]
    blocks = [places_1T <= places_T1 - step + 1]
    blocks += [places_1T == places_T1 - step + other for other in range(2, step + 1)]
    mask_TS = torch.cat(blocks, dim=1)
    # Rows before position `step` - 1 mean nothing; one key keeps them from being NaN.
    mask_TS[: step - 1, 0] = True
    return mask_TS


def frequent_token_ids(token_counts_V: Sequence[int] | torch.Tensor, num_tokens: int) -> torch.Tensor:
    """The ids of the most frequent tokens, ascending, int64; among equals the lower ids."""
    counts_V = torch.as_tensor(token_counts_V)
    order_V = torch.argsort(counts_V, descending=True, stable=True)
    return order_V[:num_tokens].sort().values
