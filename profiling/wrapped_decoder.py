"""A decoder whose work is done and whose answers are somebody else's.

Owns what such models hand on of their decoder. Knows nothing of what they answer.
"""

from __future__ import annotations

import torch

from models import Cache, Decoder


class WrappedDecoder:
    """All of a `models.CausalModel` but its answers."""

    def __init__(self, decoder: Decoder) -> None:
        """Wrap `decoder`."""
        self._decoder = decoder

    @property
    def name(self) -> str:
        """The decoder's name."""
        return self._decoder.name

    @property
    def vocab_size(self) -> int:
        """The decoder's."""
        return self._decoder.vocab_size

    @property
    def context_length(self) -> int:
        """The decoder's."""
        return self._decoder.context_length

    @property
    def max_block(self) -> int:
        """The decoder's."""
        return self._decoder.max_block

    @property
    def device(self) -> torch.device:
        """The decoder's."""
        return self._decoder.device

    def new_cache(self, capacity: int) -> Cache:
        """A cache of the decoder."""
        return self._decoder.new_cache(capacity)
