"""From logits to a distribution: every option against an independent reference and against transformers, bit by bit."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from scheduler import NonFiniteLogitsError, SamplingLaw, SamplingSettings
from scheduler.noise import Purpose, gumbel_noise
from tests.support.reference_law import reference_probabilities

VOCAB = 40
WIDE_VOCAB = 5000
"""Enough for a nucleus that is wider than what is sorted at first."""
STOP_IDS = frozenset({4, 9})
PROMPT = (3, 17, 3, 8)
OUTPUT = (8, 5, 8, 21)

OPTIONS: dict[str, dict[str, object]] = {
    "plain": {},
    "greedy": {"temperature": 0.0},
    "cold": {"temperature": 0.3},
    "hot": {"temperature": 2.5},
    "top_k": {"top_k": 7},
    "top_k of one": {"top_k": 1},
    "top_k beyond the vocabulary": {"top_k": 100},
    "top_p": {"top_p": 0.8},
    "top_p of nearly nothing": {"top_p": 1e-300},
    "top_p of nearly all": {"top_p": 0.9999},
    "min_p": {"min_p": 0.1},
    "min_p of one": {"min_p": 1.0},
    "top_k and top_p": {"top_k": 9, "top_p": 0.7},
    "all filters": {"top_k": 12, "top_p": 0.85, "min_p": 0.02, "temperature": 0.8},
    "repetition": {"repetition_penalty": 1.7},
    "repetition wanted": {"repetition_penalty": 0.6},
    "presence": {"presence_penalty": 1.1},
    "presence wanted": {"presence_penalty": -1.1},
    "frequency": {"frequency_penalty": 0.6},
    "all penalties": {"repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.3},
    "bias": {"logit_bias": {0: 2.0, 17: -1e4, 39: 0.5}},
    "min_tokens": {"min_tokens": 5},
    "everything": {
        "temperature": 0.9,
        "top_k": 20,
        "top_p": 0.95,
        "min_p": 0.01,
        "repetition_penalty": 1.2,
        "presence_penalty": 0.2,
        "frequency_penalty": 0.1,
        "logit_bias": {1: 1.0, 30: -2.0},
        "min_tokens": 6,
    },
}


def settings_of(name: str) -> SamplingSettings:
    return SamplingSettings(**{"temperature": 1.0, **OPTIONS[name]})


def random_rows(num_rows: int, vocab_size: int = VOCAB, seed: int = 0) -> torch.Tensor:
    return torch.randn(num_rows, vocab_size, generator=torch.Generator().manual_seed(seed)) * 3


def new_law(settings: SamplingSettings, vocab_size: int = VOCAB) -> SamplingLaw:
    return SamplingLaw(settings, vocab_size=vocab_size, stop_ids=STOP_IDS)


class TestReference:
    @pytest.mark.parametrize("name", OPTIONS)
    @pytest.mark.parametrize("num_committed", range(len(OUTPUT) + 1))
    def test_every_option(self, name: str, num_committed: int) -> None:
        settings = settings_of(name)
        law = new_law(settings)
        history = law.start_history(PROMPT).extended(OUTPUT[:num_committed])
        for logits_V in random_rows(5, seed=num_committed):
            found_V = law.apply(logits_V, history, OUTPUT[num_committed:]).probabilities_V()
            wanted_V = reference_probabilities(
                logits_V.double().numpy(), settings, prompt_ids=PROMPT, output_ids=OUTPUT, stop_ids=STOP_IDS
            )
            assert np.allclose(found_V.numpy(), wanted_V, atol=1e-6)
            assert ((found_V.numpy() > 0) == (wanted_V > 0)).all()

    @settings(derandomize=True, max_examples=400)
    @given(
        sixty_fourths=st.lists(st.integers(-2000, 2000), min_size=6, max_size=6),
        temperature=st.floats(0.05, 20),
        top_k=st.integers(0, 8),
        top_p=st.floats(0.01, 1),
        min_p=st.floats(0, 1),
    )
    def test_any_filters_on_any_row(
        self, sixty_fourths: list[int], temperature: float, top_k: int, top_p: float, min_p: float
    ) -> None:
        logits = [count / 64 for count in sixty_fourths]
        settings = SamplingSettings(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
        law = SamplingLaw(settings, vocab_size=6)
        found_V = law.apply(torch.tensor(logits), law.start_history((0,))).probabilities_V().numpy()
        wanted_V = reference_probabilities(np.array(logits), settings, prompt_ids=(0,), output_ids=())
        if ((found_V > 0) == (wanted_V > 1e-30)).all():
            assert np.allclose(found_V, wanted_V, atol=1e-5)
        else:
            # A token on the very edge of a filter: float32 and float64 may fall on either side of it.
            slightly = [
                reference_probabilities(np.array(logits), near, prompt_ids=(0,), output_ids=())
                for near in neighbours_of(settings)
            ]
            assert any(np.allclose(found_V, near_V, atol=1e-4) for near_V in slightly)

    @pytest.mark.parametrize("top_p", [0.05, 0.5, 0.99, 0.999999])
    @pytest.mark.parametrize("temperature", [0.5, 30.0])
    def test_nucleus_of_a_wide_vocabulary(self, temperature: float, top_p: float) -> None:
        settings = SamplingSettings(temperature=temperature, top_p=top_p)
        law = SamplingLaw(settings, vocab_size=WIDE_VOCAB)
        logits_V = random_rows(1, WIDE_VOCAB)[0]
        found_V = law.apply(logits_V, law.start_history((0,))).probabilities_V().numpy()
        wanted_V = reference_probabilities(logits_V.double().numpy(), settings, prompt_ids=(0,), output_ids=())
        assert 0.5 * np.abs(found_V - wanted_V).sum() < 1e-4

    def test_wide_nucleus_really_leaves_the_first_sort(self) -> None:
        law = SamplingLaw(SamplingSettings(temperature=30.0, top_p=0.99), vocab_size=WIDE_VOCAB)
        kept = law.apply(random_rows(1, WIDE_VOCAB)[0], law.start_history((0,))).token_ids_C
        assert 1024 < len(kept) < WIDE_VOCAB

    @pytest.mark.parametrize(("top_p", "num_kept"), [(0.5, 1), (0.50001, 2), (0.75, 2), (0.75001, 4)])
    def test_a_nucleus_that_just_reaches_its_sum_is_full(self, top_p: float, num_kept: int) -> None:
        row_V = torch.tensor([0.5, 0.25, 0.125, 0.125]).log()
        if (row_V - row_V[0]).exp().tolist() != [1.0, 0.5, 0.25, 0.25]:
            pytest.skip("this machine's exp rounds halves, so that no sum meets the limit to the bit")
        law = SamplingLaw(SamplingSettings(temperature=1.0, top_p=top_p), vocab_size=4)
        assert law.apply(row_V, law.start_history((0,))).token_ids_C.tolist() == list(range(num_kept))

    def test_penalties_count_the_prompt_only_where_they_should(self) -> None:
        row_V = torch.ones(4)
        for field, expected in [
            ("repetition_penalty", [0.5, 0.5, 1.0, 1.0]),
            ("presence_penalty", [1.0, -1.0, 1.0, 1.0]),
        ]:
            law = SamplingLaw(SamplingSettings(temperature=1.0, **{field: 2.0}), vocab_size=4)
            found = law.apply(row_V, law.start_history((0,)).extended((1,)))
            wanted = torch.log_softmax(torch.tensor(expected), dim=0)
            assert torch.allclose(torch.log_softmax(found.log_weights_C, dim=0), wanted)


def neighbours_of(settings: SamplingSettings) -> list[SamplingSettings]:
    """The same settings with each threshold a little higher and lower."""
    return [
        SamplingSettings(
            temperature=settings.temperature,
            top_k=settings.top_k,
            top_p=min(1.0, settings.top_p * (1 + p_shift)),
            min_p=min(1.0, settings.min_p * (1 + min_shift)),
        )
        for p_shift in (-1e-5, 0.0, 1e-5)
        for min_shift in (-1e-5, 0.0, 1e-5)
    ]


class TestTransformers:
    """Where both offer an option they agree on it; the order of filters is ours, so the list below follows it."""

    @pytest.mark.parametrize(
        ("options", "processors"),
        [
            ({"temperature": 0.7}, [TemperatureLogitsWarper(0.7)]),
            ({"top_k": 6}, [TopKLogitsWarper(6)]),
            ({"top_p": 0.75}, [TopPLogitsWarper(0.75)]),
            ({"min_p": 0.15}, [MinPLogitsWarper(0.15)]),
            ({"repetition_penalty": 1.4}, [RepetitionPenaltyLogitsProcessor(1.4)]),
            (
                {"repetition_penalty": 1.4, "temperature": 0.7, "min_p": 0.02, "top_k": 8, "top_p": 0.9},
                [
                    RepetitionPenaltyLogitsProcessor(1.4),
                    TemperatureLogitsWarper(0.7),
                    MinPLogitsWarper(0.02),
                    TopKLogitsWarper(8),
                    TopPLogitsWarper(0.9),
                ],
            ),
        ],
        ids=["temperature", "top_k", "top_p", "min_p", "repetition_penalty", "all"],
    )
    def test_same_probabilities(self, options: dict[str, float], processors: list[object]) -> None:
        law = new_law(SamplingSettings(**{"temperature": 1.0, **options}))
        history = law.start_history(PROMPT).extended(OUTPUT)
        input_ids = torch.tensor([[*PROMPT, *OUTPUT]])
        for logits_V in random_rows(30, seed=2):
            scores = LogitsProcessorList(processors)(input_ids, logits_V[None].clone())
            wanted_V = torch.softmax(scores[0], dim=-1)
            found_V = law.apply(logits_V, history).probabilities_V()
            assert torch.allclose(found_V, wanted_V, atol=1e-6)
            assert torch.equal(found_V > 0, wanted_V > 0)


class TestBlocks:
    """A row at the end of a block meets exactly what it would have met alone."""

    @pytest.mark.parametrize("name", OPTIONS)
    @pytest.mark.parametrize("vocab_size", [VOCAB, WIDE_VOCAB + 1])
    def test_bit_identical_to_one_token_decoding(self, name: str, vocab_size: int) -> None:
        law = new_law(settings_of(name), vocab_size)
        block = (8, 5, 8, 21, 4, 0, 8)
        rows_RV = random_rows(len(block) + 1, vocab_size, seed=4)
        start = law.start_history(PROMPT)
        grown = start
        for row in range(len(block) + 1):
            in_block = law.apply(rows_RV[row], start, block[:row])
            alone = law.apply(rows_RV[row].clone(), grown)
            assert torch.equal(in_block.token_ids_C, alone.token_ids_C)
            assert torch.equal(in_block.log_weights_C, alone.log_weights_C)
            assert in_block.draw(1, 50 + row, Purpose.SHARED) == alone.draw(1, 50 + row, Purpose.SHARED)
            if row < len(block):
                grown = grown.extended(block[row : row + 1])

    @pytest.mark.parametrize("name", OPTIONS)
    def test_rows_are_never_written_to(self, name: str) -> None:
        law = new_law(settings_of(name))
        rows_RV = random_rows(3, seed=6)
        untouched = rows_RV.clone()
        history = law.start_history(PROMPT).extended(OUTPUT)
        for row in range(3):
            distribution = law.apply(rows_RV[row], history)
            distribution.draw(1, row, Purpose.SHARED)
            distribution.probabilities_V().zero_()
        assert torch.equal(rows_RV, untouched)

    @pytest.mark.parametrize("name", OPTIONS)
    def test_a_distribution_can_be_drawn_from_again(self, name: str) -> None:
        law = new_law(settings_of(name))
        distribution = law.apply(random_rows(1)[0], law.start_history(PROMPT))
        before = distribution.log_weights_C.clone()
        first = [distribution.draw(3, position, Purpose.TARGET) for position in range(20)]
        assert [distribution.draw(3, position, Purpose.TARGET) for position in range(20)] == first
        assert torch.equal(distribution.log_weights_C, before)

    def test_order_of_calls_does_not_matter(self) -> None:
        law = new_law(settings_of("everything"))
        rows_RV = random_rows(4)
        history = law.start_history(PROMPT)
        forwards = [law.apply(row_V, history).log_weights_C for row_V in rows_RV]
        backwards = [law.apply(row_V, history).log_weights_C for row_V in rows_RV.flip(0)][::-1]
        assert all(torch.equal(left, right) for left, right in zip(forwards, backwards, strict=True))


class TestExtremes:
    EXTREME_ROWS = (
        [1e30, -1e30, 0.0, 5.0],
        [1e30, 1e30, 0.0, 5.0],
        [-1e30, -1e30, -1e30, -1e30],
        [float("-inf"), 2.0, float("-inf"), 1.0],
        [float("-inf"), float("-inf"), float("-inf"), -3.0],
        [3e38, -3e38, 0.0, 1.0],
        [0.0, 0.0, 0.0, 0.0],
        [1e-40, 0.0, -1e-40, 0.0],
    )

    @pytest.mark.parametrize("row", EXTREME_ROWS)
    @pytest.mark.parametrize("temperature", [0.0, 5e-324, 1e-46, 1e-38, 1e-6, 1.0, 1e4])
    @pytest.mark.parametrize("filters", [{}, {"top_k": 2}, {"top_p": 1e-300}, {"top_p": 0.5}, {"min_p": 0.5}])
    def test_something_possible_is_always_drawn(
        self, row: list[float], temperature: float, filters: dict[str, float]
    ) -> None:
        law = SamplingLaw(SamplingSettings(temperature=temperature, **filters), vocab_size=4)
        distribution = law.apply(torch.tensor(row), law.start_history((0,)))
        probabilities_V = distribution.probabilities_V()
        assert probabilities_V.isfinite().all()
        assert float(probabilities_V.sum()) == pytest.approx(1)
        for position in range(10):
            token_id = distribution.draw(0, position, Purpose.SHARED)
            assert probabilities_V[token_id] > 0
            assert row[token_id] > float("-inf")

    @pytest.mark.parametrize("temperature", [5e-324, 1e-46, 1e-12, 1e-6])
    def test_a_vanishing_temperature_is_greedy(self, temperature: float) -> None:
        cold, greedy = (
            SamplingLaw(SamplingSettings(temperature=value), vocab_size=VOCAB) for value in (temperature, 0.0)
        )
        history = cold.start_history((0,))
        for position, row_V in enumerate(random_rows(50)):
            drawn = cold.apply(row_V, history).draw(0, position, Purpose.SHARED)
            assert drawn == greedy.apply(row_V, history).draw(0, position, Purpose.SHARED) == int(row_V.argmax())

    @pytest.mark.parametrize(
        "row", [[float("nan"), 1.0], [float("inf"), 1.0], [float("-inf"), float("-inf")], [1.0, float("nan")]]
    )
    @pytest.mark.parametrize("temperature", [0.0, 1.0])
    def test_a_row_without_a_law_is_an_error(self, row: list[float], temperature: float) -> None:
        law = SamplingLaw(SamplingSettings(temperature=temperature), vocab_size=2)
        with pytest.raises(NonFiniteLogitsError, match="position 3"):
            law.apply(torch.tensor(row), law.start_history((0, 1)), (1,))

    def test_forbidding_every_token_is_an_error(self) -> None:
        law = SamplingLaw(SamplingSettings(temperature=1.0, min_tokens=1), vocab_size=2, stop_ids=frozenset({0, 1}))
        with pytest.raises(NonFiniteLogitsError, match="min_tokens"):
            law.apply(torch.zeros(2), law.start_history((0,)))

    @pytest.mark.parametrize("penalty", [1e-4, 1e4])
    def test_extreme_penalties_leave_impossible_tokens_impossible(self, penalty: float) -> None:
        law = SamplingLaw(SamplingSettings(temperature=1.0, repetition_penalty=penalty), vocab_size=3)
        found_V = law.apply(torch.tensor([float("-inf"), 1.0, 1.0]), law.start_history((0, 1))).probabilities_V()
        assert found_V[0] == 0
        assert found_V.isfinite().all()


class TestTies:
    """Equal logits are equal before every filter, wherever in the row they stand."""

    @pytest.mark.parametrize("filters", [{"top_k": 2}, {"top_p": 0.5}, {"min_p": 1.0}, {"top_k": 3, "top_p": 0.6}])
    def test_filters_do_not_part_equals(self, filters: dict[str, float]) -> None:
        law = SamplingLaw(SamplingSettings(temperature=1.0, **filters), vocab_size=6)
        row_V = torch.tensor([1.0, 2.0, 2.0, 0.0, 2.0, 2.0])
        kept = law.apply(row_V, law.start_history((0,))).token_ids_C.tolist()
        assert kept == [1, 2, 4, 5]

    def test_greedy_takes_the_first(self) -> None:
        law = SamplingLaw(SamplingSettings(), vocab_size=4)
        assert law.apply(torch.tensor([0.0, 3.0, 3.0, 1.0]), law.start_history((0,))).draw(0, 0, Purpose.SHARED) == 1


class TestWidths:
    def test_a_wider_draft_row_is_cut(self) -> None:
        law = new_law(settings_of("plain"))
        row_V = random_rows(1, VOCAB + 8)[0]
        row_V[VOCAB:] = 50.0
        found = law.apply(row_V, law.start_history(PROMPT))
        assert torch.allclose(found.probabilities_V(), torch.softmax(row_V[:VOCAB], dim=-1))

    @pytest.mark.parametrize("name", OPTIONS)
    def test_tokens_that_a_narrower_draft_lacks_are_impossible(self, name: str) -> None:
        law = new_law(SamplingSettings(**{"temperature": 1.0, **OPTIONS[name]}))
        row_V = random_rows(1, VOCAB - 8)[0]
        found_V = law.apply(row_V, law.start_history(PROMPT)).probabilities_V()
        assert len(found_V) == VOCAB
        assert (found_V[VOCAB - 8 :] == 0).all()

    def test_bias_outside_the_vocabulary_is_named(self) -> None:
        with pytest.raises(ValueError, match=r"logit_bias names token id 40, but the target has 40 ids"):
            new_law(SamplingSettings(logit_bias={40: 1.0}))

    def test_stop_ids_beyond_the_vocabulary_are_harmless(self) -> None:
        law = SamplingLaw(SamplingSettings(temperature=1.0, min_tokens=1), vocab_size=3, stop_ids=frozenset({1, 99}))
        assert law.apply(torch.zeros(3), law.start_history((0,))).probabilities_V().tolist() == [0.5, 0, 0.5]


class TestMinTokens:
    @pytest.mark.parametrize("num_committed", range(4))
    def test_counts_committed_and_proposed_tokens_alike(self, num_committed: int) -> None:
        law = new_law(SamplingSettings(temperature=1.0, min_tokens=3))
        history = law.start_history(PROMPT).extended((1, 1, 1)[:num_committed])
        for num_proposed in range(4):
            found_V = law.apply(torch.zeros(VOCAB), history, (1,) * num_proposed).probabilities_V()
            forbidden = num_committed + num_proposed < 3
            assert all((float(found_V[stop_id]) == 0) == forbidden for stop_id in STOP_IDS)


class TestDraw:
    def test_is_the_argmax_of_weights_and_noise(self) -> None:
        law = new_law(settings_of("all filters"))
        for position, row_V in enumerate(random_rows(100)):
            distribution = law.apply(row_V, law.start_history(PROMPT))
            noise = gumbel_noise(9, position, Purpose.SHARED, torch.arange(VOCAB, dtype=torch.int32))
            log_probabilities_V = distribution.probabilities_V().log()
            wanted = int((log_probabilities_V + noise).argmax())
            assert distribution.draw(9, position, Purpose.SHARED) == wanted

    def test_candidates_ascend(self) -> None:
        law = new_law(settings_of("top_p"))
        ids = law.apply(random_rows(1)[0], law.start_history(PROMPT)).token_ids_C
        assert ids.tolist() == sorted(set(ids.tolist()))
        assert 1 < len(ids) < VOCAB

    def test_probabilities_sum_to_one(self) -> None:
        law = new_law(settings_of("hot"))
        distribution = law.apply(random_rows(1)[0], law.start_history(PROMPT))
        assert math.isclose(float(distribution.probabilities_C().sum()), 1, rel_tol=1e-6)
        assert math.isclose(float(distribution.probabilities_V().sum()), 1, rel_tol=1e-6)

    @pytest.mark.parametrize("name", ["hot", "all filters"])
    def test_leaving_out_what_has_no_chance_changes_no_draw(self, name: str) -> None:
        law = new_law(settings_of(name))
        head_ids_C = torch.arange(1, VOCAB, 3)
        for position, row_V in enumerate(random_rows(50)):
            cut_V = torch.full_like(row_V, float("-inf")).index_copy(0, head_ids_C, row_V[head_ids_C])
            whole = law.apply(cut_V, law.start_history(PROMPT))
            among = whole.among(head_ids_C)
            assert len(among.token_ids_C) <= len(head_ids_C) < VOCAB
            torch.testing.assert_close(among.probabilities_V(), whole.probabilities_V())
            assert among.draw(9, position, Purpose.DRAFT) == whole.draw(9, position, Purpose.DRAFT)
