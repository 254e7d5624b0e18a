"""Where a chain stands: two tokens and a position that a verdict moves without a look at it."""

from __future__ import annotations

import pytest
import torch

from scheduler import SamplingSettings, TokenHistory
from scheduler.on_device import DeviceLaw
from scheduler.on_device.position import ChainPosition, Restart
from tests.support.host_reads import forbid_host_reads

CPU = torch.device("cpu")
VOCAB = 8
PENALTIES = SamplingSettings(frequency_penalty=0.5)


def chain(*prompt_ids: int, settings: SamplingSettings = PENALTIES) -> ChainPosition:
    position = ChainPosition(CPU)
    law = DeviceLaw(settings, vocab_size=VOCAB, device=CPU)
    position.begin(prompt_ids, law.start_counts(prompt_ids))
    return position


def draw(position: ChainPosition, *token_ids: int) -> None:
    for token_id in token_ids:
        position.advance(torch.tensor([token_id]))


def restart(*, hit: bool, next_position: int, tail: tuple[int, int], token_ids: tuple[int, ...]) -> Restart:
    return Restart(
        hit=torch.tensor([hit]),
        next_position=torch.tensor([next_position]),
        tail_2=torch.tensor(tail),
        token_ids_R=torch.tensor([*token_ids, -1, -1]),
    )


def check(position: ChainPosition, next_position: int, tail: list[int]) -> None:
    assert position.next_position.tolist() == [next_position]
    assert position.tail_2.tolist() == tail


def check_counts(position: ChainPosition, prompt_ids: tuple[int, ...], output_ids: tuple[int, ...]) -> None:
    wanted = TokenHistory(prompt_ids, count_vocab_size=VOCAB).extended(output_ids).counts
    assert position.counts is not None
    assert wanted is not None
    assert torch.equal(position.counts.in_output_V, wanted.in_output_V)
    assert torch.equal(position.counts.seen_V, wanted.seen_V)


def test_stands_behind_the_prompt() -> None:
    position = chain(3, 1, 4)
    check(position, 3, [1, 4])
    assert position.tail_positions_2().tolist() == [1, 2]


def test_a_single_token_stands_for_the_one_before_it() -> None:
    position = chain(5)
    check(position, 1, [5, 5])
    assert position.tail_positions_2().tolist() == [0, 0]
    draw(position, 6)
    check(position, 2, [5, 6])
    assert position.tail_positions_2().tolist() == [0, 1]


def test_goes_on_token_by_token() -> None:
    position = chain(3, 1)
    draw(position, 4, 1, 5)
    check(position, 5, [1, 5])
    check_counts(position, (3, 1), (4, 1, 5))


def test_a_hit_moves_nothing() -> None:
    position = chain(3, 1)
    draw(position, 4, 1, 5)
    position.settle(restart(hit=True, next_position=4, tail=(4, 1), token_ids=(4, 1)))
    check(position, 5, [1, 5])
    check_counts(position, (3, 1), (4, 1, 5))


def test_a_miss_starts_anew_and_forgets_what_was_refuted() -> None:
    position = chain(3, 1)
    draw(position, 4, 1, 5)
    position.settle(restart(hit=False, next_position=4, tail=(4, 7), token_ids=(4, 7)))
    check(position, 4, [4, 7])
    check_counts(position, (3, 1), (4, 7))


@pytest.mark.parametrize("first_hits", [True, False])
def test_counts_after_several_verdicts(first_hits: bool) -> None:
    position = chain(3, 1)
    draw(position, 4, 1, 5)
    position.settle(restart(hit=first_hits, next_position=4, tail=(4, 1), token_ids=(4, 1)))
    draw(position, 2)
    position.settle(restart(hit=False, next_position=5, tail=(1, 6), token_ids=(6,)))
    check(position, 5, [1, 6])
    check_counts(position, (3, 1), (4, 1, 6))


def test_nothing_is_read_on_the_host_and_addresses_stay() -> None:
    position = chain(3, 1)
    addresses = position.next_position.data_ptr(), position.tail_2.data_ptr()
    verdict = restart(hit=False, next_position=4, tail=(4, 7), token_ids=(4, 7))
    drawn = torch.tensor([4])
    with forbid_host_reads():
        position.advance(drawn)
        position.tail_positions_2()
        position.settle(verdict)
    position.begin((1, 2, 3), None)
    assert (position.next_position.data_ptr(), position.tail_2.data_ptr()) == addresses
    assert position.counts is None
