"""Loops over table models, and what they should give, worked out without a loop, a cache or a stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields
from typing import Any

from scheduler import (
    DecodeRequest,
    FixedGamma,
    GammaPolicy,
    Lane,
    ModelProposer,
    NgramProposer,
    PipelinedLoop,
    PrefillReport,
    Proposal,
    Proposer,
    RoundReport,
    SamplingLaw,
    SamplingSettings,
    SequentialLoop,
    Stream,
    ThreadStream,
    TokenHistory,
    judge,
)
from tests.support.enumeration import target_rows
from tests.support.table_model import TableModel

NewProposer = Callable[[Stream], Proposer]
NewStream = Callable[[str], Stream]
_SETTING_NAMES = {field.name for field in fields(SamplingSettings)}


def request_of(prompt_ids: Sequence[int], max_tokens: int, **options: object) -> DecodeRequest:
    """A request; options of the sampling settings go where they belong."""
    settings = SamplingSettings(**{name: value for name, value in options.items() if name in _SETTING_NAMES})
    others = {name: value for name, value in options.items() if name not in _SETTING_NAMES}
    return DecodeRequest(prompt_ids=tuple(prompt_ids), settings=settings, max_tokens=max_tokens, **others)


def model_proposer(model: TableModel, gamma: int | GammaPolicy = 4, *, capacity: int = 512) -> NewProposer:
    policy = FixedGamma(gamma) if isinstance(gamma, int) else gamma
    return lambda stream: ModelProposer(Lane("draft", model, stream, capacity=capacity), policy)


def ngram_proposer(gamma: int = 4) -> NewProposer:
    return lambda stream: NgramProposer(lambda: FixedGamma(gamma), min_match=1)


def thread_stream(name: str) -> Stream:
    return ThreadStream(name, num_threads=1)


@dataclass(frozen=True, kw_only=True)
class Output:
    """What a request came to."""

    prefill: PrefillReport
    reports: tuple[RoundReport, ...]

    @property
    def ids(self) -> list[int]:
        return [token_id for report in self.reports for token_id in report.token_ids]

    @property
    def logprobs(self) -> list[tuple[int, float, tuple[tuple[int, float], ...]]]:
        return [(item.token_id, item.logprob, item.top) for report in self.reports for item in report.logprobs]

    @property
    def num_proposed(self) -> int:
        return sum(report.num_proposed for report in self.reports)

    @property
    def num_accepted(self) -> int:
        return sum(report.num_accepted for report in self.reports)

    @property
    def num_hits(self) -> int:
        return sum(report.hit is True for report in self.reports)

    @property
    def num_misses(self) -> int:
        return sum(report.hit is False for report in self.reports)

    @property
    def num_discarded(self) -> int:
        return sum(report.num_discarded for report in self.reports)


class Rig:
    """A loop with its lanes and streams."""

    def __init__(
        self,
        target: TableModel,
        new_proposers: Iterable[NewProposer] = (),
        *,
        two_streams: bool = False,
        pipelined: bool = False,
        new_stream: NewStream = thread_stream,
        capacity: int = 512,
        max_gamma: int = 8,
        keeps_features: bool = False,
        **loop_options: int,
    ) -> None:
        self.target_stream = new_stream("target")
        self.draft_stream = new_stream("draft") if two_streams or pipelined else self.target_stream
        self.target = Lane("target", target, self.target_stream, capacity=capacity, keeps_features=keeps_features)
        self.proposers = [new(self.draft_stream) for new in new_proposers]
        new_loop = PipelinedLoop if pipelined else SequentialLoop
        self.loop = new_loop(self.target, self.draft_stream, self.proposers, max_gamma=max_gamma, **loop_options)

    async def run(self, request: DecodeRequest) -> Output:
        prefill = await self.loop.prefill(request)
        return Output(prefill=prefill, reports=tuple([report async for report in self.loop.rounds(request)]))

    async def idle(self) -> None:
        """Wait until both streams have nothing left to do."""
        for stream in (self.draft_stream, self.target_stream, self.draft_stream):
            await asyncio.gather(stream.record(), return_exceptions=True)

    def close(self) -> None:
        self.draft_stream.close()
        self.target_stream.close()


@asynccontextmanager
async def rigged(target: TableModel, new_proposers: Iterable[NewProposer] = (), **options: Any) -> AsyncIterator[Rig]:
    """A rig with the options of `Rig`, closed at the end."""
    rig = Rig(target, new_proposers, **options)
    try:
        yield rig
    finally:
        rig.close()


async def decode(
    target: TableModel, request: DecodeRequest, new_proposers: Iterable[NewProposer] = (), **options: object
) -> Output:
    """One request on a rig of its own."""
    async with rigged(target, new_proposers, **options) as rig:
        return await rig.run(request)


def one_token_decoding(
    target: TableModel,
    request: DecodeRequest,
    *,
    propose: Callable[[SamplingLaw, TokenHistory], Proposal] | None = None,
) -> list[int]:
    """The same tokens, round by round from whole sequences; without `propose`, one a round."""
    law = SamplingLaw(request.settings, vocab_size=target.vocab_size, stop_ids=request.stop_ids)
    history = law.start_history(request.prompt_ids)
    output: list[int] = []
    while True:
        proposal = propose(law, history) if propose is not None else Proposal()
        rows_RV = target_rows(target.logits_after, history, proposal.token_ids)
        token_ids = judge(law, rows_RV, history, proposal).token_ids
        for token_id in token_ids:
            output.append(token_id)
            if token_id in request.stop_ids or len(output) == request.max_tokens:
                return output
        history = history.extended(token_ids)
