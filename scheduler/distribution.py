"""From a logit row to the distribution that a token is drawn from.

Owns the order of the sampling law's transforms, one row at a time: a row meets the same operations in the same
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
from scheduler.transforms import biased, edge_of_sorted, fitted, kept, penalised, scaled

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

    def among(self, token_ids_C: torch.Tensor) -> Distribution:
        """The same over these candidates (int64, ascending), where nothing was filtered and no other has a chance.

        A row of a cut head is minus infinity nearly everywhere, and noise for each token that cannot be drawn is most
        of what drawing from it costs.
        """
        if len(self.token_ids_C) < self.vocab_size:
            return self
        return Distribution(
            vocab_size=self.vocab_size, token_ids_C=token_ids_C, log_weights_C=self.log_weights_C[token_ids_C]
        )

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
        logits_V = self._adjusted(fitted(logits_V, self.vocab_size), history, proposed_ids)
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
        scaled_V = scaled(logits_V, largest, self.settings.temperature)
        if not self.settings.has_filters:
            ids_V = _all_ids(self.vocab_size, logits_V.device)
            return Distribution(vocab_size=self.vocab_size, token_ids_C=ids_V, log_weights_C=scaled_V)
        token_ids_C = kept(scaled_V, self.settings, self._nucleus_edge).nonzero().squeeze(-1)
        return Distribution(vocab_size=self.vocab_size, token_ids_C=token_ids_C, log_weights_C=scaled_V[token_ids_C])

    def _adjusted(self, logits_V: torch.Tensor, history: TokenHistory, proposed_ids: Sequence[int]) -> torch.Tensor:
        settings = self.settings
        if len(self._bias_ids):
            logits_V = biased(logits_V, self._bias_ids, self._bias)
        if len(self._stop_ids) and history.num_output_tokens + len(proposed_ids) < settings.min_tokens:
            logits_V = logits_V.index_fill(0, self._stop_ids, float("-inf"))
        if history.counts is None:
            return logits_V
        counts = history.counts.with_tokens(proposed_ids) if proposed_ids else history.counts
        return penalised(logits_V, settings, in_output_V=counts.in_output_V, seen_V=counts.seen_V)

    def _nucleus_edge(self, scaled_V: torch.Tensor) -> torch.Tensor:
        """The least likely value of the smallest set of most likely tokens whose probabilities reach top-p."""
        wanted = self.settings.top_p * float(scaled_V.exp().sum())
        # Sorting all is slow and seldom needed: the largest few mostly reach top-p of the whole.
        num_sorted = min(self.settings.top_k or _NUM_SORTED, self.vocab_size)
        sorted_C = torch.topk(scaled_V, num_sorted).values
        if num_sorted < self.vocab_size and float(sorted_C.exp().sum()) < wanted:
            sorted_C = torch.sort(scaled_V, descending=True).values
        return edge_of_sorted(sorted_C, wanted)
