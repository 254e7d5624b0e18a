"""A decoder inside a model that reads other inputs, or gives other answers, than the decoder itself.

Owns what such models hand on unchanged. Knows nothing of what they read and answer.
"""

from __future__ import annotations

import torch

from models.decoder import Decoder
from models.kv_cache import KeyValueCache


class WrappedDecoder:
    """All of a `models.causal_model.CausalModel` but `forward`."""

    def __init__(self, decoder: Decoder) -> None:
        """Wrap `decoder`."""
        self._decoder = decoder

    @property
    def name(self) -> str:
        """The decoder's name."""
        return self._decoder.name

    @property
    def vocab_size(self) -> int:
        """Width V of the decoder's logit rows."""
        return self._decoder.vocab_size

    @property
    def context_length(self) -> int:
        """Most positions of the decoder."""
        return self._decoder.context_length

    @property
    def max_block(self) -> int:
        """Most tokens of one call of the decoder."""
        return self._decoder.max_block

    @property
    def device(self) -> torch.device:
        """Where the decoder runs."""
        return self._decoder.device

    def new_cache(self, capacity: int) -> KeyValueCache:
        """An empty cache of the decoder, for one sequence of at most `capacity` tokens.

        Raises:
            ValueError: if `capacity` is below 1.
        """
        return self._decoder.new_cache(capacity)
