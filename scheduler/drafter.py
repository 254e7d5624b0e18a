"""The draft lane's half of every loop: launches that lengthen the chain and settle it.

Owns the draft's stream, its ring of result slots and the edges between it and the target's verdicts. Knows nothing of
how a source drafts or how a block is judged.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from scheduler.block import Flight, Piece
from scheduler.decoding import Decoding
from scheduler.features import FeatureParcel, Features
from scheduler.gamma import IN_TURN, Leads
from scheduler.history import TokenHistory
from scheduler.launch_kind import LaneName, LaunchKind, Stage
from scheduler.proposers.base import Proposer
from scheduler.proposers.feature import FeatureProposer, feature_size_of
from scheduler.residency import HostResidency, Residency
from scheduler.round import Drafted, Judgement
from scheduler.spans import SpanRecorder
from scheduler.streams.base import Event, Launch, Stream
from scheduler.streams.lineage import Generation

_MORE_SLOTS = 6
"""Slots beside those of a block and its lookahead: pieces that bring no token take one as well. Where all are taken,
nothing is launched until the oldest is free."""


class Drafter:
    """Any number of draft sources on one stream."""

    def __init__(
        self,
        name: str,
        stream: Stream,
        proposers: Sequence[Proposer],
        *,
        max_gamma: int,
        leads: Leads = IN_TURN,
        residency: Residency | None = None,
        spans: SpanRecorder | None = None,
    ) -> None:
        """Bind the sources.

        Args:
            name: of the loop, before the names of its buffers.
            stream: where they run; may be the target's own.
            proposers: the one that promises most is heard, the earlier of two that promise the same.
            max_gamma: most tokens of a block.
            leads: how far past a block they may draft.
            residency: where a round's values live; None has them on the host.
            spans: records launches while it is running.
        """
        self._spans = spans or SpanRecorder()
        self._track = self._spans.track(LaneName.DRAFT, stream)
        self._proposers = tuple(proposers)
        self._num_slots = max_gamma + leads.most + _MORE_SLOTS
        self._chain = (residency or HostResidency()).draft_side(
            self._proposers, max_gamma=max_gamma, leads=leads, num_slots=self._num_slots
        )
        self._name = name
        self._buffers = (f"{name}.chain", *(name for proposer in self._proposers for name in proposer.buffers))
        self._num_pieces = 0
        self.looks_up = any(proposer.instant for proposer in self._proposers)
        """Whether any source gives its tokens at once."""
        self.steps = any(not proposer.instant for proposer in self._proposers)
        """Whether any source takes a step for each token."""
        self.reads_features = feature_size_of(self._proposers) is not None
        """Whether any source reads the target's features."""
        self._feature_readers = [proposer for proposer in self._proposers if isinstance(proposer, FeatureProposer)]
        self.max_block = min((proposer.max_block for proposer in self._proposers), default=sys.maxsize)
        """Tokens of a prompt that every source reads at once."""

    def begin(self, decoding: Decoding, history: TokenHistory) -> None:
        """Start a request: the sources keep what still holds."""
        if self._proposers:
            begin = partial(self._chain.begin, decoding, history)
            self._track.stream.launch(begin, writes=self._buffers, label=LaunchKind.BEGIN)

    def catch_up(self, generation: Generation) -> None:
        """Read a part of what a source has missed."""
        self._track.stream.launch(
            self._chain.catch_up, writes=self._buffers, label=LaunchKind.CATCH_UP, generation=generation
        )

    def draft_block(self, max_tokens: int) -> tuple[Piece, ...]:
        """A whole block in one launch; nothing where there is no room or no source."""
        if not max_tokens or not self._proposers:
            return ()
        return (self._piece(partial(self._chain.draft_block, max_tokens), LaunchKind.DRAFT),)

    def look_up(self, generation: Generation) -> Piece:
        """Ask the sources, and take what an instant one has."""
        return self._piece(self._chain.look_up, LaunchKind.LOOK_UP, generation, instant=True)

    def step(self, generation: Generation, *, ahead: bool = True) -> Piece:
        """One more token: of the next block and its guess, or further `ahead`."""
        return self._piece(partial(self._chain.step, ahead=ahead), LaunchKind.DRAFT, generation)

    def has_slot(self, oldest: Piece | None) -> bool:
        """Whether one more piece can be launched without taking the slot of `oldest`, or of a piece after it."""
        return oldest is None or self._num_pieces - oldest.number < self._num_slots

    def settle(self, flight: Flight) -> Event | None:
        """Behind the verdict, keep the chain or roll every source back; the host is not asked.

        Returns:
            None where there is no source, else an event behind it which carries no error: a failed verdict reaches the
            host, and not the next request.
        """
        if not self._proposers:
            return None
        self._track.stream.wait(flight.verified)
        self._track.stream.launch(
            partial(self._settle, flight.judged),
            reads=(flight.buffer,),
            writes=self._buffers,
            label=LaunchKind.SETTLE,
        )
        # This event takes up a verdict's error, which the host gets from the flight; a source's own the chain keeps.
        self._track.stream.record()
        return self._track.stream.record()

    def take_features(self, parcel: FeatureParcel) -> Event:
        """Behind the target's stream, give its features to the sources that read them.

        Returns:
            An event behind it which carries no error.
        """
        self._track.stream.wait(parcel.sent)
        self._track.stream.launch(
            lambda: self._receive(parcel.launch.result()),
            reads=(parcel.buffer,),
            writes=self._buffers,
            label=LaunchKind.TAKE_FEATURES,
        )
        self._track.stream.record()
        return self._track.stream.record()

    def _settle(self, judged: Launch[Any]) -> None:
        judgement = judged.result()
        if self._spans.on and isinstance(judgement, Judgement) and judgement.refuted:
            with self._spans.marked("roll back", Stage.ROLLBACK):
                self._chain.settle(judgement)
        else:
            self._chain.settle(judgement)
        # Last: where taking features in fails, the chain must not go on from refuted tokens all the same.
        if self._feature_readers and isinstance(judgement, Judgement) and judgement.features:
            self._receive(judgement.features)

    def _receive(self, features: Features) -> None:
        for proposer in self._feature_readers:
            proposer.receive(features)

    def note(self, judgement: Judgement) -> None:
        """Tell the chain of the verdict that was settled last, unless it knew as soon as it settled it."""
        if self._proposers and self._chain.learns_late:
            self._track.stream.launch(partial(self._chain.note, judgement), writes=self._buffers, label=LaunchKind.NOTE)
            # Takes up the chain's error: it comes back with the next piece, and must not keep a request from beginning.
            self._track.stream.record()

    def explain(self) -> str:
        """Which source was heard, and why, in words; nothing where there is one or none."""
        return self._chain.explain()

    def _piece(
        self,
        work: Callable[[int], Drafted],
        kind: LaunchKind,
        generation: Generation | None = None,
        *,
        instant: bool = False,
    ) -> Piece:
        number = self._num_pieces
        slot = number % self._num_slots
        buffer = f"{self._name}.ring[{slot}]"
        self._num_pieces += 1
        stream = self._track.stream
        launch = stream.launch(partial(work, slot), writes=(*self._buffers, buffer), label=kind, generation=generation)
        if self._spans.on:
            self._spans.note_piece(number)
        drafted = stream.record()
        return Piece(
            launch=launch, drafted=drafted, buffer=buffer, number=number, instant=instant, generation=generation
        )
