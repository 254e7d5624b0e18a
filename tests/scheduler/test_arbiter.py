"""Which of several draft sources proposes: by what they promise, by trials, and by the clock on whole texts."""

from __future__ import annotations

from functools import cache

import pytest

from scheduler import FixedGamma, Lane, ModelProposer, NgramProposer, ThreadStream, TokenHistory
from scheduler.arbiter import Arbiter
from scheduler.promise import Promise
from tests.support.drafts import ScriptedSource
from tests.support.loops import decode, ngram_proposer, request_of
from tests.support.planted_sources import Run, Stretch, decode_planted
from tests.support.table_model import TableModel

HISTORY = TokenHistory((10, 11, 12))
SHORT_MATCHES = Stretch(num_tokens=60, ngram=0.2, model=0.6, match_length=2)
NO_MATCHES = Stretch(num_tokens=60, ngram=0.0, model=0.6, match_length=0)


def source(
    tokens_per_s: float | None = None,
    *,
    acceptance: float = 0.5,
    best: float = 1000.0,
    gamma: int = 2,
    instant: bool = False,
    name: str = "scripted",
) -> ScriptedSource:
    promise = Promise(
        acceptance=acceptance,
        tokens_per_ms=None if tokens_per_s is None else tokens_per_s / 1e3,
        best_tokens_per_ms=None if tokens_per_s is None else best / 1e3,
    )
    return ScriptedSource(gamma=gamma, instant=instant, promise=promise, name=name)


def heard(arbiter: Arbiter) -> int:
    return arbiter.ranked(HISTORY)[0].source


def rounds(arbiter: Arbiter, count: int, *, right: frozenset[int] = frozenset()) -> list[int]:
    """Who is heard in so many rounds; sources in `right` are accepted as a whole, others not at all."""
    sources = []
    for _ in range(count):
        offer = arbiter.ranked(HISTORY)[0]
        arbiter.note(offer.source, offer.gamma, offer.gamma if offer.source in right else 0)
        sources.append(offer.source)
    return sources


class TestPromises:
    def test_the_most_tokens_a_second_are_heard(self) -> None:
        assert heard(Arbiter([source(20), source(40), source(25)])) == 1
        # However often its tokens are accepted.
        assert heard(Arbiter([source(30, acceptance=0.9), source(40, acceptance=0.1)])) == 1

    def test_of_equal_ones_the_earlier(self) -> None:
        assert heard(Arbiter([source(30, gamma=0), source(40), source(40)])) == 1

    def test_what_is_not_offered_promises_nothing(self) -> None:
        assert heard(Arbiter([source(90, gamma=0), source(20)])) == 1
        assert Arbiter([source(90, gamma=0), source(20, gamma=0)]).ranked(HISTORY) == ()

    @pytest.mark.parametrize("speeds", [(None, None), (None, 20), (90, None)])
    def test_where_a_speed_is_unknown_acceptance_decides(self, speeds: tuple[float | None, float | None]) -> None:
        first, second = speeds
        assert heard(Arbiter([source(first, acceptance=0.4), source(second, acceptance=0.6)])) == 1
        assert heard(Arbiter([source(first, acceptance=0.6), source(second, acceptance=0.4)])) == 0

    def test_others_follow_should_the_first_have_no_token(self) -> None:
        arbiter = Arbiter([source(30, gamma=1), source(20, gamma=2), source(40, gamma=3)])
        assert next((offer.source, offer.gamma) for offer in arbiter.ranked(HISTORY)) == (2, 3)
        assert {offer.source for offer in arbiter.ranked(HISTORY)} == {0, 1, 2}

    def test_a_fixed_gamma_learns_what_it_promises(self) -> None:
        policy = FixedGamma(4, prior_alpha=0.5)
        policy.begin()
        assert policy.promise == Promise(acceptance=0.5)
        for _ in range(10):
            policy.observe(4, 0)
        assert policy.promise.acceptance < 0.3
        assert policy.choose() == 4


class TestTrials:
    def test_a_model_that_is_passed_over_is_tried_now_and_then(self) -> None:
        sources = rounds(Arbiter([source(60), source(30)]), 1000)
        # A trial that fails loses more than half of a round, and all of them no more than a fiftieth.
        assert 10 <= sum(sources) <= 40
        assert 1 not in sources[:10]

    def test_the_nearer_it_comes_the_more_often(self) -> None:
        far, near = (sum(rounds(Arbiter([source(60), source(speed)]), 300)) for speed in (20, 50))
        assert near > far > 0

    def test_a_trial_goes_on_while_it_does_better(self) -> None:
        arbiter = Arbiter([source(40), source(36, gamma=4)])
        sources = rounds(arbiter, 40, right=frozenset({1}))
        assert sources[sources.index(1) :] == [1] * (40 - sources.index(1))

    def test_not_where_it_would_lose_even_if_it_were_always_right(self) -> None:
        assert rounds(Arbiter([source(60), source(30, best=59)]), 500) == [0] * 500

    def test_a_look_up_needs_none(self) -> None:
        assert rounds(Arbiter([source(30, instant=True), source(60)]), 500) == [1] * 500

    def test_one_that_had_no_token_is_still_due(self) -> None:
        arbiter = Arbiter([source(60), source(30)])
        while heard(arbiter) == 0:
            arbiter.note(0, 2, 0)
        # It only read: another one proposed.
        arbiter.note(0, 2, 0)
        assert heard(arbiter) == 1


class TestWords:
    def test_tell_who_was_heard_and_why(self) -> None:
        arbiter = Arbiter([source(30, instant=True, name="ngram"), source(60, name="tiny")])
        rounds(arbiter, 3)
        words = arbiter.explain()
        assert words == (
            "rounds proposed by ngram in 0, tiny in 3; where they last competed, ngram promised 30.0 tokens a second "
            "and tiny promised 60.0 tokens a second, and tiny was heard"
        )
        arbiter.begin()
        assert arbiter.explain() == ""

    def test_tell_of_trials_and_of_unknown_speeds(self) -> None:
        arbiter = Arbiter([source(acceptance=0.9, name="ngram"), source(acceptance=0.5, name="tiny")])
        assert 1 in rounds(arbiter, 100)
        words = arbiter.explain()
        assert " to try it)" in words
        assert "ngram promised an acceptance of 0.90 and tiny promised an acceptance of 0.50" in words

    def test_nothing_of_a_single_source(self) -> None:
        arbiter = Arbiter([source(30)])
        rounds(arbiter, 3)
        assert arbiter.explain() == ""


class TestLookUpsThatWereNotHeard:
    def chosen(self, gamma: int = 3) -> tuple[NgramProposer, list[FixedGamma], TokenHistory]:
        policies: list[FixedGamma] = []

        def new_policy() -> FixedGamma:
            policies.append(FixedGamma(gamma))
            return policies[-1]

        proposer = NgramProposer(new_policy)
        history = TokenHistory((5, 6, 7, 8, 5, 6))
        proposer.begin(history)
        assert proposer.choose(history) == gamma
        return proposer, policies, history

    @pytest.mark.parametrize("emitted", [(7, 8, 5, 1), (7, 8), (9, 9), (7, 9)])
    def test_are_scored_by_what_was_written_instead(self, emitted: tuple[int, ...]) -> None:
        proposer, policies, history = self.chosen()
        wanted = FixedGamma(3)
        wanted.begin()
        right = [a == b for a, b in zip((7, 8, 5), emitted, strict=False)]
        wanted.observe(len(right), [*right, False].index(False))
        proposer.choose(history.extended(emitted))
        assert policies[0].promise == wanted.promise

    def test_what_was_heard_is_scored_by_its_verdict_alone(self) -> None:
        proposer, policies, history = self.chosen()
        before = policies[0].promise
        assert proposer.extend(None, history, (), 3).token_ids == (7, 8, 5)  # type: ignore[arg-type]  # no law is asked
        proposer.choose(history.extended((7, 8, 5)))
        assert policies[0].promise == before


@cache
def planted(
    stretches: tuple[Stretch, ...], sources: str, draft_ms: float = 2.0, pipelined: bool = False, num_texts: int = 2
) -> float:
    """Tokens a second over a few texts."""
    runs = [
        decode_planted(stretches, sources, draft_ms=draft_ms, pipelined=pipelined, seed=seed)
        for seed in range(num_texts)
    ]
    return num_texts / sum(1 / run.tokens_per_s for run in runs)


class TestWholeTexts:
    @pytest.mark.parametrize(
        ("draft_ms", "ngram", "model"),
        [(2.0, 0.2, 0.6), (2.0, 0.4, 0.5), (2.0, 0.5, 0.8), (2.0, 0.9, 0.3), (6.0, 0.2, 0.2), (6.0, 0.7, 0.5)],
    )
    def test_no_slower_than_the_better_source(self, draft_ms: float, ngram: float, model: float) -> None:
        # What a source does alone depends on neither the other's acceptance nor, for n-gram, on the draft's cost.
        alone = planted((Stretch(num_tokens=500, ngram=ngram, model=0.0),), "n")
        model_alone = planted((Stretch(num_tokens=500, ngram=0.0, model=model),), "m", draft_ms)
        both = planted((Stretch(num_tokens=500, ngram=ngram, model=model),), "nm", draft_ms)
        assert both > 0.95 * max(alone, model_alone)

    @pytest.mark.parametrize(("ngram", "model"), [(0.5, 0.8), (0.9, 0.3)])
    def test_nor_where_lanes_overlap(self, ngram: float, model: float) -> None:
        stretches = (Stretch(num_tokens=500, ngram=ngram, model=model),)
        alone, model_alone, both = (planted(stretches, sources, pipelined=True) for sources in ("n", "m", "nm"))
        assert both > 0.95 * max(alone, model_alone)

    @pytest.mark.parametrize(
        ("first", "second", "pipelined", "least"),
        [
            # Long matches are right and short ones are not: the model's turn.
            (Stretch(num_tokens=60, ngram=0.9, model=0.4, match_length=9), SHORT_MATCHES, False, 1.15),
            # Matches of one length are right at one time and wrong at another.
            (Stretch(num_tokens=60, ngram=0.9, model=0.2), Stretch(num_tokens=60, ngram=0.1, model=0.9), False, 1.15),
            (Stretch(num_tokens=60, ngram=0.9, model=0.2), Stretch(num_tokens=60, ngram=0.1, model=0.9), True, 1.15),
            # Nothing to copy.
            (Stretch(num_tokens=60, ngram=0.9, model=0.3), NO_MATCHES, False, 1.2),
        ],
        ids=["by match length", "by time", "by time, overlapping", "without matches"],
    )
    def test_faster_than_both_on_mixed_text(
        self, first: Stretch, second: Stretch, pipelined: bool, least: float
    ) -> None:
        stretches = (first, second) * 4
        alone, model_alone, both = (planted(stretches, sources, pipelined=pipelined) for sources in ("n", "m", "nm"))
        assert both > least * max(alone, model_alone)

    def test_a_short_match_does_not_keep_a_better_model_from_proposing(self) -> None:
        stretches = [Stretch(num_tokens=400, ngram=0.3, model=0.6, match_length=2)]
        run = decode_planted(stretches, "nm")
        assert run.num_rounds[2] > 3 * run.num_rounds[1]
        assert f"ngram in {run.num_rounds[1]}, draft in {run.num_rounds[2]}" in run.explanation

    def test_nor_does_it_where_gamma_is_fixed(self) -> None:
        def rounds_of(match_length: int, ngram: float) -> tuple[int, int, int]:
            stretches = [Stretch(num_tokens=400, ngram=ngram, model=0.6, match_length=match_length)]
            return decode_planted(stretches, "nm", gamma=4).num_rounds

        _, short, model = rounds_of(2, 0.3)
        assert model > 3 * short
        _, long, model = rounds_of(9, 0.9)
        assert long > 3 * model

    def test_fixed_gammas_choose_alike_whatever_the_machine(self) -> None:
        stretches = [Stretch(num_tokens=300, ngram=0.4, model=0.6)]

        def rounds_of(draft_ms: float) -> Run:
            return decode_planted(stretches, "nm", gamma=4, draft_ms=draft_ms)

        assert rounds_of(1.0).num_rounds == rounds_of(30.0).num_rounds


async def test_a_model_that_does_not_know_a_token_leaves_the_floor_to_others() -> None:
    target = TableModel(vocab_size=12, seed=1)
    narrow = TableModel(vocab_size=11, seed=1)
    stream = ThreadStream("idle")
    try:
        known = ModelProposer(Lane("draft", narrow, stream, capacity=64), FixedGamma(3))
        known.begin(TokenHistory((1, 2, 3)))
        assert known.choose(TokenHistory((1, 2, 3))) == 3
        assert known.choose(TokenHistory((1, 11, 3))) == 0
    finally:
        stream.close()
    request = request_of((1, 11, 3, 1, 11, 3, 1), 20)
    output = await decode(
        target,
        request,
        [
            lambda stream: ModelProposer(
                Lane("draft", narrow, stream, capacity=64), FixedGamma(3, prior_alpha=0.9), num_shared_ids=11
            ),
            ngram_proposer(2),
        ],
        pipelined=True,
    )
    assert {report.source for report in output.reports if report.num_proposed} == {1}
