"""The chain on the device: a draft model that goes on, and starts anew behind a verdict, without asking the host.

Owns the draft's launches where a verdict's value stays on the device. `scheduler.chain` is its twin with values on the
host, and settles every verdict as this one does. Knows nothing of streams or events.

All methods run as launches on the draft's stream, and none looks at a value on the device. What must be known to
enqueue a step (how many keys it may see, whether there is room for it) is a bound that the host keeps (`Extent`). A
step always feeds the last two tokens and draws one: behind a wholly accepted block both are new to the draft, otherwise
the first is read again, to the same effect. So no shape depends on a verdict.

Shape suffixes: R logit rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from models import PositionedModel, UnsupportedModelError
from scheduler.decoding import Decoding
from scheduler.first_error import FirstError
from scheduler.gamma import Leads
from scheduler.history import TokenHistory
from scheduler.noise import Purpose
from scheduler.on_device.extent import Extent
from scheduler.on_device.law import DeviceLaw
from scheduler.on_device.noise_table import NoiseTable, purposes_of
from scheduler.on_device.position import ChainPosition
from scheduler.on_device.proposal import DeviceProposal, DeviceToken, TokenSlots
from scheduler.on_device.target import DeviceJudgement
from scheduler.proposers import ModelProposer, Proposer
from scheduler.round import Drafted, Judgement
from scheduler.settings import Verification


class DeviceChain:
    """Tokens of one draft model that wait for a verdict."""

    learns_late = True
    """Settling enqueues work on a verdict that has no value yet."""

    def __init__(self, proposers: Sequence[Proposer], *, max_gamma: int, leads: Leads, num_slots: int) -> None:
        """Bind the draft.

        Args:
            proposers: one, with a model that takes positions as a tensor.
            max_gamma: most tokens of a block.
            leads: how far past a block the draft may go on; a loop whose lanes take turns drafts whole blocks.
            num_slots: launches whose tokens may wait to be read.

        Raises:
            ValueError: if there is another number of sources, or one of another kind.
            UnsupportedModelError: if the model takes positions as numbers only.
        """
        self._proposer = _only_model(proposers)
        self._lane = self._proposer.lane
        self._device = self._lane.model.device
        self._leads = leads
        self._slots = TokenSlots(
            num_slots=num_slots, num_tokens=1 if leads.most else max(1, max_gamma), device=self._device
        )
        self._position = ChainPosition(self._device)
        self._extent = Extent()
        self._errors = FirstError()
        self._decoding: Decoding
        self._history: TokenHistory
        self._law: DeviceLaw
        self._noise: NoiseTable
        self._gamma: int | None = None
        self._knows_text = True

    def begin(self, decoding: Decoding, history: TokenHistory) -> None:
        """Start a request; whatever an earlier one left, even an error, is forgotten."""
        self._errors.forget()
        self._decoding, self._history = decoding, history
        self._gamma = None
        with self._errors.remembered():
            self._proposer.begin(history, self._leads, decoding.request.gamma)
            prompt_ids, settings = decoding.request.prompt_ids, decoding.request.settings
            vocab_size = decoding.law.vocab_size
            self._law = DeviceLaw(
                settings, vocab_size=vocab_size, stop_ids=decoding.request.stop_ids, device=self._device
            )
            self._noise = NoiseTable(
                settings.seed,
                device=self._device,
                num_positions=max(decoding.end, history.length),
                first_position=history.length,
                purposes=purposes_of(settings),
            )
            self._slots.begin(vocab_size=vocab_size, keeps_probabilities=self._rejects)
            self._extent.begin(history.length, num_read=self._lane.num_held)
            self._knows_text = max(prompt_ids) < self._proposer.num_shared_ids
            if self._knows_text:
                self._position.begin(prompt_ids, self._law.start_counts(prompt_ids))

    def draft_block(self, max_tokens: int, slot: int) -> Drafted:
        """A whole block at once."""
        with self._errors.remembered():
            if self._num_left() <= 0:
                return Drafted()
            gamma = self._choose()
            num_wanted = min(gamma, max_tokens, self._num_left())
            if num_wanted <= 0 or not self._catch_up():
                return Drafted()
            return Drafted(proposal=self._proposal(slot, num_wanted), gamma=gamma)

    def catch_up(self) -> None:
        """Read a part of the text that the draft has missed, as much as takes about one step."""
        with self._errors.remembered():
            if self._knows_text and self._extent.num_unjudged == 0:
                self._proposer.catch_up(self._history)
                self._extent.read(self._lane.num_held)

    def look_up(self, slot: int) -> Drafted:
        """Nothing: a model takes a step for each token."""
        return Drafted()

    def step(self, slot: int, *, ahead: bool = True) -> Drafted:
        """One more token; where there is no room for one, or the draft is still reading, none.

        Unless it is to go `ahead`, it brings no more than a block and a guess, as far as the host can tell: the target
        may be waiting for it.
        """
        with self._errors.remembered():
            if self._num_left() <= 0:
                return Drafted()
            gamma, lead = self._choose(), self._proposer.lead
            if gamma <= 0:
                return Drafted()
            if not self._catch_up():
                return Drafted(gamma=gamma, lead=lead, behind=True)
            # Of a chain that may have been thrown away a moment ago, the first token is always welcome.
            num_welcome = gamma + (lead if ahead or self._extent.is_pending else min(lead, 1))
            if self._extent.num_unjudged >= num_welcome:
                return Drafted(gamma=gamma, lead=lead)
            return Drafted(proposal=self._proposal(slot, 1), gamma=gamma, lead=lead)

    def settle(self, judged: DeviceJudgement) -> None:
        """Take in a verdict that the device has and the host does not: after a hit the chain stands, else it is new."""
        with self._errors.remembered():
            has_guess = len(judged.proposal) > judged.num_verified
            self._extent.settle(num_verified=judged.num_verified, has_guess=has_guess)
            if self._knows_text:
                self._position.settle(judged.restart)

    def note(self, judgement: Judgement) -> None:
        """The verdict settled last is known: acceptance has a say in gamma, and what was read is counted in."""
        with self._errors.remembered():
            self._history = judgement.history
            new_ids = judgement.verdict.token_ids
            self._extent.note(judgement.history.length, hit=judgement.hit)
            if judgement.proposal:
                self._proposer.observe(len(judgement.proposal), judgement.verdict.num_accepted)
            self._knows_text = self._knows_text and max(new_ids) < self._proposer.num_shared_ids
            self._gamma = None
            if self._knows_text:
                num_read = min(self._extent.num_read, self._history.length)
                self._lane.count_in(self._history.ids(self._lane.num_held)[: num_read - self._lane.num_held])
                if self._num_left() > 0:
                    self._choose()

    def explain(self) -> str:
        """Nothing: there is one source."""
        return ""

    @property
    def _rejects(self) -> bool:
        return self._decoding.request.settings.verification is Verification.REJECTION

    def _num_left(self) -> int:
        """Tokens that may still be drawn, wherever the chain stands."""
        if not self._knows_text or self._decoding.warming_up(self._history):
            return 0
        return min(self._decoding.end, self._lane.capacity) - self._extent.end

    def _choose(self) -> int:
        """Gamma, chosen once for each verdict that the host has heard of."""
        if self._gamma is None:
            self._gamma = self._proposer.choose(self._history)
        return self._gamma

    def _catch_up(self) -> bool:
        """Read what a step needs; of more than one block only the first, and then there is to be no step."""
        if self._extent.has_read:
            return True
        missed_ids = self._history.ids(self._lane.num_held)[:-1]
        block = missed_ids[: self._lane.model.max_block]
        self._lane.feed(block, num_logits=0)
        self._extent.read(self._lane.num_held)
        return len(block) == len(missed_ids)

    def _proposal(self, slot: int, num_tokens: int) -> DeviceProposal:
        self._lane.share(together=self._proposer.lead > 0)
        tokens: list[DeviceToken] = []
        probabilities: list[torch.Tensor] = []
        for place in range(num_tokens):
            log_weights_1V, sound = self._row()
            token_id = self._drawn(log_weights_1V)
            tokens.append(self._slots.write(slot, place, token_id, sound))
            if self._rejects:
                probabilities_1V = self._law.probabilities_RV(log_weights_1V)
                probabilities.append(self._slots.write_probabilities(slot, place, probabilities_1V[0]))
            self._position.advance(token_id)
            self._extent.draw()
        return DeviceProposal(tokens=tuple(tokens), probabilities=tuple(probabilities) if self._rejects else None)

    def _row(self) -> tuple[torch.Tensor, torch.Tensor]:
        """log_weights_1V of the next token, and whether anything can be drawn from them (bool, one element)."""
        num_shared = self._proposer.num_shared_ids
        logits_1V = self._lane.read_at(
            # A wider target may just have written a token that the draft does not know; the host will soon hear of it.
            self._position.tail_2.clamp(max=num_shared - 1),
            self._position.tail_positions_2(),
            key_length=self._extent.end,
            num_logits=1,
        )
        counts = self._position.counts
        return self._law.apply(
            logits_1V[:, :num_shared],
            num_output_R=self._position.next_position - len(self._decoding.request.prompt_ids),
            counts=None if counts is None else counts.rows(),
        )

    def _drawn(self, log_weights_1V: torch.Tensor) -> torch.Tensor:
        """int64, one element."""
        if self._law.settings.greedy:
            return self._law.draw_R(log_weights_1V, None)
        self._noise.reserve(min(self._extent.end + 1, self._noise.num_positions))
        purpose = Purpose.DRAFT if self._rejects else Purpose.SHARED
        noise_1V = self._noise.gumbel_RV(purpose, self._position.next_position, self._law.token_ids_V)
        return self._law.draw_R(log_weights_1V, noise_1V)


def _only_model(proposers: Sequence[Proposer]) -> ModelProposer:
    proposer = proposers[0]
    if len(proposers) != 1 or not isinstance(proposer, ModelProposer):
        names = ", ".join(repr(proposer.name) for proposer in proposers)
        raise ValueError(
            f"rounds that stay on the device have exactly one draft source, a model, got {names}; leave the others "
            "out, or run on the CPU"
        )
    model = proposer.lane.model
    if not isinstance(model, PositionedModel):
        raise UnsupportedModelError(
            f"draft {model.name!r} ({type(model).__name__}) cannot take positions as a tensor, which drafting on the "
            "device needs; use a model that the built-in decoder runs, or run on the CPU"
        )
    return proposer
