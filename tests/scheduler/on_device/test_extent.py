"""What the host knows of a chain on the device: bounds that hold whatever the verdict was, exact after its news."""

from __future__ import annotations

import random

import pytest

from scheduler.on_device.extent import Extent


class TrueChain:
    """The chain itself, row by row."""

    def __init__(self, length: int, num_read: int) -> None:
        self.length = length
        self.num_drawn = 0
        self.rows = set(range(num_read))
        """Rows of the cache that hold the chain's own tokens."""

    @property
    def position(self) -> int:
        return self.length + self.num_drawn

    @property
    def can_step(self) -> bool:
        return set(range(self.position - 2)) <= self.rows

    def step(self) -> None:
        self.rows |= {max(0, self.position - 2), self.position - 1}
        self.num_drawn += 1

    def settle(self, num_verified: int, num_accepted: int, has_guess: bool) -> bool:
        hit = has_guess and num_accepted == num_verified + 1
        if hit:
            self.length += num_verified + 1
            self.num_drawn -= num_verified + 1
        else:
            # The token behind the accepted ones is the target's own, and not the one that was read there.
            self.rows -= set(range(self.length + num_accepted, 1000))
            self.length += num_accepted + 1
            self.num_drawn = 0
        return hit


def check_bounds(extent: Extent, chain: TrueChain) -> None:
    assert extent.end >= chain.position
    assert extent.num_unjudged >= chain.num_drawn
    if extent.has_read:
        assert chain.can_step


def check_exact(extent: Extent, chain: TrueChain) -> None:
    assert not extent.is_pending
    assert (extent.length, extent.end, extent.num_unjudged) == (chain.length, chain.position, chain.num_drawn)
    assert set(range(extent.num_read)) <= chain.rows


@pytest.mark.parametrize("seed", range(60))
def test_bounds_hold_whatever_the_verdicts_are(seed: int) -> None:
    draw = random.Random(seed)
    length = draw.randint(1, 6)
    num_read = draw.randint(0, length - 1)
    extent, chain = Extent(), TrueChain(length, num_read)
    extent.begin(length, num_read=num_read)
    num_steps = 0
    hit = False
    for _ in range(40):
        for is_pending in (True, False):
            for _ in range(draw.choice((0, 0, 1, 3))):
                if not extent.has_read:
                    # Committed tokens by the latest news: these are certain.
                    assert extent.num_unjudged == 0
                    known = set(range(extent.length - 1))
                    chain.rows |= known
                    extent.read(max(extent.num_read, extent.length - 1))
                assert extent.has_read
                chain.step()
                extent.draw()
                num_steps += 1
                check_bounds(extent, chain)
            if is_pending and extent.is_pending:
                extent.note(chain.length, hit=hit)
                check_exact(extent, chain)
        check_exact(extent, chain)
        num_verified = draw.randint(0, chain.num_drawn)
        has_guess = chain.num_drawn > num_verified and draw.random() < 0.7
        num_accepted = draw.choice((num_verified + has_guess, draw.randint(0, num_verified)))
        extent.settle(num_verified=num_verified, has_guess=has_guess)
        hit = chain.settle(num_verified, num_accepted, has_guess)
        check_bounds(extent, chain)
    assert num_steps > 20


def test_a_prompt_that_was_not_read_cannot_be_drafted_from() -> None:
    extent = Extent()
    extent.begin(10, num_read=7)
    assert not extent.has_read
    extent.read(8)
    assert extent.has_read


def test_a_round_without_proposals_leaves_its_token_unread() -> None:
    extent = Extent()
    extent.begin(10, num_read=8)
    extent.settle(num_verified=0, has_guess=False)
    # Behind the verdict's one token, a step would read that and the one before, and miss a third.
    assert not extent.has_read
    extent.note(11, hit=False)
    assert extent.num_read == 8
    assert not extent.has_read


def test_a_whole_block_without_a_guess_needs_no_reading() -> None:
    extent = Extent()
    extent.begin(10, num_read=9)
    for _ in range(3):
        extent.draw()
    extent.settle(num_verified=3, has_guess=False)
    extent.note(14, hit=False)
    # The last two are the third drafted token, which nobody read, and the target's own: a step reads both.
    assert extent.num_read == 12
    assert extent.has_read
    extent.begin(1, num_read=0)
    assert extent.has_read


def test_verdicts_come_one_by_one() -> None:
    extent = Extent()
    extent.begin(3, num_read=2)
    with pytest.raises(RuntimeError, match="never settled"):
        extent.note(4, hit=False)
    extent.settle(num_verified=0, has_guess=False)
    with pytest.raises(RuntimeError, match="before the first one was noted"):
        extent.settle(num_verified=0, has_guess=False)
