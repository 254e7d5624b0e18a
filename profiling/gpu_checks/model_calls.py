"""The two calls that rounds are made of, ready to be timed: a verify of some width, and a draft step.

Owns their caches. Knows nothing of timing.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from models import Decoder
from profiling.gpu_checks.bench import GpuBench, layer_bytes, table_bytes

_MOST_WIDTH = 16


class ModelCalls:
    """A decoder behind a text of a given length; calls leave the cache as it was."""

    def __init__(self, bench: GpuBench, decoder: Decoder) -> None:
        """Fill a cache up to the bench's position."""
        self._decoder = decoder
        self._position = bench.sizes.position
        self._cache = decoder.new_cache(self._position + _MOST_WIDTH)
        # Once and for all: a call that made its input would be timed with it.
        self._ids_T = torch.arange(_MOST_WIDTH, device=bench.device)
        self._last_two = torch.tensor([self._position - 1, self._position], device=bench.device)
        prompt_T = torch.arange(self._position, device=bench.device) % decoder.vocab_size
        for block_T in torch.split(prompt_T, decoder.max_block):
            decoder.forward(block_T, self._cache, num_logits=0)
        bench.gauge.synchronize()

    def verify(self, width: int) -> Callable[[], object]:
        """Read `width` tokens, with a row for each."""

        def call() -> None:
            self._decoder.forward(self._ids_T[:width], self._cache, num_logits=width)
            self._cache.rollback(self._position)

        return call

    def step(self) -> Callable[[], object]:
        """Read two tokens at positions that only the device knows, with a row for the last."""

        def call() -> None:
            self._decoder.forward_at(
                self._ids_T[:2], self._last_two, self._cache, key_length=self._position + 1, num_logits=1
            )

        return call


def bytes_moved(decoder: Decoder, position: int) -> int:
    """What one call must read at least, in bfloat16: all matrices and the head once, and the keys and values."""
    config = decoder.config
    keys_values = 2 * 2 * config.num_layers * config.num_kv_heads * config.head_dim * position
    return config.num_layers * layer_bytes(config) + table_bytes(config) + keys_values
