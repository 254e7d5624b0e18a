"""The target's half of a round whose verdict stays on the device.

Owns the target's launches where drafted tokens and verdicts have no value on the host, the slots that the draft
restarts from, and the one copy a round by which the host hears of a verdict. `scheduler.target_side.HostTarget` is its
twin. Knows nothing of streams or events.

The host launches a block only when it knows the last verdict, so where the block stands is a number; only its tokens
are not.

Shape suffixes: R logit rows of a block, V vocabulary.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from scheduler.block import BlockPlan
from scheduler.costs import elapsed_ms as ms_since
from scheduler.decoding import Decoding
from scheduler.errors import NonFiniteLogitsError
from scheduler.history import TokenHistory
from scheduler.lane import Lane
from scheduler.on_device.judge import DeviceVerdict, VerdictLayout, judge_on_device
from scheduler.on_device.law import DeviceCounts, DeviceLaw
from scheduler.on_device.noise_table import NoiseTable, purposes_of
from scheduler.on_device.position import Restart
from scheduler.on_device.proposal import DeviceToken, joined_ids, tokens_of
from scheduler.round import MOST_LOGPROBS, Judgement, Proposal
from scheduler.streams.cuda.copies import CopyDriver
from scheduler.streams.cuda.ring import PinnedRing, PinnedSlot
from scheduler.streams.lineage import Generation
from scheduler.upload import upload_ids

_NUM_RESULT_SLOTS = 4
"""The host reads each verdict before it launches the next block; more than two would do for a cancelled one."""
_WORD_BYTES = 8


@dataclass(frozen=True, kw_only=True)
class _Forwarded:
    block: Proposal
    logits_RV: torch.Tensor
    last_id: torch.Tensor
    """int64, one element; the last committed token."""
    num_read: int
    started_s: float


@dataclass(frozen=True, kw_only=True)
class DeviceJudgement:
    """A verdict on its way: what is known of it at once, what the draft restarts from, and where it will arrive."""

    proposal: Proposal
    num_verified: int
    history: TokenHistory
    """Before the verdict."""
    restart: Restart
    layout: VerdictLayout
    arriving: PinnedSlot
    generation: Generation | None
    width: int
    """Tokens that the target has read; at first the prompt's tail as well."""
    started_s: float


class _Running:
    """What a request needs on the device."""

    def __init__(self, decoding: Decoding, device: torch.device) -> None:
        request = decoding.request
        self.decoding = decoding
        self.law = DeviceLaw(
            request.settings, vocab_size=decoding.law.vocab_size, stop_ids=request.stop_ids, device=device
        )
        num_prompt_tokens = len(request.prompt_ids)
        self.noise = NoiseTable(
            request.settings.seed,
            device=device,
            num_positions=max(decoding.end, num_prompt_tokens + 1),
            first_position=num_prompt_tokens,
            purposes=purposes_of(request.settings),
        )
        self.counts: DeviceCounts | None = self.law.start_counts(request.prompt_ids)


class DeviceTarget:
    """Reads and judges blocks without looking at a value; see `scheduler.target_side.TargetSide`."""

    learns_late = True
    """Launches enqueue work on tokens that have no value yet."""

    def __init__(self, lane: Lane, *, max_gamma: int, num_slots: int, copies: CopyDriver) -> None:
        """Allocate what verdicts leave on the device and in host memory.

        Args:
            lane: the target's.
            max_gamma: most tokens of a block.
            num_slots: verdicts that a busy draft may have yet to take in.
            copies: how results get to the host.
        """
        self._lane = lane
        self._device = lane.model.device
        num_rows = max_gamma + 1
        self._restarts = _RestartSlots(num_slots=num_slots, num_rows=num_rows, device=self._device)
        largest = VerdictLayout.of(
            num_rows=num_rows, num_logprobs=MOST_LOGPROBS, vocab_size=lane.model.vocab_size
        ).num_words
        self._ring = PinnedRing(copies, num_slots=_NUM_RESULT_SLOTS, num_bytes=(largest + 1) * _WORD_BYTES)
        self._running: _Running | None = None
        self._arriving: PinnedSlot | None = None

    def forward(self, decoding: Decoding, history: TokenHistory, plan: BlockPlan) -> _Forwarded:
        """Read the last committed token, at first the prompt's tail as well, and the block."""
        started_s = time.perf_counter()
        self._lane.share(together=plan.together)
        block = plan.block()
        known_ids = history.ids(self._lane.num_held)
        known_T = upload_ids(known_ids, self._device)
        token_ids_T = torch.cat([known_T, *(token.token_id for token in tokens_of(block))])
        logits_RV = self._lane.feed_unknown(token_ids_T, known_ids, num_logits=len(block) + 1)
        return _Forwarded(
            block=block, logits_RV=logits_RV, last_id=known_T[-1:], num_read=len(token_ids_T), started_s=started_s
        )

    def judge(
        self,
        decoding: Decoding,
        history: TokenHistory,
        plan: BlockPlan,
        forwarded: _Forwarded,
        slot: int,
        generation: Generation | None,
    ) -> DeviceJudgement:
        """Judge the block, leave in that slot what the draft restarts from, and send the verdict to the host."""
        running = self._request(decoding)
        block = forwarded.block
        proposal = block.followed_by(plan.guess())
        tokens = tokens_of(proposal)
        ids = joined_ids(tokens, self._device)
        running.noise.reserve(history.length + len(block) + 1)
        verdict = judge_on_device(
            running.law,
            running.noise,
            forwarded.logits_RV,
            position=history.length,
            num_output=history.num_output_tokens,
            counts=running.counts,
            block_ids_B=ids[: len(block)],
            guess_ids_G=ids[len(block) :],
            draft_probabilities=proposal.probabilities,
            num_logprobs=decoding.request.num_logprobs,
        )
        if running.counts is not None:
            running.counts = running.counts.with_tokens(verdict.token_ids_R)
        return DeviceJudgement(
            proposal=proposal,
            num_verified=len(block),
            history=history,
            restart=self._restarts.write(slot, verdict, forwarded.last_id),
            layout=verdict.layout,
            arriving=self._send(verdict, tokens),
            generation=generation,
            width=forwarded.num_read,
            started_s=forwarded.started_s,
        )

    def outcome(self, judged: DeviceJudgement, elapsed_ms: float | None) -> Judgement:
        """The verdict, which has arrived; without a hit `generation` is retired, for launches that have not begun.

        Where the device tells no time, the verdict's is the host's, from launching the block to this.

        Raises:
            NonFiniteLogitsError: if no token could be drawn from a row of the target's, or of the draft's.
        """
        words = judged.arriving.read()
        arrived = judged.layout.unpack(words)
        all_sound = bool(words[judged.layout.num_words])
        judged.arriving.release()
        arrived.check_finite()
        if not all_sound:
            raise NonFiniteLogitsError(
                f"no token can be drafted behind position {judged.history.length - 1}, as the largest logit there is "
                "not finite: the draft's weights are damaged, or min_tokens forbids every token it has"
            )
        judgement = Judgement(
            proposal=judged.proposal,
            num_verified=judged.num_verified,
            verdict=arrived.verdict,
            history=judged.history.extended(arrived.verdict.token_ids),
            kept_length=arrived.kept_length,
            verify_ms=ms_since(judged.started_s) if elapsed_ms is None else elapsed_ms,
        )
        if elapsed_ms is not None:
            self._lane.note_cost(judged.width, elapsed_ms)
        if judged.generation is not None and not judgement.hit:
            judged.generation.lineage.retire(judged.generation)
        return judgement

    def confirm(self, judgement: Judgement) -> None:
        """The lane holds the accepted part of the block, whose tokens have names now."""
        start = judgement.history.length - len(judgement.verdict.token_ids)
        self._lane.roll_back(judgement.kept_length)
        self._lane.reveal(start, judgement.history.ids(start)[: judgement.kept_length - start])

    def _request(self, decoding: Decoding) -> _Running:
        if self._running is None or self._running.decoding is not decoding:
            self._running = _Running(decoding, self._device)
        return self._running

    def _send(self, verdict: DeviceVerdict, tokens: tuple[DeviceToken, ...]) -> PinnedSlot:
        if self._arriving is not None:
            # Only a cancelled request leaves one unread.
            self._arriving.release()
        sound = [token.sound for token in tokens]
        all_sound = torch.cat(sound).all() if sound else torch.ones((), dtype=torch.bool, device=self._device)
        self._arriving = self._ring.copy(torch.cat([verdict.packed(), all_sound.to(torch.int64)[None]]))
        return self._arriving


class _RestartSlots:
    """Memory by which verdicts pass from the target's stream to the draft's: allocated once, one row for each slot."""

    def __init__(self, *, num_slots: int, num_rows: int, device: torch.device) -> None:
        self._hit_S1 = torch.empty(num_slots, 1, dtype=torch.bool, device=device)
        self._next_position_S1 = torch.empty(num_slots, 1, dtype=torch.int64, device=device)
        self._tail_S2 = torch.empty(num_slots, 2, dtype=torch.int64, device=device)
        self._token_ids_SR = torch.empty(num_slots, num_rows, dtype=torch.int64, device=device)

    def write(self, slot: int, verdict: DeviceVerdict, last_id: torch.Tensor) -> Restart:
        """Put a verdict down behind the last committed token before it."""
        num_rows = len(verdict.token_ids_R)
        restart = Restart(
            hit=self._hit_S1[slot],
            next_position=self._next_position_S1[slot],
            tail_2=self._tail_S2[slot],
            token_ids_R=self._token_ids_SR[slot, :num_rows],
        )
        restart.hit.copy_(verdict.hit)
        restart.next_position.copy_(verdict.next_position)
        restart.token_ids_R.copy_(verdict.token_ids_R)
        text = torch.cat([last_id, verdict.token_ids_R])
        last_two = verdict.num_emitted + torch.arange(-1, 1, device=text.device)
        restart.tail_2.copy_(text.index_select(0, last_two))
        return restart
