"""The sequential loop: propose, verify, settle both lanes, commit, publish; then again.

Owns the order of one request's rounds. It is the oracle for every faster loop and the twin they are measured
against. Knows nothing of text, and of devices only what the stream protocol says.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

from scheduler.block import BlockPlan
from scheduler.commit import commit
from scheduler.drafter import Drafter
from scheduler.lane import Lane
from scheduler.proposers.base import Proposer
from scheduler.proposers.feature import feature_size_of
from scheduler.residency import Residency
from scheduler.round import DecodeRequest, PrefillReport, RoundReport
from scheduler.spans import SpanRecorder
from scheduler.streams.base import Stream
from scheduler.verifier import Verifier


class SequentialLoop:
    """Drives a target lane and any number of draft sources, one round at a time.

    Without sources every round is one ordinary decoding step: plain decoding.
    """

    def __init__(
        self,
        target: Lane,
        draft_stream: Stream,
        proposers: Sequence[Proposer] = (),
        *,
        max_gamma: int = 8,
        warmup_tokens: int = 0,
        residency: Residency | None = None,
        spans: SpanRecorder | None = None,
        name: str = "sequential",
    ) -> None:
        """Bind the lanes.

        Args:
            target: the lane whose distribution is emitted.
            draft_stream: where the proposers run; may be the target's own.
            proposers: the one that promises most is heard, the earlier of two that promise the same.
            max_gamma: most tokens of one proposal.
            warmup_tokens: output tokens of each request that are decoded plainly.
            residency: where a round's values live, on the host (None) or on the device.
            spans: records launches and rounds while it is running; None leaves nobody to ask for that.
            name: before the names of the loop's own buffers; loops over the same lanes have names of their own.
        """
        self._verifier = Verifier(
            name,
            target,
            max_gamma=max_gamma,
            warmup_tokens=warmup_tokens,
            residency=residency,
            feature_size=feature_size_of(proposers),
            spans=spans,
        )
        self._drafter = Drafter(
            name, draft_stream, proposers, max_gamma=self._verifier.max_gamma, residency=residency, spans=spans
        )

    def explain(self) -> str:
        """Which source was heard in the last request, and why, in words; nothing where there is one or none."""
        return self._drafter.explain()

    async def prefill(self, request: DecodeRequest) -> PrefillReport:
        """Read the prompt into the target's cache, all but what the first round takes along."""
        return await self._verifier.prefill(request, self._drafter.take_features)

    async def rounds(self, request: DecodeRequest) -> AsyncGenerator[RoundReport, None]:
        """Decode a prefilled request; yields a report a round, the last one with the finish reason.

        Raises:
            RuntimeError: if the request is not the one that was prefilled last, at first or later.
        """
        drafter, verifier = self._drafter, self._verifier
        decoding = verifier.prepare(request)
        verifier.start(request, decoding)
        history = decoding.start_history()
        drafter.begin(decoding, history)
        try:
            while True:
                verifier.check_reader(decoding)
                room = decoding.room(history)
                pieces = drafter.draft_block(room)
                flight = verifier.verify(decoding, history, BlockPlan(pieces=pieces, max_tokens=room))
                verifier.release(flight, drafter.settle(flight))
                judgement = await verifier.outcome(flight)
                drafter.note(judgement)
                report = commit(decoding, history, judgement)
                history = judgement.history
                verifier.close_round(flight, report)
                yield report
                if report.finish_reason is not None:
                    return
        finally:
            verifier.end()
