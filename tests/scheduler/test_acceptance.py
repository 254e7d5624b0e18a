"""The acceptance estimate: quick within a request, with a memory over requests."""

from __future__ import annotations

import random

import pytest

from scheduler.acceptance import AcceptanceEstimate


class TestEstimate:
    def test_starts_at_its_prior(self) -> None:
        assert AcceptanceEstimate(prior=0.7).alpha == pytest.approx(0.7)

    def test_tokens_behind_a_rejection_do_not_count(self) -> None:
        short, long = AcceptanceEstimate(prior=0.5), AcceptanceEstimate(prior=0.5)
        short.observe(2, 1)
        long.observe(8, 1)
        assert short.alpha == long.alpha

    @pytest.mark.parametrize("alpha", [0.2, 0.5, 0.9])
    @pytest.mark.parametrize("gamma", [1, 8])
    def test_finds_the_rate_whatever_gamma_is(self, alpha: float, gamma: int) -> None:
        generator = random.Random(1)
        estimate = AcceptanceEstimate(prior=0.5)
        seen = []
        for _ in range(4000):
            accepted = 0
            while accepted < gamma and generator.random() < alpha:
                accepted += 1
            estimate.observe(gamma, accepted)
            seen.append(estimate.alpha)
        assert sum(seen[100:]) / len(seen[100:]) == pytest.approx(alpha, abs=0.05)

    @pytest.mark.parametrize("num_accepted", [0, 4])
    def test_stays_a_probability(self, num_accepted: int) -> None:
        estimate = AcceptanceEstimate(prior=0.5)
        for _ in range(5000):
            estimate.observe(4, num_accepted)
            assert 0 <= estimate.alpha <= 1

    def test_a_new_request_starts_from_all_earlier_ones(self) -> None:
        estimate = AcceptanceEstimate(prior=0.9)
        for _ in range(300):
            estimate.observe(4, 1)
        for _ in range(20):
            estimate.observe(4, 4)
        assert estimate.alpha > 0.8
        estimate.begin()
        assert 0.5 < estimate.alpha < 0.6

    def test_a_new_request_is_believed_soon(self) -> None:
        estimate = AcceptanceEstimate(prior=0.5)
        for _ in range(300):
            estimate.observe(4, 0)
        estimate.begin()
        assert estimate.alpha < 0.05
        for _ in range(3):
            estimate.observe(4, 4)
        assert estimate.alpha > 0.5

    def test_old_requests_fade(self) -> None:
        estimate = AcceptanceEstimate(prior=0.5)
        for num_accepted in (0, 4):
            for _ in range(20):
                estimate.begin()
                for _ in range(50):
                    estimate.observe(4, num_accepted)
        estimate.begin()
        assert estimate.alpha > 0.95

    def test_requests_without_proposals_change_nothing(self) -> None:
        estimate = AcceptanceEstimate(prior=0.7)
        for _ in range(5):
            estimate.begin()
        assert estimate.alpha == pytest.approx(0.7)
