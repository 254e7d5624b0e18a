"""Models that do a decoder's work and then say what a script tells them, on the device.

Owns the scripts and the model that reads them. With random weights no draft would ever be right; under scripts the
target's text is known beforehand and the draft is right as often as it is planted to be. Knows nothing of rounds.

Shape suffixes: T tokens of a call, R logit rows, V vocabulary, P positions.
"""

from __future__ import annotations

import random

import torch

from models import Cache, Decoder, WrappedDecoder

_CERTAIN = 1e4
"""A logit above all others."""


def target_script(num_positions: int, vocab_size: int, *, seed: int) -> list[int]:
    """The token at each position."""
    draw = random.Random(seed)
    return [draw.randrange(vocab_size) for _ in range(num_positions)]


def draft_script(target_ids: list[int], vocab_size: int, *, acceptance: float, seed: int) -> list[int]:
    """The target's token with that probability, else the id after it; what is right stays right at any higher one."""
    draw = random.Random(seed)
    return [token_id if draw.random() < acceptance else (token_id + 1) % vocab_size for token_id in target_ids]


class ScriptedModel(WrappedDecoder):
    """A `models.PositionedModel` that runs a decoder and makes one token of each row certain."""

    def __init__(self, decoder: Decoder, script: list[int]) -> None:
        """Say `script[p]` at position p.

        Args:
            decoder: does the work.
            script: ids of the decoder's vocabulary, for every position that is asked for.
        """
        super().__init__(decoder)
        self._script_P = torch.tensor(script, dtype=torch.int64, device=decoder.device)

    def forward(self, token_ids_T: torch.Tensor, cache: Cache, *, num_logits: int) -> torch.Tensor:
        """See `models.CausalModel.forward`."""
        logits_RV = self._decoder.forward(token_ids_T, cache, num_logits=num_logits)
        # The row behind the token at p is about the token at p + 1.
        end = cache.length + 1
        return self._say(logits_RV, self._script_P[end - num_logits : end])

    def forward_at(
        self,
        token_ids_T: torch.Tensor,
        positions_T: torch.Tensor,
        cache: Cache,
        *,
        key_length: int,
        num_logits: int,
    ) -> torch.Tensor:
        """See `models.PositionedModel.forward_at`."""
        logits_RV = self._decoder.forward_at(
            token_ids_T, positions_T, cache, key_length=key_length, num_logits=num_logits
        )
        num_tokens = len(token_ids_T)
        said_R = self._script_P.index_select(0, positions_T[num_tokens - num_logits :] + 1)
        return self._say(logits_RV, said_R)

    def _say(self, logits_RV: torch.Tensor, token_ids_R: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            return logits_RV.scatter_(1, token_ids_R[:, None], _CERTAIN)
