"""From a logit row to the distribution that a token is drawn from.

Owns every transform of the sampling law, one row at a time: a row meets the same operations in the same
order whether it stands alone or ends a block of sixteen, so a block cannot change a bit of it. Target
and draft rows both pass through here. Knows nothing of models, rounds or verification.

Shape suffixes: V vocabulary, C candidates (tokens that survive the filters).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch

from scheduler.errors import NonFiniteLogitsError
from scheduler.history import TokenHistory
from scheduler.noise import Purpose, gumbel_noise
from scheduler.settings import SamplingSettings

_SMALLEST_TEMPERATURE = 1e-30
"""Smaller ones act as this one; float32 would round the smallest to 0 and divide by it."""
_NUM_SORTED = 1024
"""Tokens sorted before top-p resorts to the whole vocabulary; a full sort costs about ten times as much."""


@dataclass(frozen=True, kw_only=True)
class Distribution:
    """What may be drawn at one position, and how likely each is."""

    vocab_size: int
    token_ids_C: torch.Tensor
    """int64, the candidates, ascending; all V ids where nothing was filtered."""
    log_weights_C: torch.Tensor
    """float32, logits after every transform, temperature included; not normalised. One zero where greedy."""

    def probabilities_C(self) -> torch.Tensor:
        """float32, sums to 1 over the candidates."""
        return torch.softmax(self.log_weights_C, dim=-1)

    def probabilities_V(self) -> torch.Tensor:
        """float32, over the whole vocabulary, zero where nothing can be drawn."""
        probabilities_V = torch.zeros(self.vocab_size, device=self.log_weights_C.device)
        probabilities_V[self.token_ids_C] = self.probabilities_C()
        return probabilities_V

    def draw(self, seed: int, position: int, purpose: Purpose) -> int:
        """The token that the noise at (seed, position, purpose) picks."""
        if len(self.token_ids_C) == 1:
            return int(self.token_ids_C[0])
        noise_C = gumbel_noise(seed, position, purpose, self.token_ids_C.to(torch.int32))
        return int(self.token_ids_C[_argmax(noise_C.add_(self.log_weights_C))])


def _argmax(values_N: torch.Tensor) -> int:
    """The first index of the largest value."""
    # The reduction and the search are each vectorised; torch's argmax along a row is not (ten times slower).
    return int((values_N == values_N.max()).nonzero()[0])


@lru_cache(maxsize=8)
def _all_ids(vocab_size: int, device: torch.device) -> torch.Tensor:
    return torch.arange(vocab_size, device=device)


class SamplingLaw:
    """The transforms of one request, for target and draft alike."""

    def __init__(self, settings: SamplingSettings, *, vocab_size: int, stop_ids: frozenset[int] = frozenset()) -> None:
        """Prepare the transforms.

        Args:
            settings: the request's options.
            vocab_size: width V of the target's rows; a draft's row is cut or padded to it.
            stop_ids: tokens that `min_tokens` forbids at first.

        Raises:
            ValueError: if `logit_bias` names an id outside the vocabulary.
        """
        self.settings = settings
        self.vocab_size = vocab_size
        outside = [token_id for token_id in settings.logit_bias if token_id >= vocab_size]
        if outside:
            raise ValueError(
                f"logit_bias names token id {outside[0]}, but the target has {vocab_size} ids (0 to {vocab_size - 1})"
            )
        self._bias_ids = torch.tensor(list(settings.logit_bias), dtype=torch.int64)
        self._bias = torch.tensor(list(settings.logit_bias.values()), dtype=torch.float32)
        self._stop_ids = torch.tensor(sorted(i for i in stop_ids if i < vocab_size), dtype=torch.int64)

    def start_history(self, prompt_ids: Sequence[int]) -> TokenHistory:
        """A history that keeps what these transforms need."""
        return TokenHistory(prompt_ids, count_vocab_size=self.vocab_size if self.settings.has_penalties else None)

    def apply(self, logits_V: torch.Tensor, history: TokenHistory, proposed_ids: Sequence[int] = ()) -> Distribution:
        """The distribution of the token after `history` and `proposed_ids`.

        Args:
            logits_V: float32, one row; never written to.
            history: committed tokens.
            proposed_ids: tokens of the block between the history and this row.
        """
        logits_V = self._adjusted(self._fitted(logits_V), history, proposed_ids)
        largest = float(logits_V.max())
        if not math.isfinite(largest):
            raise NonFiniteLogitsError(
                f"no token can be drawn at position {history.length + len(proposed_ids)}, as the largest logit is "
                f"{largest}: the weights are damaged, or min_tokens forbids every token there is"
            )
        if self.settings.greedy:
            token_ids_C = torch.tensor([_argmax(logits_V)], device=logits_V.device)
            return Distribution(
                vocab_size=self.vocab_size,
                token_ids_C=token_ids_C,
                log_weights_C=torch.zeros(1, device=logits_V.device),
            )
        # The largest becomes 0 first, so that no temperature, however small, can overflow.
        scaled_V = (logits_V - largest) / max(self.settings.temperature, _SMALLEST_TEMPERATURE)
        if not self.settings.has_filters:
            ids_V = _all_ids(self.vocab_size, logits_V.device)
            return Distribution(vocab_size=self.vocab_size, token_ids_C=ids_V, log_weights_C=scaled_V)
        token_ids_C = self._filtered(scaled_V)
        return Distribution(vocab_size=self.vocab_size, token_ids_C=token_ids_C, log_weights_C=scaled_V[token_ids_C])

    def _fitted(self, logits_V: torch.Tensor) -> torch.Tensor:
        """A draft's row at the target's width: foreign ids cut off, missing ones impossible."""
        missing = self.vocab_size - logits_V.shape[-1]
        if missing == 0:
            return logits_V
        if missing < 0:
            return logits_V[: self.vocab_size]
        return torch.nn.functional.pad(logits_V, (0, missing), value=float("-inf"))

    def _adjusted(self, logits_V: torch.Tensor, history: TokenHistory, proposed_ids: Sequence[int]) -> torch.Tensor:
        settings = self.settings
        if len(self._bias_ids):
            logits_V = logits_V.index_add(0, self._bias_ids, self._bias)
        if len(self._stop_ids) and history.num_output_tokens + len(proposed_ids) < settings.min_tokens:
            logits_V = logits_V.index_fill(0, self._stop_ids, float("-inf"))
        if history.counts is None:
            return logits_V
        counts = history.counts.with_tokens(proposed_ids) if proposed_ids else history.counts
        penalty = settings.repetition_penalty
        damped_V = torch.where(logits_V > 0, logits_V / penalty, logits_V * penalty)
        logits_V = torch.where(counts.seen_V, damped_V, logits_V)
        logits_V = logits_V - settings.frequency_penalty * counts.in_output_V
        return logits_V - settings.presence_penalty * (counts.in_output_V > 0)

    def _filtered(self, scaled_V: torch.Tensor) -> torch.Tensor:
        """Ids that min-p, top-k and top-p leave, ascending; the most likely one always stays.

        Each filter is a threshold, so tokens that tie with the last one kept are kept as well: what stays never depends
        on the order in which a device happens to sort equals.
        """
        settings = self.settings
        kept_V = scaled_V > float("-inf")
        if settings.min_p > 0:
            kept_V &= scaled_V.exp() >= settings.min_p
        if 0 < settings.top_k < self.vocab_size:
            kept_V &= scaled_V >= torch.topk(scaled_V, settings.top_k).values[-1]
        if settings.top_p < 1:
            kept_V &= scaled_V >= self._nucleus_edge(scaled_V.masked_fill(~kept_V, float("-inf")))
        return kept_V.nonzero().squeeze(-1)

    def _nucleus_edge(self, scaled_V: torch.Tensor) -> torch.Tensor:
        """The least likely value of the smallest set of most likely tokens whose probabilities reach top-p."""
        wanted = self.settings.top_p * float(scaled_V.exp().sum())
        # Sorting all is slow and seldom needed: the largest few mostly reach top-p of the whole.
        num_sorted = min(self.settings.top_k or _NUM_SORTED, self.vocab_size)
        sorted_C = torch.topk(scaled_V, num_sorted).values
        if num_sorted < self.vocab_size and float(sorted_C.exp().sum()) < wanted:
            sorted_C = torch.sort(scaled_V, descending=True).values
        weights_C = sorted_C.exp()
        num_kept = int((weights_C.cumsum(0) - weights_C < wanted).sum())
        # A top-p that float32 cannot tell from 0 still keeps one.
        return sorted_C[max(num_kept, 1) - 1]
