"""What the target's launches do: read a block, judge it, and tell the host.

Owns the protocol `TargetSide`, and `HostTarget`, whose tokens and verdicts are plain numbers as soon as a launch has
run. Another kind may keep them on the device until the host has to know. Knows nothing of streams or slots.

Shape suffixes: R logit rows of a block, V vocabulary.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch

from scheduler.block import BlockPlan
from scheduler.costs import elapsed_ms
from scheduler.decoding import Decoding
from scheduler.history import TokenHistory
from scheduler.lane import Lane
from scheduler.round import Judgement, Proposal
from scheduler.streams.lineage import Generation
from scheduler.verify import judge


class TargetSide(Protocol):
    """What a verifier launches on the target's stream, and what it asks for once that has run.

    What `forward` hands to `judge`, and `judge` to `outcome` and to the draft's chain, is the affair of one residency:
    whoever launches them only passes it on.
    """

    @property
    def learns_late(self) -> bool:
        """Whether launches cannot know what they judged, so that `confirm` has to tell them."""
        ...

    def forward(self, decoding: Decoding, history: TokenHistory, plan: BlockPlan) -> Any:
        """Launched behind the block's pieces: read what of `history` the target has not read, and the block."""
        ...

    def judge(
        self,
        decoding: Decoding,
        history: TokenHistory,
        plan: BlockPlan,
        forwarded: Any,
        slot: int,
        generation: Generation | None,
    ) -> Any:
        """Launched behind the guess: judge what was read; the verdict may stay in that slot until it was settled."""
        ...

    def outcome(self, judged: Any, elapsed_ms: float | None) -> Judgement:
        """On the host, once the verdict is there.

        Args:
            judged: what `judge` gave.
            elapsed_ms: time that reading the block took on the device; None where nobody knows.

        Raises:
            NonFiniteLogitsError: if a row was found from which nothing can be drawn, and no launch could say so.
        """
        ...

    def confirm(self, judgement: Judgement) -> None:
        """Launched behind `outcome` where launches learn late: what the lane holds is known now."""
        ...


@runtime_checkable
class Forwarded(Protocol):
    """What every residency's `forward` can tell."""

    @property
    def num_read(self) -> int:
        """Tokens that the target read: what was committed since the last call, and the block."""
        ...


@dataclass(frozen=True, kw_only=True)
class _Forwarded:
    block: Proposal
    logits_RV: torch.Tensor
    num_read: int
    elapsed_ms: float


class HostTarget:
    """Reads and judges with values on the host: each launch waits for its own results."""

    learns_late = False
    """A verdict is known to the launch that made it."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane

    def forward(self, decoding: Decoding, history: TokenHistory, plan: BlockPlan) -> _Forwarded:
        """See `TargetSide.forward`."""
        started_s = time.perf_counter()
        self._lane.share(together=plan.together)
        block = plan.block()
        # What the target has not read yet: the last committed token, at first the prompt's tail as well.
        token_ids = [*history.ids(self._lane.num_held), *block.token_ids]
        logits_RV = self._lane.feed(token_ids, num_logits=len(block) + 1)
        return _Forwarded(block=block, logits_RV=logits_RV, num_read=len(token_ids), elapsed_ms=elapsed_ms(started_s))

    def judge(
        self,
        decoding: Decoding,
        history: TokenHistory,
        plan: BlockPlan,
        forwarded: _Forwarded,
        slot: int,
        generation: Generation | None,
    ) -> Judgement:
        """Judge the block and cut the cache back; unless the guess was right, `generation` is retired at once."""
        started_s = time.perf_counter()
        block = forwarded.block
        proposal = block.followed_by(plan.guess())
        verdict = judge(
            decoding.law, forwarded.logits_RV, history, proposal, num_logprobs=decoding.request.num_logprobs
        )
        kept_length = history.length + min(verdict.num_accepted, len(block))
        self._lane.roll_back(kept_length)
        judgement = Judgement(
            proposal=proposal,
            num_verified=len(block),
            verdict=verdict,
            history=history.extended(verdict.token_ids),
            kept_length=kept_length,
            verify_ms=forwarded.elapsed_ms + elapsed_ms(started_s),
            features=self._lane.hand_out_features() if decoding.hands_out_features else None,
        )
        if generation is not None and not judgement.hit:
            generation.lineage.retire(generation)
        return judgement

    def outcome(self, judged: Judgement, elapsed_ms: float | None) -> Judgement:
        """What `judge` came to, which has timed itself."""
        return judged

    def confirm(self, judgement: Judgement) -> None:
        """Nothing to do: `judge` has done it."""
