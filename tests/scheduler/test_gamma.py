"""How many tokens to propose: the best number for given costs and acceptance, and the way back from none."""

from __future__ import annotations

import itertools
import random

import pytest

from scheduler import AdaptiveGamma, BlockCosts, FixedGamma, expected_tokens
from scheduler.gamma import AcceptanceEstimate

FLAT = BlockCosts({1: 10.0, 17: 10.5})
"""A block costs what one token costs, as on a GPU or with int8 weights."""
STEEP = BlockCosts({1: 10.0, 17: 170.0})


def policy_of(
    verify: BlockCosts = FLAT, *, draft_ms: float | None = 0.5, max_gamma: int = 8, prior_alpha: float = 0.6
) -> AdaptiveGamma:
    draft = BlockCosts({1: draft_ms}) if draft_ms is not None else None
    return AdaptiveGamma(max_gamma=max_gamma, verify_costs=verify, draft_costs=draft, prior_alpha=prior_alpha)


def play(policy: AdaptiveGamma, alpha: float, *, num_rounds: int, seed: int = 0) -> list[int]:
    """Rounds in which each judged token is accepted with probability alpha; returns the gammas chosen."""
    generator = random.Random(seed)
    gammas = []
    for _ in range(num_rounds):
        gamma = policy.choose()
        accepted = 0
        while accepted < gamma and generator.random() < alpha:
            accepted += 1
        policy.observe(gamma, accepted)
        gammas.append(gamma)
    return gammas


class TestExpectedTokens:
    @pytest.mark.parametrize("gamma", range(6))
    @pytest.mark.parametrize("alpha", [0.0, 0.3, 0.9, 1.0])
    def test_is_the_sum_of_the_chances_to_get_that_far(self, gamma: int, alpha: float) -> None:
        assert expected_tokens(gamma, alpha) == pytest.approx(sum(alpha**index for index in range(gamma + 1)))

    def test_is_continuous_towards_certainty(self) -> None:
        assert expected_tokens(8, 1 - 1e-12) == pytest.approx(9, rel=1e-3)


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


class TestFixed:
    def test_never_changes(self) -> None:
        policy = FixedGamma(3)
        policy.observe(3, 0)
        assert [policy.choose() for _ in range(3)] == [3, 3, 3]


class TestAdaptive:
    @pytest.mark.parametrize("alpha", [0.1, 0.5, 0.8, 0.95])
    @pytest.mark.parametrize("draft_ms", [0.1, 1.0, 4.0])
    @pytest.mark.parametrize("verify", [FLAT, STEEP])
    def test_takes_what_promises_most_tokens_a_second(self, alpha: float, draft_ms: float, verify: BlockCosts) -> None:
        policy = policy_of(verify, draft_ms=draft_ms, prior_alpha=alpha)

        def tokens_per_ms(gamma: int) -> float:
            return expected_tokens(gamma, alpha) / (gamma * draft_ms + (verify.estimate(gamma + 1) or 0))

        best = max(range(9), key=tokens_per_ms)
        worthwhile = tokens_per_ms(best) > 1.03 * tokens_per_ms(0)
        assert policy.choose() == (best if worthwhile else 0)

    @pytest.mark.parametrize(("gain", "gamma"), [(0.99, 0), (1.01, 0), (1.05, 1)])
    def test_a_gain_within_the_noise_of_the_clock_is_none(self, gain: float, gamma: int) -> None:
        costs = BlockCosts({1: 1.0, 2: expected_tokens(1, 0.6) / gain})
        policy = AdaptiveGamma(max_gamma=1, verify_costs=costs, draft_costs=None, prior_alpha=0.6)
        assert policy.choose() == gamma

    def test_a_better_draft_gets_longer_blocks(self) -> None:
        averages = []
        for alpha in (0.3, 0.6, 0.9, 1.0):
            gammas = play(policy_of(), alpha, num_rounds=400)[100:]
            averages.append(sum(gammas) / len(gammas))
        assert averages == sorted(averages)
        assert averages[-1] == 8

    def test_a_draft_that_is_never_right_is_hardly_asked(self) -> None:
        gammas = play(policy_of(), 0.0, num_rounds=1000)
        assert sum(gammas[30:]) <= (1000 - 30) // 64 + 6
        assert max(gammas[30:]) == 1

    def test_recovers_when_the_draft_does(self) -> None:
        policy = policy_of()
        play(policy, 0.0, num_rounds=1000)
        assert play(policy, 1.0, num_rounds=400)[-50:] == [8] * 50

    def test_where_blocks_are_dear_nothing_is_proposed(self) -> None:
        gammas = play(policy_of(STEEP, draft_ms=4.0), 0.7, num_rounds=500)
        assert sum(gammas[50:]) < 30

    def test_a_source_that_costs_nothing_is_asked_sooner(self) -> None:
        assert policy_of(draft_ms=None, prior_alpha=0.05).choose() > 0
        assert policy_of(draft_ms=5.0, prior_alpha=0.05).choose() == 0

    def test_pauses_double_up_to_a_limit(self) -> None:
        policy = policy_of(prior_alpha=0.0)
        gammas = play(policy, 0.0, num_rounds=500)
        asked = [index for index, gamma in enumerate(gammas) if gamma]
        assert [later - earlier for earlier, later in itertools.pairwise(asked)][:5] == [17, 33, 65, 65, 65]

    def test_one_success_shortens_the_pause(self) -> None:
        policy = policy_of(draft_ms=9.0, prior_alpha=0.0)
        play(policy, 0.0, num_rounds=300)
        while policy.choose() == 0:
            pass
        policy.observe(1, 1)
        assert [policy.choose() for _ in range(9)] == [0] * 8 + [1]

    def test_a_source_that_must_catch_up_first_is_asked_until_it_answers(self) -> None:
        policy = policy_of(prior_alpha=0.0)
        while policy.choose() == 0:
            pass
        # Nothing was proposed, so nothing was observed: the question stands.
        for _ in range(5):
            policy.observe(0, 0)
            assert policy.choose() == 1
        policy.observe(1, 0)
        assert policy.choose() == 0

    def test_failing_guesses_that_cost_nothing_do_not_lengthen_the_pause(self) -> None:
        policy = policy_of(prior_alpha=0.0)
        gammas = []
        for _ in range(60):
            gamma = policy.choose()
            gammas.append(gamma)
            policy.observe(1, 0)
        assert gammas.index(1) == 8

    def test_right_guesses_that_cost_nothing_bring_it_back(self) -> None:
        policy = policy_of()
        play(policy, 0.0, num_rounds=500)
        chosen = []
        for _ in range(12):
            chosen.append(policy.choose())
            policy.observe(1, 1)
        assert chosen[-1] > 1

    @pytest.mark.parametrize("max_gamma", [0, 1, 3])
    def test_the_limit_holds(self, max_gamma: int) -> None:
        gammas = play(policy_of(max_gamma=max_gamma), 1.0, num_rounds=100)
        assert max(gammas) == max_gamma

    def test_costs_that_nobody_measured_yet_are_found_out_with_one_token(self) -> None:
        assert policy_of(BlockCosts()).choose() == 1
        assert policy_of(BlockCosts(), max_gamma=0).choose() == 0

    def test_follows_costs_that_change(self) -> None:
        costs = BlockCosts({1: 10.0, 9: 10.5})
        policy = policy_of(costs, prior_alpha=0.8)
        assert policy.choose() > 0
        for _ in range(80):
            costs.record(9, 90.0)
            costs.record(2, 25.0)
        assert policy.choose() == 0

    @pytest.mark.parametrize("max_gamma", [-1, 1.5, True])
    def test_bad_limits(self, max_gamma: object) -> None:
        with pytest.raises((TypeError, ValueError), match="max_gamma must be"):
            policy_of(max_gamma=max_gamma)  # type: ignore[arg-type]  # the point of the test
