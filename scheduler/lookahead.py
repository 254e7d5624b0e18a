"""The host's view of the chain: pieces that were launched and neither committed nor thrown away.

Owns the plan of the next block (what is ready, and what the target waits for) and the count of what is thrown away. It
looks at events and never waits.

Whatever is decided here depends on time and on the text before a block, never on the value of a token that is yet to be
judged: under the rejection rule that would change the law.
"""

from __future__ import annotations

import dataclasses

from scheduler.block import BlockPlan, Piece
from scheduler.gamma import Leads
from scheduler.pace import Pace
from scheduler.round import Drafted, Judgement, RoundReport
from scheduler.streams.lineage import Generation


class Lookahead:
    """Pieces of one request, oldest first."""

    def __init__(self, generation: Generation, *, leads: Leads, num_awaited: int | None, behind: bool) -> None:
        """Start without pieces.

        Args:
            generation: of the pieces that are launched now; the loop begins a new one behind each verdict.
            leads: how far past a block sources may draft.
            num_awaited: proposals that a block waits for where fewer are ready; 0 verifies what there is, even nothing,
                None waits for as many as are worth verifying at once.
            behind: whether the draft has much to read before it can propose.
        """
        self.generation = generation
        self._lead = leads.least
        """Tokens worth drafting past a block, by the newest piece that has run; 0 has the lanes take turns."""
        self._num_awaited = num_awaited
        self._ready: list[Drafted] = []
        """What the first pieces hold: those that were seen to have run."""
        self._num_held = 0
        """Tokens in these."""
        self._pieces: list[Piece] = []
        self._num_taken = 0
        self._late: list[Piece] = []
        """Thrown away before they had run."""
        self.error: BaseException | None = None
        """What the draft raised in a piece that was looked at; the pieces behind it have failed as well."""
        self._pace = Pace()
        self._ran_ahead = False
        """Whether the draft had something to do behind the guess while the block was verified."""
        self._gamma: int | None = None
        """Tokens worth verifying at once, by the newest piece that has run; None before the first one, which the
        target waits for as for a block's first token: it might go on alone for long beside a draft that is late."""
        self._behind = behind
        """Whether, by that piece, the draft is still reading: then nothing is expected of it."""
        self._instant = False
        """Whether the newest tokens come from a look-up."""
        self._quiet = False
        """Whether, by that piece, no source wants to draft: then no steps are launched beside the one that asks."""
        self._together = False
        """Whether a draft goes on beside the last block that was planned."""
        self._draft_ms = 0.0
        self._num_discarded = 0

    def add(self, piece: Piece) -> None:
        """A piece was launched, the newest."""
        self._pieces.append(piece)

    def look(self) -> None:
        """Note which pieces have run by now; one without a token is forgotten."""
        while self.error is None and len(self._ready) < len(self._pieces):
            piece = self._pieces[len(self._ready)]
            # A verdict may have refuted a piece a moment ago, and all behind it.
            if not piece.drafted.done() or piece.launch.skipped:
                break
            drafted = self._result_of(piece)
            if drafted is None:
                break
            if drafted.gamma:
                self._gamma, self._lead = drafted.gamma, drafted.lead
            self._behind = drafted.behind
            self._quiet = not drafted.gamma
            if drafted.proposal:
                self._ready.append(drafted)
                self._num_held += len(drafted.proposal)
                self._instant = piece.instant
            else:
                self._draft_ms += drafted.proposal.draft_ms
                del self._pieces[len(self._ready)]

    def num_missing(self, room: int) -> int:
        """Steps to launch before the next block, so that all it may wait for is on its way."""
        if not self._active(room):
            return 0
        return max(0, self._block_size(room) + self._runs_ahead - self._num_tokens)

    def num_ahead_missing(self, room: int) -> int:
        """Steps to launch behind the next block, so that the draft has enough to do meanwhile."""
        active = self._active(room) and self._runs_ahead
        self._ran_ahead = active and self._lead > 1
        return max(0, self._block_size(room) + self._lead - self._num_tokens) if active else 0

    def plan(self, room: int) -> BlockPlan:
        """The next block of at most `room` tokens: all that is ready, and what is worth waiting for."""
        self._together = self._active(room) and self._runs_ahead and not self._instant
        if not room:
            return BlockPlan()
        size = min(room, self._gamma or 0)
        may_guess = not self._behind and not self._pace.too_slow and (self._lead > 0 or self._num_ready > size)
        stop = len(self._ready)
        num_waiting = self._block_size(room) - self._num_ready
        if self._num_ready == 0 and stop < len(self._pieces) and self._pieces[stop].instant:
            stop += 1
        while num_waiting > 0 and stop < len(self._pieces):
            num_waiting -= not self._pieces[stop].instant
            stop += 1
        return BlockPlan(
            pieces=tuple(self._pieces[:stop]),
            num_taken=self._num_taken,
            max_tokens=room,
            guesses=self._guesses(room, stop) if may_guess else (),
            may_guess=may_guess,
            together=self._together,
        )

    def commit(self, judgement: Judgement) -> None:
        """Take up what was judged; without a hit the rest is thrown away."""
        self.look()
        shows_pace = judgement.has_guess and self._ran_ahead
        self._pace.note(self._num_ready > len(judgement.proposal) if shows_pace else None)
        if not judgement.hit:
            self._num_taken += judgement.num_verified
            self._throw_away([piece for piece in self._pieces if piece.generation is self.generation])
            return
        self._num_taken += len(judgement.verdict.token_ids)
        while self._ready and self._num_taken >= len(self._ready[0].proposal):
            self._num_taken -= len(self._ready[0].proposal)
            self._num_held -= len(self._ready[0].proposal)
            self._draft_ms += self._ready[0].proposal.draft_ms
            del self._ready[0], self._pieces[0]

    def bill(self, report: RoundReport) -> RoundReport:
        """The report with what the draft did for tokens that were used up or thrown away since the last one.

        A piece that was thrown away while it ran is counted once it is seen to have run; with the last report whatever
        is left is thrown away.
        """
        if report.finish_reason is not None:
            self._throw_away([])
        running = []
        for piece in self._late:
            if not piece.drafted.done():
                running.append(piece)
            elif not piece.launch.skipped and (drafted := self._result_of(piece)) is not None:
                self._num_discarded += len(drafted.proposal)
                self._draft_ms += drafted.proposal.draft_ms
        self._late = running
        report = dataclasses.replace(
            report, together=self._together, draft_ms=self._draft_ms, num_discarded=self._num_discarded
        )
        self._draft_ms, self._num_discarded = 0.0, 0
        return report

    def _result_of(self, piece: Piece) -> Drafted | None:
        """What a piece brought; an error is kept for the loop, which has something to hand out first."""
        try:
            return piece.launch.result()
        except BaseException as error:
            self.error = error
            return None

    def _throw_away(self, kept: list[Piece]) -> None:
        """Forget all pieces but those that were launched behind the verdict, whatever it was to be."""
        num_old = len(self._pieces) - len(kept)
        old = self._ready[:num_old]
        num_old_tokens = sum(len(drafted.proposal) for drafted in old)
        self._num_held -= num_old_tokens
        self._num_discarded += num_old_tokens - self._num_taken
        self._draft_ms += sum(drafted.proposal.draft_ms for drafted in old)
        self._late += self._pieces[len(old) : num_old]
        self._pieces, self._ready, self._num_taken = kept, self._ready[num_old:], 0

    @property
    def _runs_ahead(self) -> bool:
        """Whether the draft goes on past a block while that is verified."""
        return self._lead > 0 and not self._pace.too_slow

    @property
    def _num_ready(self) -> int:
        """Tokens that can be verified now."""
        return self._num_held - self._num_taken

    @property
    def _num_tokens(self) -> int:
        """Tokens that are ready or on their way, if no step fails to bring one."""
        return self._num_ready + sum(not piece.instant for piece in self._pieces[len(self._ready) :])

    @property
    def oldest(self) -> Piece | None:
        """The first piece whose slot may still be read."""
        return self._pieces[0] if self._pieces else None

    @property
    def worth_drafting(self) -> bool:
        """Whether a new chain is worth its first step: the target will find it ready, or wait for it."""
        return not self._pace.too_slow or self._num_awaited != 0

    def _active(self, room: int) -> bool:
        """Whether more steps make sense beside the first of a chain, which asks, reads and shows what can be had."""
        return room > 0 and not self._quiet and not self._behind

    def _block_size(self, room: int) -> int:
        """Tokens of the next block, as far as it can be known."""
        gamma = 1 if self._gamma is None else self._gamma
        num_awaited = gamma if self._num_awaited is None else self._num_awaited
        return min(room, max(min(self._num_ready, gamma), 0 if self._behind else num_awaited))

    def _guesses(self, room: int, start: int) -> tuple[Piece, ...]:
        """The pieces to look for a guess in, up to the first step; none where the ready ones hold it."""
        if self._num_ready > min(room, self._gamma or 0):
            return ()
        for stop, piece in enumerate(self._pieces[start:], start=start + 1):
            if not piece.instant:
                return tuple(self._pieces[start:stop])
        return tuple(self._pieces[start:])
