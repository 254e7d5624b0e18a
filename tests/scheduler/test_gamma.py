"""How many tokens a round commits in the mean, and the policy that never changes its mind."""

from __future__ import annotations

import pytest

from scheduler import FixedGamma, Leads, expected_tokens


class TestExpectedTokens:
    @pytest.mark.parametrize("gamma", range(6))
    @pytest.mark.parametrize("alpha", [0.0, 0.3, 0.9, 1.0])
    def test_is_the_sum_of_the_chances_to_get_that_far(self, gamma: int, alpha: float) -> None:
        assert expected_tokens(gamma, alpha) == pytest.approx(sum(alpha**index for index in range(gamma + 1)))

    def test_is_continuous_towards_certainty(self) -> None:
        assert expected_tokens(8, 1 - 1e-12) == pytest.approx(9, rel=1e-3)


class TestFixed:
    def test_never_changes(self) -> None:
        policy = FixedGamma(3)
        policy.observe(3, 0)
        assert [policy.choose() for _ in range(3)] == [3, 3, 3]

    def test_goes_as_far_ahead_as_the_loop_lets_it(self) -> None:
        policy = FixedGamma(3)
        assert policy.lead == 0
        policy.begin(Leads(least=0, most=5))
        assert policy.lead == 5

    def test_says_that_nobody_chose(self) -> None:
        assert FixedGamma(3).explain() == "gamma is fixed at 3"

    def test_a_request_may_have_a_gamma_of_its_own(self) -> None:
        policy = FixedGamma(3)
        policy.begin(gamma=5)
        assert (policy.choose(), policy.explain()) == (5, "gamma is fixed at 5")
        policy.begin()
        assert (policy.choose(), policy.explain()) == (3, "gamma is fixed at 3")
