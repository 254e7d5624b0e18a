"""N-gram and a draft model whose acceptance is planted, decoded together or alone on the virtual clock."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from unittest import mock

from models import NgramMatch
from profiling.scripted_pair import ScriptedModel
from scheduler import (
    BlockCosts,
    Controller,
    CostModel,
    DecodeRequest,
    FixedGamma,
    GammaPolicy,
    Lane,
    ModelProposer,
    NgramProposer,
    PipelinedLoop,
    Proposer,
    SamplingSettings,
    SequentialLoop,
    SourceCosts,
    VirtualDevice,
)

VERIFY_MS = 45.0
EXTRA_TOKEN_MS = 1.5
CONTENTION = 1.05
_PROMPT_IDS = (0, 1)
_MAX_GAMMA = 8
_PADDING = 80
_NUM_IDS = 8


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """A part of a text, and how often each source is right in it, for each position by itself."""

    num_tokens: int
    ngram: float
    model: float
    match_length: int = 5
    """How long the matches of n-gram are; 0 where it finds none."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """What a text came to."""

    tokens_per_s: float
    num_rounds: tuple[int, int, int]
    """Without a proposal, of the first source, and of the second."""
    explanation: str


class PlantedIndex:
    """Stands in for the index of a text: matches where it was told to, and is right where it was told to."""

    def __init__(self, ids: Sequence[int], match_lengths: Sequence[int], right: Sequence[bool]) -> None:
        self._ids, self._match_lengths, self._right = ids, match_lengths, right
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def extend(self, token_ids: Iterable[int]) -> None:
        self._length += len(list(token_ids))

    def truncate(self, length: int) -> None:
        self._length = length

    def propose(self, max_tokens: int) -> NgramMatch:
        match_length = self._match_lengths[self._length]
        places = range(self._length, self._length + max_tokens if match_length else self._length)
        tokens = tuple(self._ids[place] if self._right[place] else _other(self._ids[place]) for place in places)
        return NgramMatch(tokens=tokens, match_length=match_length)


def decode_planted(
    stretches: Sequence[Stretch],
    sources: str,
    *,
    draft_ms: float = 2.0,
    pipelined: bool = False,
    seed: int = 0,
    gamma: int | None = None,
) -> Run:
    """Decode a text with n-gram ("n"), the model ("m") or both, in that order ("nm"); gamma None has them choose."""
    num_tokens = sum(stretch.num_tokens for stretch in stretches)
    num_positions = len(_PROMPT_IDS) + num_tokens + _PADDING
    ids = [position % _NUM_IDS for position in range(num_positions)]
    ngram_right = _pattern([(stretch.num_tokens, stretch.ngram) for stretch in stretches], f"ngram {seed}")
    model_right = _pattern([(stretch.num_tokens, stretch.model) for stretch in stretches], f"model {seed}")
    match_lengths = [0] * len(_PROMPT_IDS)
    for stretch in stretches:
        match_lengths += [stretch.match_length] * stretch.num_tokens
    match_lengths += [0] * _PADDING
    draft_ids = [token_id if right else _other(token_id) for token_id, right in zip(ids, model_right, strict=True)]
    models = {
        # What a model says at a position is the token at the next.
        "target": ScriptedModel("target", ids[1:], call_ms=VERIFY_MS, extra_token_ms=EXTRA_TOKEN_MS),
        "draft": ScriptedModel("draft", draft_ids[1:], call_ms=draft_ms, extra_token_ms=0.0),
    }
    device = VirtualDevice(
        seed,
        costs=CostModel(
            duration_ms=lambda stream, label, value: models[stream].take_spent_ms(),
            contention={"target": CONTENTION, "draft": CONTENTION},
            host_latency_ms=0.05,
            call_ms=0.005,
        ),
    )
    target_stream, draft_stream = device.stream("target"), device.stream("draft")
    target = Lane("target", models["target"], target_stream, capacity=num_positions)
    draft = Lane("draft", models["draft"], draft_stream, capacity=num_positions)
    proposers: list[Proposer] = []
    if "n" in sources:
        proposers.append(NgramProposer(lambda: _policy(None, gamma)))
    if "m" in sources:
        proposers.append(ModelProposer(draft, _policy(draft_ms, gamma)))
    loop: SequentialLoop | PipelinedLoop
    if pipelined:
        loop = PipelinedLoop(target, draft_stream, proposers, max_gamma=_MAX_GAMMA, max_lead=8, min_lead=0)
    else:
        loop = SequentialLoop(target, draft_stream, proposers, max_gamma=_MAX_GAMMA)
    request = DecodeRequest(prompt_ids=_PROMPT_IDS, settings=SamplingSettings(temperature=0.0), max_tokens=num_tokens)

    async def decode() -> tuple[list[int], list[int]]:
        await loop.prefill(request)
        reports = [report async for report in loop.rounds(request)]
        output = [token_id for report in reports for token_id in report.token_ids]
        return output, [report.source + 1 if report.num_proposed else 0 for report in reports]

    index = PlantedIndex(ids, match_lengths, ngram_right)
    with mock.patch("scheduler.proposers.ngram.NgramIndex", return_value=index):
        output, by_round = asyncio.run(decode())
    total_ms = device.now_ms
    draft_stream.close()
    target_stream.close()
    assert output == ids[len(_PROMPT_IDS) :][:num_tokens]
    return Run(
        tokens_per_s=1e3 * num_tokens / total_ms,
        num_rounds=(by_round.count(0), by_round.count(1), by_round.count(2)),
        explanation=loop.explain(),
    )


def _pattern(stretches: Sequence[tuple[int, float]], seed: str) -> list[bool]:
    """Where a source is right, by the place of the token."""
    draw = random.Random(seed)
    output = [draw.random() < acceptance for num_tokens, acceptance in stretches for _ in range(num_tokens)]
    return [True] * len(_PROMPT_IDS) + output + [False] * _PADDING


def _policy(draft_ms: float | None, gamma: int | None) -> GammaPolicy:
    """One that knows exactly what the clock charges."""
    if gamma is not None:
        return FixedGamma(gamma)
    verify_ms = {width: VERIFY_MS + (width - 1) * EXTRA_TOKEN_MS for width in range(1, _MAX_GAMMA + 2)}
    if draft_ms is None:
        costs = SourceCosts(verify=BlockCosts(verify_ms), draft=None)
    else:
        costs = SourceCosts(
            verify=BlockCosts(verify_ms),
            draft=BlockCosts({1: draft_ms}),
            verify_together=BlockCosts({width: CONTENTION * cost_ms for width, cost_ms in verify_ms.items()}),
            draft_together=BlockCosts({1: CONTENTION * draft_ms}),
        )
    return Controller(max_gamma=_MAX_GAMMA, costs=costs, prior_alpha=0.5)


def _other(token_id: int) -> int:
    return (token_id + 1) % _NUM_IDS
