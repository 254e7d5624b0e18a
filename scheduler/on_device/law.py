"""The sampling law of `scheduler.distribution` on many rows at once, wherever their tensors live.

Owns `DeviceLaw` and the token counts behind its penalties. Every shape is known before anything has run, and no
value is looked at on the host, so the work can be enqueued and left alone. Knows nothing of models, rounds or
verification.

Where this may differ from `SamplingLaw`, and by how much:

- top-p adds up in float64, `SamplingLaw` in float32: they part company over a token only where the sum before it
  meets top-p to within float32's rounding.
- probabilities behind a filter are summed over the whole row instead of the candidates alone: a last bit.
- exponentials, logarithms and quotients are the device's own: last bits on anything but a CPU.

All else is equal to the bit, and no row depends on how many others there are.

Shape suffixes: R rows, B tokens of a block, T tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from scheduler.settings import SamplingSettings
from scheduler.transforms import biased, edge_of_sorted, fitted, kept, penalised, scaled
from scheduler.upload import upload

_IMPOSSIBLE = float("-inf")


@dataclass(frozen=True, kw_only=True)
class CountRows:
    """What each row of a block has seen."""

    in_output_RV: torch.Tensor
    """float32; times seen in the output."""
    seen_RV: torch.Tensor
    """bool; seen in prompt or output."""


@dataclass(frozen=True, kw_only=True)
class DeviceCounts:
    """How often each token was seen up to one moment."""

    in_output_V: torch.Tensor
    """float32; times seen in the output."""
    seen_V: torch.Tensor
    """bool; seen in prompt or output."""

    def with_tokens(self, token_ids_T: torch.Tensor) -> DeviceCounts:
        """New counts that include tokens (int64) as output; negative ones stand for none."""
        valid_T = token_ids_T >= 0
        index_T = token_ids_T.masked_fill(~valid_T, 0)
        added_V = torch.zeros_like(self.in_output_V).index_add(0, index_T, valid_T.to(torch.float32))
        return DeviceCounts(in_output_V=self.in_output_V + added_V, seen_V=self.seen_V | (added_V > 0))

    def rows(self, block_ids_B: torch.Tensor | None = None) -> CountRows:
        """Counts of the B + 1 rows of a block: row r has seen its first r tokens as well (int64); None is no block."""
        if block_ids_B is None:
            return CountRows(in_output_RV=self.in_output_V[None], seen_RV=self.seen_V[None])
        none_BV = self.in_output_V.new_zeros(block_ids_B.shape[0], self.in_output_V.shape[0])
        one_hot_BV = none_BV.scatter(1, block_ids_B[:, None], 1.0)
        added_RV = torch.nn.functional.pad(one_hot_BV.cumsum(0), (0, 0, 1, 0))
        return CountRows(in_output_RV=self.in_output_V + added_RV, seen_RV=self.seen_V | (added_RV > 0))


class DeviceLaw:
    """The transforms of one request, for target and draft alike, on tensors of one device."""

    def __init__(
        self,
        settings: SamplingSettings,
        *,
        vocab_size: int,
        stop_ids: frozenset[int] = frozenset(),
        device: torch.device | str,
    ) -> None:
        """Prepare the transforms and upload what they need.

        Args:
            settings: the request's options.
            vocab_size: width V of the target's rows; a draft's rows are cut or padded to it.
            stop_ids: tokens that `min_tokens` forbids at first.
            device: where rows come from.

        Raises:
            ValueError: if `logit_bias` names an id outside the vocabulary.
        """
        self.settings = settings
        self.vocab_size = vocab_size
        self.device = torch.device(device)
        self.token_ids_V = torch.arange(vocab_size, dtype=torch.int32, device=device)
        """int32, all of them: what noise is asked for."""
        outside = [token_id for token_id in settings.logit_bias if token_id >= vocab_size]
        if outside:
            raise ValueError(
                f"logit_bias names token id {outside[0]}, but the target has {vocab_size} ids (0 to {vocab_size - 1})"
            )
        self._bias_ids = upload(torch.tensor(list(settings.logit_bias), dtype=torch.int64), self.device)
        self._bias = upload(torch.tensor(list(settings.logit_bias.values()), dtype=torch.float32), self.device)
        forbidden_V = torch.zeros(vocab_size, dtype=torch.bool)
        forbidden_V[[token_id for token_id in stop_ids if token_id < vocab_size]] = True
        self._forbidden_V = upload(forbidden_V, self.device)
        self._forbids = settings.min_tokens > 0 and any(token_id < vocab_size for token_id in stop_ids)

    def start_counts(self, prompt_ids: Sequence[int]) -> DeviceCounts | None:
        """Counts of a prompt; None where no penalty asks for any."""
        if not self.settings.has_penalties:
            return None
        seen_V = torch.zeros(self.vocab_size, dtype=torch.bool)
        seen_V[torch.tensor(list(prompt_ids), dtype=torch.int64)] = True
        return DeviceCounts(
            in_output_V=torch.zeros(self.vocab_size, device=self.device), seen_V=upload(seen_V, self.device)
        )

    def apply(
        self, logits_RV: torch.Tensor, *, num_output_R: torch.Tensor, counts: CountRows | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """What may be drawn after each row.

        Args:
            logits_RV: float32, the rows; never written to.
            num_output_R: int64, output tokens before each row's token, proposed ones among them.
            counts: what each row has seen; None where no penalty asks for it.

        Returns:
            log_weights_RV, float32: logits after every transform, -inf where nothing may be drawn, not normalised;
            greedy rows are 0 at their first largest logit and -inf elsewhere. And finite_R, bool: whether anything
            can be drawn at all (`SamplingLaw` raises NonFiniteLogitsError where not); the weights of other rows mean
            nothing.

        Raises:
            ValueError: if a penalty needs counts and there are none.
        """
        logits_RV = self._adjusted(fitted(logits_RV, self.vocab_size), num_output_R, counts)
        largest_R1 = logits_RV.amax(-1, keepdim=True)
        finite_R = largest_R1.squeeze(-1).isfinite()
        if self.settings.greedy:
            best_R1 = logits_RV.argmax(-1, keepdim=True)
            return torch.full_like(logits_RV, _IMPOSSIBLE).scatter_(-1, best_R1, 0.0), finite_R
        scaled_RV = scaled(logits_RV, largest_R1, self.settings.temperature)
        if self.settings.has_filters:
            scaled_RV = scaled_RV.masked_fill(~kept(scaled_RV, self.settings, self._nucleus_edge), _IMPOSSIBLE)
        return scaled_RV, finite_R

    def draw_R(self, log_weights_RV: torch.Tensor, noise_RV: torch.Tensor | None) -> torch.Tensor:
        """The token that each row's noise picks, int64: the first of the largest; None is no noise (greedy)."""
        return (log_weights_RV if noise_RV is None else log_weights_RV + noise_RV).argmax(-1)

    def probabilities_RV(self, log_weights_RV: torch.Tensor) -> torch.Tensor:
        """float32, each row sums to 1; zero where nothing can be drawn."""
        return torch.softmax(log_weights_RV, dim=-1)

    def _adjusted(self, logits_RV: torch.Tensor, num_output_R: torch.Tensor, counts: CountRows | None) -> torch.Tensor:
        settings = self.settings
        if settings.logit_bias:
            logits_RV = biased(logits_RV, self._bias_ids, self._bias)
        if self._forbids:
            early_R = num_output_R < settings.min_tokens
            logits_RV = logits_RV.masked_fill(early_R[:, None] & self._forbidden_V, _IMPOSSIBLE)
        if not settings.has_penalties:
            return logits_RV
        if counts is None:
            raise ValueError("these settings have penalties, so counts must be given; begin with start_counts")
        return penalised(logits_RV, settings, in_output_V=counts.in_output_RV, seen_V=counts.seen_RV)

    def _nucleus_edge(self, scaled_RV: torch.Tensor) -> torch.Tensor:
        """The least likely value of each row's smallest set of most likely tokens that reaches top-p."""
        total_R1 = scaled_RV.exp().sum(-1, keepdim=True, dtype=torch.float64)
        wanted_R1 = (total_R1 * self.settings.top_p).to(torch.float32)
        top_k = self.settings.top_k
        if 0 < top_k < self.vocab_size:
            # What top-k left beyond these ties with the last of them, and is kept or dropped with it.
            sorted_RC = torch.topk(scaled_RV, top_k).values
        else:
            sorted_RC = torch.sort(scaled_RV, descending=True).values
        return edge_of_sorted(sorted_RC, wanted_R1)
