"""The pipelined loop: while a block is verified, the draft goes on past it.

Owns the order of one request's rounds when two lanes work at once. What it hands to the target and when is all that
sets it apart from `scheduler.sequential`; lanes, verdicts, settling and commits are the same. Knows nothing of text,
and of devices only what the stream protocol says.

The first token past a block is the guess for the token that the target will add to it. If the whole block is accepted
and the guess is right (a hit), what was drafted behind it is the next block, ready before the target asks. Otherwise
the draft's stream, which waits for nothing but the verdict, cuts its cache back and starts anew, and launches that rest
on the refuted tokens are skipped.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

from scheduler.block import Flight
from scheduler.commit import commit
from scheduler.decoding import Decoding
from scheduler.drafter import Drafter
from scheduler.features import FeatureParcel
from scheduler.gamma import Leads
from scheduler.history import TokenHistory
from scheduler.lane import Lane
from scheduler.lookahead import Lookahead
from scheduler.proposers.base import Proposer
from scheduler.proposers.feature import feature_size_of
from scheduler.residency import Residency
from scheduler.round import DecodeRequest, PrefillReport, RoundReport
from scheduler.settings import check_integer
from scheduler.spans import SpanRecorder
from scheduler.streams.base import Event, Stream
from scheduler.streams.lineage import Lineage
from scheduler.verifier import NUM_VERDICT_SLOTS, Verifier

_MOST_LEAD = 256
"""Each token past a block is a launch of its own, which the event loop makes."""


@dataclass(frozen=True, kw_only=True)
class _Run:
    """A request whose draft is under way."""

    decoding: Decoding
    history: TokenHistory
    lookahead: Lookahead


class PipelinedLoop:
    """Drives a target lane and any number of draft sources, both at once."""

    def __init__(
        self,
        target: Lane,
        draft_stream: Stream,
        proposers: Sequence[Proposer],
        *,
        max_gamma: int = 8,
        max_lead: int = 8,
        min_lead: int | None = None,
        num_awaited: int | None = None,
        warmup_tokens: int = 0,
        num_verdict_slots: int = NUM_VERDICT_SLOTS,
        residency: Residency | None = None,
        spans: SpanRecorder | None = None,
        name: str = "pipelined",
    ) -> None:
        """Bind the lanes.

        Args:
            target: the lane whose distribution is emitted.
            draft_stream: where the proposers run, while the target's stream runs blocks.
            proposers: the one that promises most is heard, the earlier of two that promise the same.
            max_gamma: most tokens of one block.
            max_lead: most tokens drafted past a block while it is verified.
            min_lead: where this is less, each source's policy chooses a lead between the two; 0 lets it have the lanes
                take turns. None keeps to `max_lead`.
            num_awaited: proposals that the target waits for where fewer are ready; 0 verifies what there is. None waits
                for as many as the source thinks worth a block, as a sequential round does: what was drafted ahead then
                comes on top, and nothing is lost where it seldom helps.
            warmup_tokens: output tokens of each request that are decoded plainly.
            num_verdict_slots: verdicts that may wait for a draft that is busy, before the target waits for it.
            residency: where a round's values live, on the host (None) or on the device.
            spans: records launches and rounds while it is running; None leaves nobody to ask for that.
            name: before the names of the loop's own buffers; loops over the same lanes have names of their own.
        """
        check_integer(
            "max_lead",
            max_lead,
            low=1,
            high=_MOST_LEAD,
            advice="8 is a good start; without lookahead use SequentialLoop",
        )
        least_lead = max_lead if min_lead is None else min_lead
        check_integer("min_lead", least_lead, low=0, high=max_lead, advice="left out, it is max_lead")
        self._leads = Leads(least=least_lead, most=max_lead)
        if num_awaited is not None:
            check_integer("num_awaited", num_awaited, low=0, advice="0 never waits for the draft")
        self._verifier = Verifier(
            name,
            target,
            max_gamma=max_gamma,
            warmup_tokens=warmup_tokens,
            num_verdict_slots=num_verdict_slots,
            residency=residency,
            feature_size=feature_size_of(proposers),
            spans=spans,
        )
        self._drafter = Drafter(
            name,
            draft_stream,
            proposers,
            max_gamma=self._verifier.max_gamma,
            leads=self._leads,
            residency=residency,
            spans=spans,
        )
        self._num_awaited = num_awaited
        self._lineage = Lineage()
        self._begun: _Run | None = None

    def explain(self) -> str:
        """Which source was heard in the last request, and why, in words; nothing where there is one or none."""
        return self._drafter.explain()

    async def prefill(self, request: DecodeRequest) -> PrefillReport:
        """Read the prompt into the target's cache, all but what the first round takes along.

        The draft reads it meanwhile, and goes on proposing; one that reads features comes behind the target.
        """
        run = self._begin(request)

        def take_features(parcel: FeatureParcel) -> Event:
            taken = self._drafter.take_features(parcel)
            if not run.decoding.warming_up(run.history):
                self._drafter.catch_up(run.lookahead.generation)
            return taken

        try:
            report = await self._verifier.prefill(request, take_features)
        except BaseException:
            self._lineage.retire(run.lookahead.generation)
            raise
        if self._drafter.reads_features:
            self._start_chain(run.lookahead)
        return report

    async def rounds(self, request: DecodeRequest) -> AsyncGenerator[RoundReport, None]:
        """Decode a prefilled request; yields a report a round, the last one with the finish reason.

        A report is handed out while the next block is being verified.

        Raises:
            RuntimeError: if the request is not the one that was prefilled last, at first or later.
        """
        run = self._begun
        if run is None or run.decoding.request is not request:
            raise RuntimeError("prefill the request with the loop that is to decode it, and decode it once")
        decoding, history, lookahead = run.decoding, run.history, run.lookahead
        self._verifier.start(request, decoding)
        self._begun = None
        try:
            flight = self._launch_round(decoding, history, lookahead)
            while True:
                judged_flight = flight
                judgement = await self._verifier.outcome(flight)
                self._drafter.note(judgement)
                lookahead.commit(judgement)
                report = lookahead.bill(commit(decoding, history, judgement))
                history = judgement.history
                going_on = report.finish_reason is None and lookahead.error is None
                if going_on:
                    flight = self._launch_round(decoding, history, lookahead)
                self._verifier.close_round(judged_flight, report)
                yield report
                if report.finish_reason is not None:
                    return
                if not going_on and lookahead.error is not None:
                    # The target has vouched for the report, so it was handed out first.
                    raise lookahead.error
        finally:
            self._lineage.retire(lookahead.generation)
            self._verifier.end()

    def _begin(self, request: DecodeRequest) -> _Run:
        if self._begun is not None:
            # It was prefilled, and its caller went away.
            self._lineage.retire(self._begun.lookahead.generation)
        decoding = self._verifier.prepare(request)
        history = decoding.start_history()
        num_reads = history.length // self._drafter.max_block if self._drafter.steps else 0
        lookahead = Lookahead(
            self._lineage.begin(),
            leads=self._leads,
            num_awaited=self._num_awaited,
            behind=num_reads > 0 or self._drafter.reads_features,
        )
        self._drafter.begin(decoding, history)
        if not self._drafter.reads_features:
            if not decoding.warming_up(history):
                for _ in range(num_reads):
                    self._drafter.catch_up(lookahead.generation)
            self._start_chain(lookahead)
        self._begun = _Run(decoding=decoding, history=history, lookahead=lookahead)
        return self._begun

    def _launch_round(self, decoding: Decoding, history: TokenHistory, lookahead: Lookahead) -> Flight:
        """Hand the target its block, give the draft enough to do meanwhile, and tell it what to do with the verdict."""
        self._verifier.check_reader(decoding)
        room = decoding.room(history)
        lookahead.look()
        self._launch_steps(lookahead, lookahead.num_missing(room), ahead=False)
        flight = self._verifier.verify(decoding, history, lookahead.plan(room), lookahead.generation)
        self._launch_steps(lookahead, lookahead.num_ahead_missing(room), ahead=True)
        self._verifier.release(flight, self._drafter.settle(flight))
        # What follows builds on the verdict, whatever it is.
        lookahead.generation = self._lineage.begin()
        self._start_chain(lookahead)
        return flight

    def _launch_steps(self, lookahead: Lookahead, num_steps: int, *, ahead: bool) -> None:
        if self._drafter.steps:
            for _ in range(num_steps):
                if self._drafter.has_slot(lookahead.oldest):
                    lookahead.add(self._drafter.step(lookahead.generation, ahead=ahead))

    def _start_chain(self, lookahead: Lookahead) -> None:
        """The first pieces behind a verdict: of a new chain after a miss, else of the old one."""
        if self._drafter.looks_up and self._drafter.has_slot(lookahead.oldest):
            lookahead.add(self._drafter.look_up(lookahead.generation))
        if lookahead.worth_drafting:
            self._launch_steps(lookahead, 1, ahead=False)
