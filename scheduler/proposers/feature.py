"""Proposals from a draft that reads the target's features.

Owns when such a draft can read: behind the target, which has to have been where the draft goes. Knows nothing of how
features travel.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from scheduler.distribution import SamplingLaw
from scheduler.feature_lane import FeatureLane
from scheduler.features import Features
from scheduler.gamma import GammaPolicy
from scheduler.history import TokenHistory
from scheduler.proposers.base import Proposer
from scheduler.proposers.model import ModelProposer
from scheduler.round import Proposal

_WORTH_A_CALL = 16
"""Fewer tokens are read along with the next step, which costs nearly nothing."""


def feature_size_of(proposers: Sequence[Proposer]) -> int | None:
    """Width of the features that one of the sources reads; None where none does."""
    sizes = [proposer.feature_size for proposer in proposers if isinstance(proposer, FeatureProposer)]
    return sizes[0] if sizes else None


class FeatureProposer(ModelProposer):
    """A `ModelProposer` whose model reads what the target made of the tokens before."""

    def __init__(self, lane: FeatureLane, policy: GammaPolicy, *, proposable_ids_C: torch.Tensor | None = None) -> None:
        """Bind the draft's lane to its gamma policy; the draft has its target's ids, but may propose only some."""
        super().__init__(lane, policy, proposable_ids_C=proposable_ids_C)
        self._feature_lane = lane

    @property
    def buffers(self) -> tuple[str, ...]:
        """The draft's cache and its features."""
        return self._feature_lane.buffers

    @property
    def feature_size(self) -> int:
        """Width E of a feature."""
        return self._feature_lane.feature_size

    def receive(self, features: Features) -> None:
        """Take in what the target hands out."""
        self._feature_lane.receive(features)

    def extend(self, law: SamplingLaw, history: TokenHistory, chain_ids: Sequence[int], max_tokens: int) -> Proposal:
        """As `ModelProposer.extend`, once the target has handed out all that the draft needs; before that, nothing."""
        if self._waits_for_features(history):
            return Proposal()
        if not chain_ids:
            # A new chain rests on rows as good as they can be; where the last one was used up, they are not yet.
            self._feature_lane.roll_back(self._feature_lane.num_held)
        return super().extend(law, history, chain_ids, max_tokens)

    def is_behind(self, history: TokenHistory) -> bool:
        """Whether the target has not been there yet, or the draft needs more than one call to catch up."""
        return self._waits_for_features(history) or super().is_behind(history)

    def catch_up(self, history: TokenHistory) -> None:
        """Read one block of what the target has read before."""
        if self._policy.idle or history.length >= self._lane.capacity:
            return
        # Behind rows of a chain that was used up, all would have to be read once more.
        self._feature_lane.roll_back(self._feature_lane.num_held)
        num_held = self._lane.num_held
        stop = min(self._feature_lane.num_readable, history.length - 1, num_held + self._lane.model.max_block)
        if stop - num_held < _WORTH_A_CALL:
            return
        # The target reads the prompt meanwhile.
        self._lane.share(together=True)
        self._lane.feed(history.ids(num_held)[: stop - num_held], num_logits=0)

    def _waits_for_features(self, history: TokenHistory) -> bool:
        readable = self._feature_lane.num_readable
        return readable < min(history.length, self._lane.capacity)
