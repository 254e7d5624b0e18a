"""Proposals whose tokens only the device knows: counted, cut and joined like any other, and never copied."""

from __future__ import annotations

import pytest
import torch

from scheduler import Proposal
from scheduler.on_device.proposal import DeviceProposal, TokenSlots, joined_ids, tokens_of

CPU = torch.device("cpu")


def slots(num_slots: int = 4, num_tokens: int = 1) -> TokenSlots:
    made = TokenSlots(num_slots=num_slots, num_tokens=num_tokens, device=CPU)
    made.begin(vocab_size=3, keeps_probabilities=True)
    return made


def proposal(memory: TokenSlots, first_slot: int, *token_ids: int, draft_ms: float = 0.0) -> DeviceProposal:
    places = list(enumerate(token_ids, start=first_slot))
    return DeviceProposal(
        tokens=tuple(
            memory.write(slot, 0, torch.tensor([token_id]), torch.tensor([True])) for slot, token_id in places
        ),
        probabilities=tuple(memory.write_probabilities(slot, 0, torch.full((3,), float(i))) for slot, i in places),
        source=1,
        draft_ms=draft_ms,
    )


def ids(chain: Proposal) -> list[int]:
    return joined_ids(tokens_of(chain), CPU).tolist()


class TestDeviceProposal:
    def test_counts_and_cuts(self) -> None:
        chain = proposal(slots(), 0, 7, 8, 9)
        assert len(chain) == 3
        assert not chain.part(3)
        assert ids(chain.part(1)) == [8, 9]
        assert ids(chain.part(0, 1)) == [7]
        assert [float(row_V[0]) for row_V in chain.part(1).probabilities or ()] == [8.0, 9.0]
        assert chain.token_ids == ()

    def test_joins_in_either_order_with_nothing(self) -> None:
        chain = proposal(slots(), 0, 7, draft_ms=2.0)
        for joined in (Proposal(draft_ms=1.0).followed_by(chain), chain.followed_by(Proposal(draft_ms=1.0))):
            assert ids(joined) == [7]
            assert (joined.source, joined.draft_ms) == (1, 3.0)
        nothing = DeviceProposal()
        assert ids(nothing.followed_by(chain)) == [7]
        assert len(nothing.followed_by(Proposal())) == 0

    def test_joins_two(self) -> None:
        memory = slots()
        joined = proposal(memory, 0, 7, 8, draft_ms=1.0).followed_by(proposal(memory, 2, 9, draft_ms=0.5))
        assert ids(joined) == [7, 8, 9]
        assert [float(row_V[0]) for row_V in joined.probabilities or ()] == [7.0, 8.0, 9.0]
        assert joined.draft_ms == 1.5

    def test_is_not_joined_to_numbers(self) -> None:
        with pytest.raises(TypeError, match="tokens on the device only"):
            proposal(slots(), 0, 7).followed_by(Proposal(token_ids=(1,)))
        with pytest.raises(TypeError, match="same residency"):
            tokens_of(Proposal(token_ids=(1,)))


class TestSlots:
    def test_tokens_are_views_that_the_next_writer_overwrites(self) -> None:
        memory = slots(num_slots=2, num_tokens=2)
        first = memory.write(1, 0, torch.tensor([5]), torch.tensor([True]))
        beside = memory.write(1, 1, torch.tensor([6]), torch.tensor([True]))
        again = memory.write(1, 0, torch.tensor([7]), torch.tensor([False]))
        assert first.token_id.data_ptr() == again.token_id.data_ptr()
        assert (int(first.token_id), int(beside.token_id), bool(again.sound)) == (7, 6, False)

    def test_what_is_written_is_a_copy(self) -> None:
        drawn = torch.tensor([5])
        token = slots().write(0, 0, drawn, torch.tensor([True]))
        drawn.fill_(6)
        assert int(token.token_id) == 5

    def test_probabilities_stay_where_they_are_from_request_to_request(self) -> None:
        memory = slots()
        first = memory.write_probabilities(0, 0, torch.ones(3)).data_ptr()
        memory.begin(vocab_size=3, keeps_probabilities=False)
        with pytest.raises(RuntimeError, match="keeps no probabilities"):
            memory.write_probabilities(0, 0, torch.ones(3))
        memory.begin(vocab_size=3, keeps_probabilities=True)
        assert memory.write_probabilities(0, 0, torch.ones(3)).data_ptr() == first
