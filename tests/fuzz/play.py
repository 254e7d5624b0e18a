"""Playing one case: a loop on virtual streams, its requests one after the other, and everything that must hold.

Owns the checks of single runs. Coroutines are driven by hand: an event loop would take longer than the models, and a
request can be cancelled at every single turn.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch

from scheduler import (
    DecodeRequest,
    DeviceResidency,
    FeatureLane,
    FixedGamma,
    Lane,
    Leads,
    ModelProposer,
    PipelinedLoop,
    Proposal,
    Proposer,
    RoundReport,
    SamplingLaw,
    TokenHistory,
    VirtualDevice,
)
from scheduler.gamma import IN_TURN
from scheduler.on_device.chain import DeviceChain
from scheduler.on_device.target import DeviceJudgement
from scheduler.streams.virtual import VirtualLaunch, VirtualStream
from tests.fuzz.case import NUM_LAW_TOKENS, Case, Fate, FateKind, Place, Rule, Setup, planned_requests
from tests.fuzz.models import (
    IMPOSSIBLE_ID,
    FeatureDraft,
    FeatureTarget,
    Pattern,
    PatternModel,
    PlantedError,
    PositionedPatternModel,
)
from tests.support.feature_models import CheckedProposer
from tests.support.loops import Output, ngram_proposer, one_token_decoding
from tests.support.sequential_cases import check_reports

_CAPACITY = 64


class Mismatch(AssertionError):
    """A run whose order was legal and whose result is not."""


@dataclass(kw_only=True)
class Played:
    """What a run came to."""

    counts: Counter[str] = field(default_factory=Counter)
    law_name: str = ""
    first_ids: tuple[int, ...] = ()
    """The first tokens of the request that all seeds share."""


class WatchedStream:
    """A virtual stream that remembers what was launched."""

    def __init__(self, stream: VirtualStream) -> None:
        self.name = stream.name
        self.record, self.wait, self.close = stream.record, stream.wait, stream.close
        self._stream = stream
        self.launches: list[VirtualLaunch[Any]] = []

    def launch(self, *arguments: Any, **options: Any) -> VirtualLaunch[Any]:
        launch = self._stream.launch(*arguments, **options)
        self.launches.append(launch)
        return launch


class WatchedProposer(ModelProposer):
    """Notes how much was drafted, and how far past each block when its verdict came."""

    def __init__(self, lane: Lane, gamma: int) -> None:
        super().__init__(lane, FixedGamma(gamma))
        self.num_drafted = 0
        self.leads: list[int] = []
        """At each verdict on this source's tokens: drafted tokens that it did not judge."""
        self._chain_length = 0

    def begin(self, history: TokenHistory, leads: Leads = IN_TURN, gamma: int | None = None) -> None:
        super().begin(history, leads, gamma)
        self._chain_length = 0
        self.leads.clear()

    def extend(self, law: SamplingLaw, history: TokenHistory, chain_ids: Sequence[int], max_tokens: int) -> Proposal:
        proposal = super().extend(law, history, chain_ids, max_tokens)
        self.num_drafted += len(proposal)
        self._chain_length = len(chain_ids) + len(proposal)
        return proposal

    def roll_back(self, length: int) -> None:
        super().roll_back(length)
        self._chain_length = 0

    def observe(self, num_proposed: int, num_accepted: int) -> None:
        super().observe(num_proposed, num_accepted)
        self.leads.append(self._chain_length - num_proposed)
        self._chain_length -= num_proposed


class WatchedFeatureProposer(WatchedProposer, CheckedProposer):
    """The same for a draft that reads features."""


class DeviceWatch(WatchedProposer):
    """The same where a chain stays on the device, which asks its source for no tokens."""

    _model: PositionedPatternModel

    @property
    def num_drafted(self) -> int:
        """Each call at given positions draws a token."""
        return self._model.num_steps

    @num_drafted.setter
    def num_drafted(self, value: int) -> None:
        """Nobody else counts."""

    def observe(self, num_proposed: int, num_accepted: int) -> None:
        ModelProposer.observe(self, num_proposed, num_accepted)

    def watch(self, chain: DeviceChain, model: PositionedPatternModel) -> None:
        """Note leads as the chain settles them, and drafted tokens as the model draws them."""
        self._model = model
        settle = chain.settle

        def watched(judged: DeviceJudgement) -> None:
            if judged.proposal:
                self.leads.append(chain._extent.num_unjudged - len(judged.proposal))
            settle(judged)

        chain.settle = watched  # type: ignore[method-assign]  # a test may look on


class Run:
    """One case on one device."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.setup: Setup = case.setup()
        self.requests = case.requests()
        device = VirtualDevice(case.seed)
        self.target_stream = WatchedStream(device.stream("target"))
        self.draft_stream = WatchedStream(device.stream("draft"))
        on_device = case.place is Place.DEVICE
        reads_features = self.setup.reads_features
        new_model = PositionedPatternModel if on_device else PatternModel
        new_target, new_draft = (FeatureTarget, FeatureDraft) if reads_features else (new_model, new_model)
        self.target_model = new_target(max_block=self.setup.target_block)
        self.draft_model = new_draft(case.pattern, max_block=self.setup.draft_block)
        self.target = Lane(
            "target", self.target_model, self.target_stream, capacity=_CAPACITY, keeps_features=reads_features
        )
        new_lane = FeatureLane if reads_features else Lane
        self.draft = new_lane("draft", self.draft_model, self.draft_stream, capacity=self.setup.draft_capacity)
        new_proposer = WatchedFeatureProposer if reads_features else DeviceWatch if on_device else WatchedProposer
        self.proposer = new_proposer(self.draft, case.gamma)
        proposers: list[Proposer] = [self.proposer]
        if self.setup.with_ngram:
            proposers.insert(0, ngram_proposer(case.gamma)(self.draft_stream))
        self.loop = PipelinedLoop(
            self.target,
            self.draft_stream,
            proposers,
            max_gamma=case.gamma,
            max_lead=self.setup.max_lead,
            num_awaited=self.setup.num_awaited,
            num_verdict_slots=self.setup.num_verdict_slots,
            warmup_tokens=self.setup.warmup_tokens,
            residency=DeviceResidency() if on_device else None,
        )
        if isinstance(self.proposer, DeviceWatch) and isinstance(self.draft_model, PositionedPatternModel):
            self.proposer.watch(self.loop._drafter._chain, self.draft_model)

    def play(self) -> Played:
        """Serve every request, check all that must hold.

        Raises:
            StreamRace, StreamDeadlock: what the device found.
            Mismatch: whatever else was not as it should be.
        """
        played = Played(counts=Counter(runs=1))
        law_index = planned_requests(self.case.seed).law_index
        output = None
        try:
            for index, (request, fate) in enumerate(zip(self.requests, self.setup.fates, strict=True)):
                output = self._serve(request, fate)
                if output is None:
                    played.counts["cut short"] += 1
                    continue
                self._check(index, output)
                self._count(played, output)
                if index == law_index:
                    played.law_name = planned_requests(self.case.seed).requests[index].settings
                    played.first_ids = tuple(output.ids[:NUM_LAW_TOKENS])
        finally:
            self.draft_stream.close()
            self.target_stream.close()
        assert output is not None, "the last request is never cut short"
        self._check_lanes([*self.requests[-1].prompt_ids, *output.ids])
        self._check_drafted(played)
        self._check_features(played)
        played.counts["skipped launches"] += sum(launch.was_skipped for launch in self.draft_stream.launches)
        return played

    def _serve(self, request: DecodeRequest, fate: Fate) -> Output | None:
        """The output, or None where the request was cut short as planned."""
        turns = Turns(fate.after if fate.kind is FateKind.CANCELLED else None)
        failing = {FateKind.TARGET_FAILS: self.target_model, FateKind.DRAFT_FAILS: self.draft_model}.get(fate.kind)
        if failing is not None:
            failing.fail_at_call = failing.num_calls + 1 + fate.after
        try:
            prefill = turns.drive(self.loop.prefill(request))
            rounds = self.loop.rounds(request)
            try:
                most = fate.after if fate.kind is FateKind.ABANDONED else None
                reports = _take(rounds, turns, most)
            finally:
                Turns().drive(rounds.aclose())
        except asyncio.CancelledError:
            return None
        except PlantedError:
            _require(failing is not None, "an error that nobody planted")
            return None
        finally:
            self.target_model.fail_at_call = self.draft_model.fail_at_call = None
        return Output(prefill=prefill, reports=tuple(reports)) if reports is not None else None

    def _check(self, index: int, output: Output) -> None:
        request = self.requests[index]
        try:
            check_reports(output, request.max_tokens)
        except AssertionError as error:
            raise Mismatch(f"inconsistent reports: {error}") from error
        _require(IMPOSSIBLE_ID not in output.ids, "a token was emitted that the target cannot write")
        if self.case.rule is Rule.COUPLED or request.settings.greedy:
            wanted = _right_answers(self.case.seed)[index]
            _require(output.ids == wanted, f"emitted {output.ids}, one-token decoding gives {wanted}")
        if request.num_logprobs is not None:
            self._check_logprobs(request, output)
        if not self.setup.with_ngram:
            self._check_acceptance(request, output)
            self._check_leads(output)

    def _check_logprobs(self, request: DecodeRequest, output: Output) -> None:
        _require([item[0] for item in output.logprobs] == output.ids, "log probabilities of other tokens")
        for index, (token_id, logprob, top) in enumerate(output.logprobs):
            row_V = self.target_model.logits_after([*request.prompt_ids, *output.ids[:index]])
            _require(float(torch.log_softmax(row_V, -1)[token_id]) == logprob, "a log probability of another row")
            _require(len(top) == request.num_logprobs, "another number of alternatives")

    def _check_acceptance(self, request: DecodeRequest, output: Output) -> None:
        """Drafts are right where their pattern says so: a chain or a cache that went wrong would show."""
        position = len(request.prompt_ids)
        for report in output.reports:
            expected = _acceptance(self.case.pattern, position, report.num_proposed)
            last = report.finish_reason is not None
            if expected is not None:
                cut = min(expected, len(report.token_ids)) if last else expected
                _require(report.num_accepted == cut, f"{report} at position {position} accepts another number")
                # The guess is the token behind the block.
                is_right = _acceptance(self.case.pattern, position, report.num_proposed + 1) == report.num_proposed + 1
                _require(report.hit in (None, is_right), f"{report} at position {position} should hit: {is_right}")
            position += len(report.token_ids)

    def _check_leads(self, output: Output) -> None:
        judged = [report for report in output.reports if report.num_proposed or report.hit is not None]
        # The draft may not have come to the last verdicts.
        for report, lead in zip(judged, self.proposer.leads, strict=False):
            has_guess = report.hit is not None
            _require(0 <= lead + has_guess <= self.setup.max_lead, f"{lead + has_guess} tokens drafted past {report}")

    def _check_lanes(self, text: list[int]) -> None:
        for lane in (self.target, self.draft):
            held, cached = lane._held_ids, lane._cache.token_ids[: lane._cache.length]
            _require(held == cached, f"{lane.name} believes to hold {held} and holds {cached}")
            num_common = min(len(held), len(text))
            _require(held[:num_common] == text[:num_common], f"{lane.name} holds {held}, the text is {text}")

    def _check_drafted(self, played: Played) -> None:
        """Every drafted token is used up or thrown away once; what was not seen to have run may be missing."""
        counts = played.counts
        if self.setup.with_ngram or counts["cut short"]:
            return
        num_counted = counts["proposed"] + counts["hits"] + counts["discarded"]
        num_in_flight = 3 * (self.case.gamma + self.setup.max_lead + 1) * len(self.requests)
        _require(
            num_counted <= self.proposer.num_drafted <= num_counted + num_in_flight,
            f"{num_counted} drafted tokens counted of {self.proposer.num_drafted}",
        )

    def _check_features(self, played: Played) -> None:
        """Whatever was read as a feature is that of the position before, and none of the target's went astray."""
        if not (isinstance(self.draft_model, FeatureDraft) and isinstance(self.draft, FeatureLane)):
            return
        _require(not self.draft_model.wrong, f"features were read that belong elsewhere: {self.draft_model.wrong[:3]}")
        _require(self.draft.num_missing == 0, f"{self.draft.num_missing} features never came")
        played.counts["own features"] += self.draft_model.num_own

    def _count(self, played: Played, output: Output) -> None:
        played.counts.update(
            rounds=len(output.reports),
            tokens=len(output.ids),
            proposed=output.num_proposed,
            accepted=output.num_accepted,
            hits=output.num_hits,
            misses=output.num_misses,
            discarded=output.num_discarded,
        )


class Turns:
    """Stands in for an event loop with one task, which may be cancelled at a given turn."""

    def __init__(self, left: int | None = None) -> None:
        self._left = left

    def drive(self, awaitable: Awaitable[Any]) -> Any:
        """Run to the end, or raise CancelledError inside."""
        coroutine: Any = awaitable if hasattr(awaitable, "send") else awaitable.__await__()
        try:
            while self._left is None or self._left > 0:
                coroutine.send(None)
                if self._left is not None:
                    self._left -= 1
            self._left = None
            coroutine.throw(asyncio.CancelledError())
        except StopIteration as stop:
            return stop.value
        raise Mismatch("a cancelled request went on")


def play(case: Case) -> Played:
    """Play one case; see `Run.play`."""
    return Run(case).play()


def _take(rounds: AsyncGenerator[RoundReport, None], turns: Turns, most: int | None) -> list[RoundReport] | None:
    """All reports, or None if `most` came first."""
    reports: list[RoundReport] = []
    while most is None or len(reports) < most:
        try:
            reports.append(turns.drive(rounds.__anext__()))
        except StopAsyncIteration:
            return reports
    return None


def _acceptance(pattern: Pattern, position: int, num_proposed: int) -> int | None:
    """How many of the tokens proposed from `position` on are accepted; None where that is left to chance."""
    match pattern:
        case Pattern.ALWAYS:
            return num_proposed
        case Pattern.NEVER:
            return 0
        case Pattern.ALTERNATING:
            return min(num_proposed, 1 - position % 2)
        case Pattern.RANDOM:
            return None


@lru_cache(maxsize=4)
def _right_answers(seed: int) -> list[list[int]]:
    """What one-token decoding gives for each request of a seed, under the coupled rule or greedily."""
    case = Case(seed=seed, rule=Rule.COUPLED, pattern=Pattern.ALWAYS, gamma=1, lead=1)
    return [one_token_decoding(PatternModel(), request) for request in case.requests()]


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise Mismatch(what)
