"""The controller: the best numbers for given costs and acceptance, what is fixed, and the way back from none."""

from __future__ import annotations

import itertools
import random

import pytest

from scheduler import BlockCosts, Controller, Leads, MachinePace, SourceCosts, expected_tokens

FLAT = BlockCosts({1: 10.0, 17: 10.5})
"""A block costs what one token costs, as on a GPU or with int8 weights."""
STEEP = BlockCosts({1: 10.0, 17: 170.0})
FREE = Leads(least=0, most=8)


def policy_of(
    verify: BlockCosts = FLAT,
    *,
    draft_ms: float | None = 0.5,
    max_gamma: int = 8,
    prior_alpha: float = 0.6,
    contention: float = 1.0,
    fixed_gamma: int | None = None,
) -> Controller:
    """A controller over tables; together, both lanes take `contention` times as long."""
    draft = BlockCosts({1: draft_ms}) if draft_ms is not None else None
    costs = SourceCosts(
        verify=verify,
        draft=draft,
        verify_together=BlockCosts({width: contention * ms for width, ms in verify.as_dict().items()}),
        draft_together=None if draft_ms is None else BlockCosts({1: contention * draft_ms}),
    )
    return Controller(max_gamma=max_gamma, costs=costs, prior_alpha=prior_alpha, fixed_gamma=fixed_gamma)


def play(policy: Controller, alpha: float, *, num_rounds: int, seed: int = 0) -> list[int]:
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


class TestRequestGamma:
    """A request that names its gamma, on a policy that chooses."""

    def test_is_kept_to_where_another_would_be_better_or_none(self) -> None:
        policy = policy_of(STEEP, draft_ms=4.0, prior_alpha=0.0)
        policy.begin(gamma=5)
        assert play(policy, 0.0, num_rounds=200) == [5] * 200
        assert "gamma is fixed" in policy.explain()

    def test_holds_for_that_request_alone(self) -> None:
        policy, other = policy_of(draft_ms=0.1, prior_alpha=0.9), policy_of(draft_ms=0.1, prior_alpha=0.9)
        policy.begin(gamma=2)
        assert policy.choose() == 2
        policy.begin()
        other.begin()
        assert policy.choose() == other.choose() == 8
        assert "gamma is fixed" not in policy.explain()

    def test_takes_the_place_of_one_that_was_fixed_at_load(self) -> None:
        policy = Controller(
            max_gamma=8, costs=SourceCosts(verify=FLAT, draft=BlockCosts({1: 1.0})), prior_alpha=0.5, fixed_gamma=4
        )
        policy.begin(gamma=2)
        assert policy.choose() == 2
        policy.begin()
        assert policy.choose() == 4

    def test_leaves_the_lead_to_choose(self) -> None:
        policy = policy_of(draft_ms=4.0, prior_alpha=0.9)
        policy.begin(FREE, gamma=2)
        assert policy.choose() == 2
        assert policy.lead > 0

    def test_of_zero_proposes_nothing_and_never_looks_again(self) -> None:
        policy = policy_of(prior_alpha=1.0)
        policy.begin(gamma=0)
        assert play(policy, 1.0, num_rounds=200) == [0] * 200
        assert policy.explain() == "nothing is drafted, as gamma is 0"
        # Asked of every source, also of those that offer nothing.
        assert policy.promise.tokens_per_ms is not None

    def test_beyond_the_most_is_refused(self) -> None:
        with pytest.raises(ValueError, match=r"gamma must be .*8, got 9"):
            policy_of().begin(gamma=9)


class TestGamma:
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
        policy = Controller(max_gamma=1, costs=SourceCosts(verify=costs, draft=None), prior_alpha=0.6)
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

    def test_successes_of_a_draft_that_cannot_pay_are_none(self) -> None:
        policy = policy_of(draft_ms=10.0, prior_alpha=1.0)
        gammas = play(policy, 1.0, num_rounds=400)
        asked = [index for index, gamma in enumerate(gammas) if gamma]
        assert [later - earlier for earlier, later in itertools.pairwise(asked)][:4] == [17, 33, 65, 129]

    def test_nor_are_those_of_a_request_that_left_it_no_choice(self) -> None:
        policy = policy_of(draft_ms=10.0, prior_alpha=1.0)
        play(policy, 1.0, num_rounds=400)
        policy.begin(gamma=4)
        assert policy.choose() == 4
        policy.observe(4, 4)
        policy.begin()
        assert [policy.choose() for _ in range(40)] == [0] * 40

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
        assert [policy.choose() for _ in range(8)][-1] == 0

    @pytest.mark.parametrize("max_gamma", [-1, 1.5, True])
    def test_bad_limits(self, max_gamma: object) -> None:
        with pytest.raises((TypeError, ValueError), match="max_gamma must be"):
            policy_of(max_gamma=max_gamma)  # type: ignore[arg-type]  # the point of the test


class TestLead:
    """Whether, and how far, the draft goes past a block that is being verified."""

    @pytest.mark.parametrize("draft_ms", [1.0, 3.0, 5.0])
    def test_runs_ahead_where_it_costs_nothing(self, draft_ms: float) -> None:
        policy = policy_of(draft_ms=draft_ms, prior_alpha=0.9)
        policy.begin(FREE)
        assert policy.choose() > 0
        assert policy.lead > 1

    def test_takes_turns_where_the_lanes_are_in_each_other_s_way(self) -> None:
        policy = policy_of(draft_ms=2.0, prior_alpha=0.9, contention=2.5)
        policy.begin(FREE)
        assert policy.choose() > 0
        assert policy.lead == 0

    def test_finds_out_that_the_lanes_are_in_each_other_s_way(self) -> None:
        pace = MachinePace()
        tables = [
            BlockCosts(dict.fromkeys((1, 2, 5, 9), 10.0), pace=pace, beside_another=together)
            for together in (False, True)
        ]
        drafts = [BlockCosts({1: 2.0}, pace=pace, beside_another=together) for together in (False, True)]
        costs = SourceCosts(verify=tables[0], verify_together=tables[1], draft=drafts[0], draft_together=drafts[1])
        policy = Controller(max_gamma=8, costs=costs, prior_alpha=0.9)
        policy.begin(FREE)
        ahead = []
        for _ in range(200):
            gamma = policy.choose()
            together = policy.lead > 0
            ahead.append(together)
            # The draft of a real pipelined round takes a step for each token and its guess.
            for _ in range(gamma):
                drafts[together].record(1, 4.4 if together else 2.0)
            tables[together].record(gamma + 1, 22.0 if together else 10.0)
        assert ahead[0]
        # Now and then it is tried again.
        assert sum(ahead[100:]) <= 16

    def test_a_loop_that_takes_turns_is_never_told_to_run_ahead(self) -> None:
        policy = policy_of(draft_ms=3.0, prior_alpha=0.9)
        policy.begin()
        assert policy.choose() > 0
        assert policy.lead == 0

    def test_a_fixed_lead_is_kept_whatever_it_costs(self) -> None:
        policy = policy_of(draft_ms=2.0, prior_alpha=0.9, contention=2.5)
        policy.begin(Leads(least=5, most=5))
        assert policy.choose() > 0
        assert policy.lead == 5

    def test_a_reason_against_overlap_is_obeyed_and_told(self) -> None:
        policy = policy_of(draft_ms=3.0, prior_alpha=0.9)
        policy.no_overlap = "other processes fill the GPU"
        policy.begin(FREE)
        assert policy.choose() > 0
        assert policy.lead == 0
        assert "nothing runs ahead, as other processes fill the GPU" in policy.explain()

    def test_a_reason_that_comes_up_or_goes_away_meanwhile_is_heeded_at_once(self) -> None:
        policy = policy_of(draft_ms=3.0, prior_alpha=0.9)
        policy.begin(FREE)
        leads = []
        for policy.no_overlap in (None, "other processes fill the GPU", None):
            # What was decided before it came up is not explained by it.
            assert (policy.lead > 0) <= ("other processes" not in policy.explain())
            policy.choose()
            leads.append(policy.lead > 0)
        assert leads == [True, False, True]

    @pytest.mark.parametrize("least", [2, 5, 7])
    def test_no_lead_is_shorter_than_the_loop_allows(self, least: int) -> None:
        policy = policy_of(draft_ms=8.0, prior_alpha=0.9)
        policy.begin(Leads(least=least, most=8))
        assert policy.choose() > 0
        assert policy.lead >= least

    def test_a_fixed_mode_wins_over_a_reason_against_overlap(self) -> None:
        policy = policy_of(draft_ms=3.0, prior_alpha=0.9)
        policy.no_overlap = "other processes fill the GPU"
        policy.begin(Leads(least=4, most=4))
        policy.choose()
        assert policy.lead == 4
        assert "other processes" not in policy.explain()

    @pytest.mark.parametrize("gamma", [1, 3, 6])
    @pytest.mark.parametrize("alpha", [0.0, 0.95])
    def test_a_fixed_gamma_is_kept_and_the_lead_chosen(self, gamma: int, alpha: float) -> None:
        policy = policy_of(draft_ms=3.0, prior_alpha=alpha, fixed_gamma=gamma)
        policy.begin(FREE)
        assert {policy.choose() for _ in range(40)} == {gamma}
        assert (policy.lead > 0) is (alpha > 0.5)

    def test_gamma_fixed_at_nothing_drafts_nothing(self) -> None:
        policy = policy_of(prior_alpha=0.9, fixed_gamma=0)
        policy.begin(FREE)
        assert {policy.choose() for _ in range(100)} == {0}

    def test_looking_again_takes_its_turn(self) -> None:
        policy = policy_of(draft_ms=3.0, prior_alpha=0.0)
        policy.begin(FREE)
        while policy.choose() == 0:
            pass
        assert policy.lead == 0


class TestTrials:
    """What lanes cost beside each other is learnt only by running beside each other."""

    def plays(self, policy: Controller, num_rounds: int, *, really: float) -> list[int]:
        """The leads of rounds in which everything is accepted and both lanes take `really` times as long together."""
        leads = []
        for _ in range(num_rounds):
            gamma = policy.choose()
            leads.append(policy.lead)
            if policy.lead:
                together, draft_together = policy._costs.verify_together, policy._costs.draft_together
                assert together is not None
                assert draft_together is not None
                together.record(gamma + 1, really * (FLAT.estimate(gamma + 1) or 0.0))
                draft_together.record(1, really * 2.0)
            policy.observe(gamma, gamma)
        return leads

    def test_contention_that_was_overestimated_is_found_out(self) -> None:
        policy = policy_of(draft_ms=2.0, prior_alpha=0.9, contention=2.5)
        policy.begin(FREE)
        leads = self.plays(policy, 1500, really=1.0)
        assert leads[:32] == [0] * 32
        assert min(leads[-200:]) > 0

    def test_contention_that_is_real_costs_ever_fewer_rounds(self) -> None:
        policy = policy_of(draft_ms=2.0, prior_alpha=0.9, contention=2.5)
        policy.begin(FREE)
        leads = self.plays(policy, 4000, really=2.5)
        num_trials = sum(later > 0 and earlier == 0 for earlier, later in itertools.pairwise(leads))
        assert 5 <= num_trials <= 12
        assert sum(lead > 0 for lead in leads) == 8 * num_trials

    def test_overlap_that_would_not_pay_undisturbed_is_not_tried(self) -> None:
        policy = policy_of(draft_ms=0.001, prior_alpha=0.9, contention=1.5)
        policy.begin(FREE)
        assert max(self.plays(policy, 300, really=1.5)) == 0

    @pytest.mark.parametrize("leads", [Leads(), Leads(least=3, most=3)])
    def test_what_is_fixed_is_not_tried_otherwise(self, leads: Leads) -> None:
        policy = policy_of(draft_ms=2.0, prior_alpha=0.9, contention=2.5)
        policy.begin(leads)
        assert set(self.plays(policy, 200, really=2.5)) == {leads.most}

    def test_a_reason_against_overlap_is_one_against_trying_it(self) -> None:
        policy = policy_of(draft_ms=2.0, prior_alpha=0.9, contention=2.5)
        policy.no_overlap = "others fill the GPU"
        policy.begin(FREE)
        assert max(self.plays(policy, 200, really=1.0)) == 0


class TestRequests:
    def test_a_useless_draft_is_idle_from_the_next_request_on(self) -> None:
        policy = policy_of(draft_ms=3.0)
        policy.begin(FREE)
        assert not policy.idle
        play(policy, 0.0, num_rounds=300)
        policy.begin(FREE)
        assert policy.idle
        assert policy.choose() == 0

    def test_one_request_s_text_does_not_decide_the_next_one_s(self) -> None:
        policy = policy_of()
        play(policy, 0.8, num_rounds=300)
        play(policy, 0.0, num_rounds=60)
        assert policy.choose() <= 1
        policy.begin(FREE)
        assert policy.choose() > 1


class TestWords:
    def test_nothing_asked_nothing_chosen(self) -> None:
        assert policy_of(BlockCosts()).explain() == "nothing was asked of it"

    def test_why_nothing_is_drafted(self) -> None:
        policy = policy_of(draft_ms=10.0, prior_alpha=0.1)
        policy.begin(FREE)
        policy.choose()
        words = policy.explain()
        assert words.startswith("plain, as drafting promises too little: sequential 0.5")
        assert (
            "by an estimated acceptance of 0.10 (assumed, as nothing was judged yet), draft steps of 10.0 ms" in words
        )
        assert "10.0 ms for a plain step" in words

    def test_why_it_takes_turns(self) -> None:
        policy = policy_of(draft_ms=1.0, prior_alpha=0.8, contention=3.0)
        policy.begin(FREE)
        gamma = policy.choose()
        words = policy.explain()
        assert words.startswith(f"sequential, blocks of {gamma}: promises ")
        assert "times plain decoding (pipelined " in words

    def test_why_it_runs_ahead(self) -> None:
        policy = policy_of(draft_ms=4.0, prior_alpha=0.9)
        policy.begin(FREE)
        gamma = policy.choose()
        words = policy.explain()
        assert words.startswith(f"pipelined, blocks of {gamma} and up to {policy.lead} tokens ahead: promises ")
        assert "times plain decoding (sequential " in words
        policy.begin(Leads(least=1, most=1))
        policy.choose()
        assert "up to 1 token ahead" in policy.explain()

    def test_a_source_that_costs_nothing_says_so(self) -> None:
        policy = policy_of(draft_ms=None, prior_alpha=0.8)
        policy.choose()
        assert "proposals that cost nothing" in policy.explain()

    @pytest.mark.parametrize("limits", [{"max_gamma": 0}, {"fixed_gamma": 0}])
    def test_no_room_for_a_choice_is_a_reason(self, limits: dict[str, int]) -> None:
        policy = policy_of(**limits)
        policy.begin(FREE)
        assert policy.choose() == 0
        assert policy.explain() == "nothing is drafted, as gamma is 0"

    def test_what_was_fixed_is_told(self) -> None:
        policy = policy_of(fixed_gamma=4, prior_alpha=0.8)
        policy.choose()
        assert "sequential, blocks of 4 (gamma is fixed): promises" in policy.explain()
