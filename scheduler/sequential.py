"""The sequential loop: propose, verify, commit, roll back both lanes, publish; then again.

Owns the order of one request's rounds. It is the oracle for every faster loop and the twin they are measured
against. Knows nothing of text, and of devices only what the stream protocol says.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar

from scheduler.distribution import SamplingLaw
from scheduler.history import TokenHistory
from scheduler.lane import Lane
from scheduler.proposers.base import Proposer
from scheduler.round import DecodeRequest, FinishReason, PrefillReport, Proposal, RoundReport, Verdict
from scheduler.streams.base import Event, Launch, Stream
from scheduler.verify import judge

Result = TypeVar("Result")


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
    ) -> None:
        """Bind the lanes.

        Args:
            target: the lane whose distribution is emitted.
            draft_stream: where the proposers run; may be the target's own.
            proposers: asked in order, the first one with something to offer is heard.
            max_gamma: most tokens of one proposal.
            warmup_tokens: output tokens of each request that are decoded plainly.
        """
        self._target = target
        self._draft_stream = draft_stream
        self._proposers = tuple(proposers)
        self._max_gamma = min(max_gamma, target.model.max_block - 1)
        self._warmup_tokens = warmup_tokens
        self._draft_buffers = tuple(name for proposer in proposers for name in proposer.buffers)

    async def prefill(self, request: DecodeRequest) -> PrefillReport:
        """Read the prompt into the target's cache, all but what the first round takes along.

        Each block is awaited before the next is launched, so that a cancelled request stops after one.
        """
        target = self._target
        prompt_ids = request.prompt_ids
        num_reused = await _value_of(
            target.stream, partial(target.resume, prompt_ids[:-1]), writes=(target.cache_buffer,)
        )
        start, width = num_reused, target.model.max_block
        while len(prompt_ids) - start > width - self._max_gamma:
            block = prompt_ids[start : min(start + width, len(prompt_ids) - 1)]
            await _value_of(target.stream, partial(target.feed, block, num_logits=0), writes=(target.cache_buffer,))
            start += len(block)
        return PrefillReport(num_prompt_tokens=len(prompt_ids), num_reused_tokens=num_reused)

    async def rounds(self, request: DecodeRequest) -> AsyncGenerator[RoundReport, None]:
        """Decode a prefilled request; yields a report a round, the last one with the finish reason."""
        law = SamplingLaw(request.settings, vocab_size=self._target.model.vocab_size, stop_ids=request.stop_ids)
        history = law.start_history(request.prompt_ids)
        self._begin(history)
        while True:
            proposed, drafted = self._propose(law, history, self._room(request, history))
            judged, verified = self._verify(law, history, proposed, drafted, request.num_logprobs)
            await verified
            proposal, verdict = proposed.result(), judged.result()
            report = self._commit(request, history, proposal, verdict)
            self._roll_back(history.length + verdict.num_accepted, verified)
            history = history.extended(report.token_ids)
            yield report
            if report.finish_reason is not None:
                return

    def _room(self, request: DecodeRequest, history: TokenHistory) -> int:
        """Tokens that may be proposed so that neither max_tokens nor the context is overrun."""
        if history.num_output_tokens < self._warmup_tokens:
            return 0
        tokens_left = request.max_tokens - history.num_output_tokens
        places_left = self._target.capacity - history.length
        return max(0, min(self._max_gamma, tokens_left - 1, places_left - 1))

    def _begin(self, history: TokenHistory) -> None:
        for proposer in self._proposers:
            self._draft_stream.launch(partial(proposer.begin, history), writes=proposer.buffers)

    def _propose(self, law: SamplingLaw, history: TokenHistory, room: int) -> tuple[Launch[Proposal], Event]:
        def propose() -> Proposal:
            proposal = Proposal()
            draft_ms = 0.0
            for proposer in self._proposers if room else ():
                proposal = proposer.propose(law, history, room)
                # A source that had nothing to offer, or only caught up, took its time all the same.
                draft_ms += proposal.draft_ms
                if proposal.token_ids:
                    break
            return dataclasses.replace(proposal, draft_ms=draft_ms)

        launch = self._draft_stream.launch(propose, writes=(*self._draft_buffers, "proposal"))
        return launch, self._draft_stream.record()

    def _verify(
        self,
        law: SamplingLaw,
        history: TokenHistory,
        proposed: Launch[Proposal],
        drafted: Event,
        num_logprobs: int | None,
    ) -> tuple[Launch[Verdict], Event]:
        target = self._target

        def verify() -> Verdict:
            started = time.perf_counter()
            proposal = proposed.result()
            # What the target has not read yet: the last committed token, at first the prompt's tail as well.
            token_ids = [*history.ids(target.num_held), *proposal.token_ids]
            logits_RV = target.feed(token_ids, num_logits=len(proposal.token_ids) + 1)
            verdict = judge(law, logits_RV, history, proposal, num_logprobs=num_logprobs)
            return dataclasses.replace(verdict, verify_ms=(time.perf_counter() - started) * 1e3)

        target.stream.wait(drafted)
        launch = target.stream.launch(verify, reads=("proposal",), writes=(target.cache_buffer, "verdict"))
        return launch, target.stream.record()

    def _commit(
        self, request: DecodeRequest, history: TokenHistory, proposal: Proposal, verdict: Verdict
    ) -> RoundReport:
        """Cut the verdict where one-token decoding would have ended, and let the source learn."""
        if proposal.token_ids:
            self._proposers[proposal.source].observe(proposal, verdict.num_accepted)
        token_ids, finish_reason = _cut(request, history, verdict.token_ids, self._target.capacity)
        return RoundReport(
            token_ids=token_ids,
            logprobs=verdict.logprobs[: len(token_ids)],
            num_proposed=len(proposal.token_ids),
            num_accepted=min(verdict.num_accepted, len(token_ids)),
            source=proposal.source,
            draft_ms=proposal.draft_ms,
            verify_ms=verdict.verify_ms,
            finish_reason=finish_reason,
        )

    def _roll_back(self, length: int, verified: Event) -> None:
        """Both caches forget what was rejected: one length each, behind the verdict."""
        target = self._target
        target.stream.launch(partial(target.roll_back, length), reads=("verdict",), writes=(target.cache_buffer,))
        self._draft_stream.wait(verified)
        for proposer in self._proposers:
            self._draft_stream.launch(partial(proposer.roll_back, length), reads=("verdict",), writes=proposer.buffers)


def _cut(
    request: DecodeRequest, history: TokenHistory, token_ids: tuple[int, ...], capacity: int
) -> tuple[tuple[int, ...], FinishReason | None]:
    for index, token_id in enumerate(token_ids):
        num_output = history.num_output_tokens + index + 1
        if token_id in request.stop_ids:
            return token_ids[: index + 1], FinishReason.STOP
        if num_output == request.max_tokens or history.num_prompt_tokens + num_output >= capacity:
            return token_ids[: index + 1], FinishReason.LENGTH
    return token_ids, None


async def _value_of(stream: Stream, work: Callable[[], Result], *, writes: Iterable[str]) -> Result:
    launch = stream.launch(work, writes=writes)
    await stream.record()
    return launch.result()
