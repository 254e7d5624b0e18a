"""The target lane's half of every loop: reading the prompt, running blocks, judging them.

Owns the launches on the target's stream and the ring of verdict slots. Knows nothing of where a block comes from, nor
how it is read and judged (`scheduler.target_side`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from scheduler.block import BlockPlan, Flight
from scheduler.decoding import Decoding
from scheduler.distribution import SamplingLaw
from scheduler.features import FeatureParcel
from scheduler.history import TokenHistory
from scheduler.lane import Lane
from scheduler.launch_kind import LaneName, LaunchKind
from scheduler.residency import HostResidency, Residency
from scheduler.round import DecodeRequest, Judgement, PrefillReport, RoundReport
from scheduler.settings import check_integer
from scheduler.spans import SpanRecorder
from scheduler.streams.base import Event, elapsed_between
from scheduler.streams.lineage import Generation

Result = TypeVar("Result")
TakeFeatures = Callable[[FeatureParcel], Event | None]

NUM_VERDICT_SLOTS = 16
"""Verdicts that may wait for a draft that is busy, with a long text perhaps, before the target waits for it."""


class Verifier:
    """The lane whose distribution is emitted."""

    def __init__(
        self,
        name: str,
        target: Lane,
        *,
        max_gamma: int,
        warmup_tokens: int,
        num_verdict_slots: int = NUM_VERDICT_SLOTS,
        residency: Residency | None = None,
        feature_size: int | None = None,
        spans: SpanRecorder | None = None,
    ) -> None:
        """Bind the lane.

        Args:
            name: of the loop, before the names of its buffers.
            target: the model, its cache and its stream.
            max_gamma: most tokens of a block, the last committed one not counted.
            warmup_tokens: output tokens of each request that are decoded plainly.
            num_verdict_slots: verdicts that may wait for the draft.
            residency: where a round's values live; None has them on the host.
            feature_size: width of the features that a draft reads; None where it reads none.
            spans: records launches and rounds while it is running.

        Raises:
            ValueError: if a number is outside its limits, or the lane does not keep the features that a draft reads.
        """
        check_integer("max_gamma", max_gamma, low=0, advice="8 is a good limit")
        check_integer("warmup_tokens", warmup_tokens, low=0, advice="0 proposes from the first token on")
        check_integer("num_verdict_slots", num_verdict_slots, low=1, advice=f"{NUM_VERDICT_SLOTS} is the default")
        self._name = name
        self.lane = target
        self._spans = spans or SpanRecorder()
        self._track = self._spans.track(LaneName.TARGET, target.stream)
        _check_features(target, feature_size, residency)
        self._hands_out_features = feature_size is not None
        self.max_gamma = min(max_gamma, target.model.max_block - 1)
        self._warmup_tokens = warmup_tokens
        self._side = (residency or HostResidency()).target_side(
            target, max_gamma=self.max_gamma, num_slots=num_verdict_slots
        )
        self._settled: list[Event | None] = [None] * num_verdict_slots
        self._num_flights = 0

    def start(self, request: DecodeRequest, decoding: Decoding) -> None:
        """Begin the rounds of the request that was prefilled last.

        Raises:
            RuntimeError: if another request was prefilled since, or this one was decoded already.
        """
        self.check_reader(request)
        self.lane.reader = decoding

    def check_reader(self, reader: object) -> None:
        """Refuse to go on with a request whose tokens the cache no longer holds.

        Raises:
            RuntimeError: if another one was prefilled since.
        """
        if self.lane.reader is not reader:
            raise RuntimeError(
                "prefill a request, then decode it, once and to its end, before another one is prefilled on the lane"
            )

    def prepare(self, request: DecodeRequest) -> Decoding:
        """The request with its law and limits."""
        lane = self.lane
        return Decoding(
            request=request,
            law=SamplingLaw(request.settings, vocab_size=lane.model.vocab_size, stop_ids=request.stop_ids),
            end=min(len(request.prompt_ids) + request.max_tokens, lane.capacity),
            max_gamma=self.max_gamma,
            warmup_tokens=self._warmup_tokens,
            hands_out_features=self._hands_out_features,
            counts_on_host=not self._side.learns_late,
        )

    async def prefill(self, request: DecodeRequest, take_features: TakeFeatures | None = None) -> PrefillReport:
        """Read the prompt into the cache, all but what the first round takes along.

        Each block is awaited before the next is launched, so that a cancelled request stops after one.

        Args:
            request: whose prompt it is.
            take_features: where a draft reads features, gets those of each block as soon as it was launched; returns an
                event behind the draft's taking them.
        """
        lane, prompt_ids = self.lane, request.prompt_ids
        reader = lane.reader = object()
        resume = partial(self._resume, prompt_ids[:-1])
        num_reused = await self._prefill_step(resume, LaunchKind.RESUME, take_features)
        start, width = num_reused, lane.model.max_block
        while len(prompt_ids) - start > width - self.max_gamma:
            block = prompt_ids[start : min(start + width, len(prompt_ids) - 1)]
            read = partial(lane.feed, block, num_logits=0)
            await self._prefill_step(read, LaunchKind.PREFILL, take_features, num_tokens=len(block))
            start += len(block)
        self.check_reader(reader)
        lane.reader = request
        return PrefillReport(num_prompt_tokens=len(prompt_ids), num_reused_tokens=num_reused)

    async def _prefill_step(
        self,
        work: Callable[[], Result],
        kind: LaunchKind,
        take_features: TakeFeatures | None,
        *,
        num_tokens: int = 0,
    ) -> Result:
        lane, stream = self.lane, self._track.stream
        launch = stream.launch(work, writes=lane.buffers, label=kind)
        if self._spans.on:
            self._spans.note_width(num_tokens)
        if take_features is not None and self._hands_out_features:
            slot, buffer = self._next_slot()
            handing_out = stream.launch(
                lane.hand_out_features, writes=(*lane.buffers, buffer), label=LaunchKind.HAND_OUT_FEATURES
            )
            parcel = FeatureParcel(launch=handing_out, sent=stream.record(), buffer=buffer)
            self._settled[slot] = take_features(parcel)
            await parcel.sent
        else:
            await stream.record()
        return launch.result()

    def _next_slot(self) -> tuple[int, str]:
        """A slot for a verdict or features, and its buffer's name; what comes next on the stream may write to it."""
        slot = self._num_flights % len(self._settled)
        self._num_flights += 1
        # What this one overwrites must have been taken in by the draft's stream.
        settled = self._settled[slot]
        if settled is not None:
            self._track.stream.wait(settled)
        return slot, f"{self._name}.verdict[{slot}]"

    def _resume(self, prompt_ids: Sequence[int]) -> int:
        # A draft that reads along is worth no core of its own: it has less to do, and may not even be wanted.
        self.lane.share(together=False)
        return self.lane.resume(prompt_ids)

    def verify(
        self, decoding: Decoding, history: TokenHistory, plan: BlockPlan, generation: Generation | None = None
    ) -> Flight:
        """Run a block behind its pieces and judge it behind its guess.

        Unless the guess was right, `generation` is retired: at once where the launch knows its verdict.
        """
        lane, stream = self.lane, self._track.stream
        round_number = self._spans.open_round(plan) if self._spans.on else None
        block_buffers = tuple(piece.buffer for piece in plan.pieces)
        guess_buffers = tuple(piece.buffer for piece in plan.guesses)
        if plan.pieces:
            stream.wait(plan.pieces[-1].drafted)
        # Work that is only enqueued cannot time itself.
        began = stream.record() if self._side.learns_late else None
        forward = stream.launch(
            partial(self._side.forward, decoding, history, plan),
            reads=block_buffers,
            writes=(*lane.buffers, "target.logits"),
            label=LaunchKind.VERIFY,
        )
        read = stream.record() if self._side.learns_late else None
        if plan.guesses:
            stream.wait(plan.guesses[-1].drafted)
        slot, buffer = self._next_slot()
        judged = stream.launch(
            lambda: self._side.judge(decoding, history, plan, forward.result(), slot, generation),
            reads=("target.logits", *block_buffers, *guess_buffers),
            writes=(*lane.buffers, buffer),
            label=LaunchKind.JUDGE,
        )
        return Flight(
            judged=judged,
            verified=stream.record(),
            buffer=buffer,
            slot=slot,
            began=began,
            read=read,
            round_number=round_number,
        )

    def release(self, flight: Flight, settled: Event | None) -> None:
        """The flight's verdict slot may be written again behind `settled`."""
        self._settled[flight.slot] = settled

    async def outcome(self, flight: Flight) -> Judgement:
        """Wait for a flight's end, without keeping other tasks from the event loop however fast the models are.

        Raises:
            BaseException: whatever the draft or the target raised.
        """
        if flight.verified.done():
            await asyncio.sleep(0)
        await flight.verified
        if flight.round_number is not None:
            self._spans.hear(flight.round_number)
        judgement = self._side.outcome(flight.judged.result(), elapsed_between(flight.began, flight.read))
        if self._side.learns_late:
            confirm = partial(self._side.confirm, judgement)
            self._track.stream.launch(confirm, writes=self.lane.buffers, label=LaunchKind.CONFIRM)
        return judgement

    def close_round(self, flight: Flight, report: RoundReport) -> None:
        """The flight's verdict is committed, and the next block on its way where there is to be one."""
        if flight.round_number is not None:
            self._spans.close_round(flight.round_number, report)

    def end(self) -> None:
        """The request has ended, or was given up."""
        if self._spans.on:
            self._spans.abandon_rounds()


def _check_features(target: Lane, feature_size: int | None, residency: Residency | None) -> None:
    if feature_size is None:
        return
    if residency is not None and not isinstance(residency, HostResidency):
        raise ValueError(
            "a feature-conditioned draft runs where rounds are on the host, on a CPU, only so far; take a draft that "
            "reads tokens alone"
        )
    if target.kept_feature_size != feature_size:
        raise ValueError(
            f"the draft reads features of width {feature_size}, the lane {target.name!r} keeps "
            f"{'none' if target.kept_feature_size is None else target.kept_feature_size}; make it with "
            "keeps_features=True, of the target that the draft was made for"
        )
