"""Features on their way from the target's stream to a draft's, and where each side keeps them.

Owns the value that is handed on and the memory by position. Knows nothing of models or streams. What a feature is says
`models.feature_model`.

Shape suffixes: N neighbouring positions, S positions of a sequence, E width of a feature.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from scheduler.streams.base import Event, Launch


@dataclass(frozen=True, kw_only=True)
class Features:
    """Features of neighbouring positions; they replace all that was known from `start` on."""

    start: int
    """The first position."""
    rows_NE: torch.Tensor
    """float32; a copy that nobody writes to."""

    @property
    def stop(self) -> int:
        """The position behind the last."""
        return self.start + self.rows_NE.shape[0]


@dataclass(frozen=True, kw_only=True)
class FeatureParcel:
    """A launch on the target's stream that hands features out, and the slot that they are in."""

    launch: Launch[Features]
    sent: Event
    buffer: str


class FeatureRecord:
    """Features of one sequence by position, in memory that is allocated once.

    Row 0 is zero and position p is at row p + 1, so that the rows at a call's own positions are what its tokens read.
    """

    def __init__(self, capacity: int, size: int, device: torch.device) -> None:
        """Allocate for `capacity` positions of `size` numbers."""
        self._rows_SE = torch.zeros(capacity + 1, size, device=device)

    @property
    def num_bytes(self) -> int:
        """Bytes allocated."""
        return self._rows_SE.nbytes

    def write(self, start: int, rows_NE: torch.Tensor) -> None:
        """Keep the features of the positions from `start` on."""
        self._rows_SE[start + 1 : start + 1 + rows_NE.shape[0]].copy_(rows_NE)

    def copied(self, start: int, stop: int) -> Features:
        """The features of positions `start` to `stop` - 1, copied."""
        return Features(start=start, rows_NE=self._rows_SE[start + 1 : stop + 1].clone())

    def before(self, start: int, stop: int) -> torch.Tensor:
        """What tokens at `start` to `stop` - 1 read, a view: the features one position before each."""
        return self._rows_SE[start:stop]
