"""The noise of positions that only the device knows.

Owns a table of keys on the device, one entry for each position and purpose, and turns them into the same noise as
`scheduler.noise`. Keys come from the host, ahead of time, because BLAKE2b is no work for a tensor library; all that
follows is integer arithmetic on the device. Knows nothing of logits or models.

Bits, uniforms and so every key are the same on all devices. Gumbel variates pass through two logarithms, whose last
bits are those of the device.

Shape suffixes: P positions that the table has room for, R rows asked for, V token ids asked for.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import torch

from scheduler.noise import Purpose, bits_of_keys, gumbel_of_bits, key_bytes
from scheduler.settings import SamplingSettings, Verification, check_integer

_CHUNK = 256
"""Positions whose keys are uploaded at once."""
_LOW_WORD = (1 << 32) - 1


def purposes_of(settings: SamplingSettings) -> tuple[Purpose, ...]:
    """The purposes that a request's draws have."""
    if settings.verification is Verification.REJECTION:
        return (Purpose.DRAFT, Purpose.ACCEPT, Purpose.RESIDUAL, Purpose.TARGET)
    return () if settings.greedy else (Purpose.SHARED,)


class NoiseTable:
    """Keys of one seed, on one device; the tensor that holds them never moves."""

    def __init__(
        self,
        seed: int,
        *,
        device: torch.device | str,
        num_positions: int,
        first_position: int = 0,
        purposes: Collection[Purpose] = tuple(Purpose),
    ) -> None:
        """Make room for a request's positions; `reserve` fills it.

        Args:
            seed: any 64-bit integer.
            device: where positions and noise live.
            num_positions: the end of the table: every position asked for lies below it.
            first_position: the start of the table; the prompt's tokens need no noise.
            purposes: those that will be asked for.

        Raises:
            TypeError, ValueError: if a number is no integer, or the table would end before it starts.
        """
        check_integer("first_position", first_position, low=0, advice="0 is the first token of the prompt")
        check_integer("num_positions", num_positions, low=first_position, advice="end the table where the request ends")
        self.seed = seed
        self.device = torch.device(device)
        self.first_position = first_position
        self.num_positions = num_positions
        self._num_reserved = first_position
        room = num_positions - first_position
        self._keys_P2 = {purpose: torch.zeros(room, 2, dtype=torch.int32, device=device) for purpose in purposes}

    @property
    def num_reserved(self) -> int:
        """Positions below this one can be asked for."""
        return self._num_reserved

    def reserve(self, num_positions: int) -> None:
        """Enqueue the upload of all keys below `num_positions` that are not there yet.

        Keys travel in chunks, so more than asked for may come. Call it before whatever reads them, on the same stream
        or behind an event that readers wait for; on a CUDA device the host does not wait for the copy.

        Raises:
            ValueError: if the table has no room for that position.
        """
        if num_positions > self.num_positions:
            raise ValueError(
                f"num_positions must be at most {self.num_positions}, the end of this table, got {num_positions}; "
                "make the table as long as the request can become"
            )
        while self._num_reserved < num_positions:
            stop = min(self._num_reserved + _CHUNK, self.num_positions)
            place = slice(self._num_reserved - self.first_position, stop - self.first_position)
            for purpose, keys_P2 in self._keys_P2.items():
                chunk_P2 = _keys(self.seed, range(self._num_reserved, stop), purpose)
                if self.device.type == "cuda":
                    chunk_P2 = chunk_P2.pin_memory()
                keys_P2[place].copy_(chunk_P2, non_blocking=True)
            self._num_reserved = stop

    def gumbel_RV(self, purpose: Purpose, positions_R: torch.Tensor, token_ids_V: torch.Tensor) -> torch.Tensor:
        """Standard Gumbel noise, float32: `noise.gumbel_noise` of each position.

        Args:
            purpose: what the draws decide.
            positions_R: int64, each of them reserved and within the table; nobody can check that here.
            token_ids_V: int32.
        """
        keys_R2 = self._keys(purpose, positions_R)
        return gumbel_of_bits(bits_of_keys(keys_R2[:, :1], keys_R2[:, 1:], token_ids_V))

    def uniform_R(self, purpose: Purpose, positions_R: torch.Tensor) -> torch.Tensor:
        """Uniform numbers in [0, 1), float64: `noise.uniform` of each position (int64, as in `gumbel_RV`)."""
        words_R2 = self._keys(purpose, positions_R).to(torch.int64) & _LOW_WORD
        # The 64-bit word without its 11 lowest bits; it would not fit a signed integer with them.
        shifted_R = (words_R2[:, 1] << 21) | (words_R2[:, 0] >> 11)
        return shifted_R.to(torch.float64) * 2.0**-53

    def _keys(self, purpose: Purpose, positions_R: torch.Tensor) -> torch.Tensor:
        keys_P2 = self._keys_P2.get(purpose)
        if keys_P2 is None:
            raise ValueError(f"the table was made without keys for {purpose.name}; name it among the purposes")
        return keys_P2.index_select(0, positions_R - self.first_position)


def _keys(seed: int, positions: range, purpose: Purpose) -> torch.Tensor:
    """int32, two words a position."""
    digests = b"".join(key_bytes(seed, position, purpose) for position in positions)
    words = np.frombuffer(digests, dtype="<i4").astype(np.int32)
    return torch.from_numpy(words).view(-1, 2)
