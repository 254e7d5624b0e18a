"""The law on many rows at once against the law on one: same tokens possible, same weights, same draws."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler import NonFiniteLogitsError, SamplingLaw, SamplingSettings
from scheduler.history import TokenCounts
from scheduler.noise import Purpose
from scheduler.on_device import DeviceCounts, DeviceLaw, NoiseTable
from tests.support.device_rounds import STOP_IDS, Twins, ids_tensor, random_rows, sampling_options

VOCAB = 40
WIDE_VOCAB = 5000
"""More than the host sorts at first."""
IMPOSSIBLE = float("-inf")


def assert_same_law(twins: Twins, logits_RV: torch.Tensor, block_ids: tuple[int, ...]) -> None:
    found_RV, finite_R = twins.apply_on_device(logits_RV, block_ids)
    assert found_RV.dtype == torch.float32
    assert bool(finite_R.all())
    for row, wanted in enumerate(twins.apply_on_host(logits_RV, block_ids)):
        wanted_V = torch.full((twins.host.vocab_size,), IMPOSSIBLE)
        wanted_V[wanted.token_ids_C] = wanted.log_weights_C
        if torch.equal(found_RV[row], wanted_V):
            found_V = twins.device.probabilities_RV(found_RV)[row]
            assert torch.allclose(found_V, wanted.probabilities_V(), rtol=2e-6, atol=0)
        else:
            assert_on_the_edge_of_top_p(twins, logits_RV, block_ids, row, found_RV[row])


def assert_on_the_edge_of_top_p(
    twins: Twins, logits_RV: torch.Tensor, block_ids: tuple[int, ...], row: int, found_V: torch.Tensor
) -> None:
    """float32 and float64 sums may fall on either side of top-p, if a shift by float32's rounding does the same."""
    top_p = twins.settings.top_p
    assert top_p < 1
    lists = []
    for near in (top_p * (1 - 1e-6), min(1.0, top_p * (1 + 1e-6))):
        law = SamplingLaw(
            dataclasses.replace(twins.settings, top_p=near), vocab_size=twins.host.vocab_size, stop_ids=STOP_IDS
        )
        lists.append(law.apply(logits_RV[row], twins.history, block_ids[:row]).token_ids_C.tolist())
    assert lists[0] != lists[1]
    assert (found_V > IMPOSSIBLE).nonzero().squeeze(-1).tolist() in lists


class TestSameLaw:
    @settings(derandomize=True, max_examples=300, deadline=None)
    @given(
        options=sampling_options,
        block_ids=st.lists(st.integers(0, VOCAB - 1), max_size=5),
        output_ids=st.lists(st.integers(0, VOCAB - 1), max_size=4),
        width=st.sampled_from([VOCAB, VOCAB, VOCAB - 3, VOCAB + 5]),
        seed=st.integers(0, 10_000),
        tied=st.booleans(),
    )
    def test_any_settings(
        self,
        options: dict[str, object],
        block_ids: list[int],
        output_ids: list[int],
        width: int,
        seed: int,
        tied: bool,
    ) -> None:
        twins = Twins(SamplingSettings(**options), vocab_size=VOCAB, output_ids=output_ids)
        assert_same_law(twins, random_rows(len(block_ids) + 1, width, seed=seed, tied=tied), tuple(block_ids))

    @pytest.mark.parametrize("top_p", [1e-300, 0.05, 0.5, 0.99, 0.999999])
    @pytest.mark.parametrize("temperature", [0.5, 30.0])
    @pytest.mark.parametrize("top_k", [0, 700, 2000])
    def test_nucleus_of_a_wide_vocabulary(self, temperature: float, top_p: float, top_k: int) -> None:
        twins = Twins(
            SamplingSettings(temperature=temperature, top_p=top_p, top_k=top_k, min_p=1e-3), vocab_size=WIDE_VOCAB
        )
        for tied in (False, True):
            assert_same_law(twins, random_rows(4, WIDE_VOCAB, seed=1, tied=tied), (3, 1, 4))

    def test_knife_edges_are_rare(self) -> None:
        # The exception above must stay one: on ordinary rows both laws agree without exception.
        twins = Twins(SamplingSettings(temperature=0.9, top_p=0.93), vocab_size=VOCAB)
        logits_RV = random_rows(2000, VOCAB, seed=5)
        found_RV, _ = twins.device.apply(logits_RV, num_output_R=torch.zeros(2000, dtype=torch.int64), counts=None)
        kept_RV = found_RV > IMPOSSIBLE
        for row, logits_V in enumerate(logits_RV):
            wanted = twins.host.apply(logits_V, twins.history)
            assert kept_RV[row].nonzero().squeeze(-1).tolist() == wanted.token_ids_C.tolist()

    @pytest.mark.parametrize(
        "filters",
        [{"top_k": 2}, {"top_p": 0.5}, {"min_p": 1.0}, {"top_k": 3, "top_p": 0.6}, {"top_k": 2, "top_p": 0.9}],
    )
    def test_filters_do_not_part_equals(self, filters: dict[str, float]) -> None:
        law = DeviceLaw(SamplingSettings(temperature=1.0, **filters), vocab_size=6, device="cpu")
        rows_RV = torch.tensor([[1.0, 2.0, 2.0, 0.0, 2.0, 2.0], [2.0, 2.0, 1.0, 2.0, 0.0, 2.0]])
        found_RV, _ = law.apply(rows_RV, num_output_R=torch.zeros(2, dtype=torch.int64), counts=None)
        assert (found_RV[0] == 0).tolist() == [False, True, True, False, True, True]
        assert (found_RV[1] == 0).tolist() == [True, True, False, True, False, True]

    @settings(derandomize=True, max_examples=100, deadline=None)
    @given(options=sampling_options, seed=st.integers(0, 1000), tied=st.booleans())
    def test_no_row_depends_on_the_others(self, options: dict[str, object], seed: int, tied: bool) -> None:
        twins = Twins(SamplingSettings(**options), vocab_size=WIDE_VOCAB)
        block_ids = (7, 7, 3, 0)
        logits_RV = random_rows(5, WIDE_VOCAB, seed=seed, tied=tied)
        together_RV, _ = twins.apply_on_device(logits_RV, block_ids)
        for num_rows in (1, 2, 4):
            part_RV, _ = twins.apply_on_device(logits_RV[:num_rows], block_ids[: num_rows - 1])
            assert torch.equal(part_RV, together_RV[:num_rows])

    @settings(derandomize=True, max_examples=50, deadline=None)
    @given(options=sampling_options)
    def test_rows_and_counts_are_not_written_to(self, options: dict[str, object]) -> None:
        twins = Twins(SamplingSettings(**options), vocab_size=VOCAB, output_ids=(5,))
        logits_RV = random_rows(3, VOCAB, seed=8)
        kept_RV, counts = logits_RV.clone(), twins.counts
        kept_counts = None if counts is None else (counts.in_output_V.clone(), counts.seen_V.clone())
        found_RV, _ = twins.apply_on_device(logits_RV, (5, 6))
        found_RV.zero_()
        assert torch.equal(logits_RV, kept_RV)
        if counts is not None and kept_counts is not None:
            assert torch.equal(counts.in_output_V, kept_counts[0])
            assert torch.equal(counts.seen_V, kept_counts[1])


class TestFinite:
    @pytest.mark.parametrize(
        "row",
        [
            [float("nan"), 1.0, 0.0],
            [float("inf"), 1.0, 0.0],
            [IMPOSSIBLE] * 3,
            [1.0, float("nan"), 0.0],
            [IMPOSSIBLE, 2.0, IMPOSSIBLE],
            [1e30, -1e30, 5.0],
            [3e38, -3e38, 0.0],
            [-1e30, -1e30, -1e30],
        ],
    )
    @pytest.mark.parametrize("options", [{}, {"temperature": 1.0}, {"temperature": 5e-324, "top_p": 0.5, "top_k": 2}])
    def test_tells_what_the_host_refuses(self, row: list[float], options: dict[str, float]) -> None:
        twins = Twins(SamplingSettings(**options), vocab_size=3)
        rows_RV = torch.tensor([[0.0, 1.0, 2.0], row, [0.0, 1.0, 2.0]])
        log_weights_RV, finite_R = twins.apply_on_device(rows_RV, (0, 1))
        try:
            wanted = twins.host.apply(rows_RV[1], twins.history)
        except NonFiniteLogitsError:
            assert finite_R.tolist() == [True, False, True]
        else:
            assert finite_R.tolist() == [True, True, True]
            assert torch.equal(twins.device.probabilities_RV(log_weights_RV)[1], wanted.probabilities_V())

    def test_forbidding_every_token_is_told(self) -> None:
        law = DeviceLaw(
            SamplingSettings(temperature=1.0, min_tokens=2), vocab_size=2, stop_ids=frozenset({0, 1}), device="cpu"
        )
        _, finite_R = law.apply(torch.zeros(3, 2), num_output_R=torch.tensor([1, 2, 3]), counts=None)
        assert finite_R.tolist() == [False, True, True]


class TestDraws:
    @pytest.mark.parametrize(
        "options",
        [
            {"temperature": 0.0},
            {"temperature": 1e-6},
            {"temperature": 1.0},
            {"temperature": 1.3, "top_k": 12, "top_p": 0.9, "min_p": 0.01},
        ],
    )
    def test_thousands_of_positions(self, options: dict[str, float]) -> None:
        num_draws = 3000
        twins = Twins(SamplingSettings(seed=11, **options), vocab_size=VOCAB)
        logits_1V = random_rows(1, VOCAB, seed=3)
        (distribution,) = twins.apply_on_host(logits_1V, ())
        log_weights_1V, _ = twins.apply_on_device(logits_1V, ())
        # The law's noise is that of any table with its seed.
        noise_RV = all_noise(11, num_draws)
        found = twins.device.draw_R(log_weights_1V, noise_RV).tolist()
        assert found == [distribution.draw(11, position, Purpose.TARGET) for position in range(num_draws)]
        assert len(set(found)) > (1 if options["temperature"] >= 1 else 0)

    def test_without_noise_the_first_of_the_largest(self) -> None:
        law = DeviceLaw(SamplingSettings(), vocab_size=4, device="cpu")
        rows_RV = torch.tensor([[0.0, 3.0, 3.0, 1.0], [5.0, 3.0, 5.0, 5.0]])
        weights_RV, _ = law.apply(rows_RV, num_output_R=torch.zeros(2, dtype=torch.int64), counts=None)
        assert law.draw_R(weights_RV, None).tolist() == [1, 0]
        assert law.draw_R(rows_RV, None).tolist() == [1, 0]


def all_noise(seed: int, num_positions: int) -> torch.Tensor:
    table = NoiseTable(seed, device="cpu", num_positions=num_positions, purposes=(Purpose.TARGET,))
    table.reserve(num_positions)
    return table.gumbel_RV(Purpose.TARGET, torch.arange(num_positions), torch.arange(VOCAB, dtype=torch.int32))


class TestCounts:
    @given(
        output_ids=st.lists(st.integers(0, 5), max_size=6),
        block_ids=st.lists(st.integers(0, 5), max_size=6),
    )
    def test_each_row_has_seen_the_tokens_before_it(self, output_ids: list[int], block_ids: list[int]) -> None:
        host = TokenCounts(in_output_V=torch.zeros(6), seen_V=torch.tensor([True] + [False] * 5))
        host = host.with_tokens(output_ids)
        rows = DeviceCounts(in_output_V=host.in_output_V, seen_V=host.seen_V).rows(ids_tensor(block_ids))
        assert len(rows.seen_RV) == len(block_ids) + 1
        for row in range(len(block_ids) + 1):
            wanted = host.with_tokens(block_ids[:row])
            assert torch.equal(rows.in_output_RV[row], wanted.in_output_V)
            assert torch.equal(rows.seen_RV[row], wanted.seen_V)

    @given(token_ids=st.lists(st.integers(-1, 5), max_size=8))
    def test_only_tokens_count(self, token_ids: list[int]) -> None:
        start = TokenCounts(in_output_V=torch.zeros(6), seen_V=torch.zeros(6, dtype=torch.bool))
        wanted = start.with_tokens([token_id for token_id in token_ids if token_id >= 0])
        found = DeviceCounts(in_output_V=start.in_output_V, seen_V=start.seen_V).with_tokens(ids_tensor(token_ids))
        assert torch.equal(found.in_output_V, wanted.in_output_V)
        assert torch.equal(found.seen_V, wanted.seen_V)

    def test_negative_ids_do_not_count(self) -> None:
        start = DeviceCounts(in_output_V=torch.zeros(3), seen_V=torch.zeros(3, dtype=torch.bool))
        found = start.with_tokens(torch.tensor([2, 2, -1, -1]))
        assert found.in_output_V.tolist() == [0, 0, 2]
        assert found.seen_V.tolist() == [False, False, True]

    def test_of_a_prompt_are_the_hosts(self) -> None:
        twins = Twins(SamplingSettings(presence_penalty=0.5), vocab_size=VOCAB, prompt_ids=(3, 9, 3))
        assert twins.history.counts is not None
        assert twins.counts is not None
        assert torch.equal(twins.counts.seen_V, twins.history.counts.seen_V)
        assert torch.equal(twins.counts.in_output_V, twins.history.counts.in_output_V)

    def test_no_penalty_needs_none(self) -> None:
        assert Twins(SamplingSettings(temperature=1.0), vocab_size=VOCAB).counts is None

    def test_a_penalty_without_counts_is_refused(self) -> None:
        law = DeviceLaw(SamplingSettings(frequency_penalty=0.5), vocab_size=3, device="cpu")
        with pytest.raises(ValueError, match="counts must be given"):
            law.apply(torch.zeros(1, 3), num_output_R=torch.zeros(1, dtype=torch.int64), counts=None)


class TestConstruction:
    def test_bias_outside_the_vocabulary_is_named(self) -> None:
        with pytest.raises(ValueError, match=r"logit_bias names token id 40, but the target has 40 ids"):
            DeviceLaw(SamplingSettings(logit_bias={40: 1.0}), vocab_size=40, device="cpu")

    def test_stop_ids_beyond_the_vocabulary_are_harmless(self) -> None:
        law = DeviceLaw(
            SamplingSettings(temperature=1.0, min_tokens=1), vocab_size=3, stop_ids=frozenset({1, 99}), device="cpu"
        )
        weights_RV, _ = law.apply(torch.zeros(2, 3), num_output_R=torch.tensor([0, 1]), counts=None)
        assert law.probabilities_RV(weights_RV)[0].tolist() == [0.5, 0, 0.5]
        assert math.isclose(float(law.probabilities_RV(weights_RV)[1, 1]), 1 / 3, rel_tol=1e-6)
