"""Blocks judged in device tensors: the host's verdict on every one, and nothing that waits for the device."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from scheduler import NonFiniteLogitsError, Proposal, SamplingSettings, Verification
from scheduler.on_device import NoiseTable, VerdictLayout, judge_on_device
from tests.support.device_rounds import Twins, random_rows, sampling_options
from tests.support.host_reads import HostReadError, forbid_host_reads

VOCAB = 12
FORBIDDEN = float("-inf")
JUST_BELOW_ONE = 1 - 2.0**-53


def twins_of(rule: Verification, *, seed: int = 0, **options: Any) -> Twins:
    settings = SamplingSettings(**{"temperature": 1.0, "verification": rule, "seed": seed, **options})
    return Twins(settings, vocab_size=VOCAB)


def assert_same_verdict(
    twins: Twins, logits_RV: torch.Tensor, proposal: Proposal, num_logprobs: int | None = None
) -> None:
    wanted = twins.judge_on_host(logits_RV, proposal, num_logprobs=num_logprobs)
    found = twins.judge_on_device(logits_RV, proposal, num_logprobs=num_logprobs)
    packed = found.packed()
    assert packed.dtype == torch.int64
    assert packed.is_contiguous()
    assert len(packed) == found.layout.num_words
    arrived = found.layout.unpack(packed)
    num_block, length = len(logits_RV) - 1, twins.history.length
    assert arrived.verdict == wanted
    assert arrived.finite
    assert arrived.hit == (len(proposal) > num_block and wanted.num_accepted == len(proposal))
    assert arrived.kept_length == length + min(wanted.num_accepted, num_block)
    assert arrived.next_position == length + len(wanted.token_ids)
    # What travels is what stays on the device for the draft to restart from.
    num_unused = len(logits_RV) - len(wanted.token_ids)
    assert found.token_ids_R.tolist() == [*wanted.token_ids, *[-1] * num_unused]
    assert found.token_ids_R.dtype == torch.int64
    for name in ("num_accepted", "num_emitted", "kept_length", "next_position"):
        value = getattr(found, name)
        assert (value.dtype, value.shape) == (torch.int64, ())
    assert (found.hit.dtype, found.hit.shape, found.finite.dtype) == (torch.bool, (), torch.bool)
    assert int(found.num_emitted) == len(wanted.token_ids)
    assert (int(found.kept_length), int(found.next_position)) == (arrived.kept_length, arrived.next_position)


class TestSameVerdict:
    @pytest.mark.parametrize("rule", Verification)
    @settings(derandomize=True, max_examples=250, deadline=None)
    @given(
        options=sampling_options,
        num_block=st.integers(0, 5),
        guessed=st.booleans(),
        one_hot=st.booleans(),
        noise_of_draft=st.sampled_from([0.0, 0.3, 2.0]),
        output_ids=st.lists(st.integers(0, VOCAB - 1), max_size=4),
        num_logprobs=st.sampled_from([None, None, 0, 2, 50]),
        seed=st.integers(0, 10_000),
    )
    def test_any_block(
        self,
        rule: Verification,
        options: dict[str, object],
        num_block: int,
        guessed: bool,
        one_hot: bool,
        noise_of_draft: float,
        output_ids: list[int],
        num_logprobs: int | None,
        seed: int,
    ) -> None:
        twins = Twins(
            SamplingSettings(**options, verification=rule, seed=seed), vocab_size=VOCAB, output_ids=output_ids
        )
        logits_RV = random_rows(num_block + 1, VOCAB, seed=seed)
        draft_RV = logits_RV[: num_block + guessed]
        draft_RV = draft_RV + noise_of_draft * random_rows(len(draft_RV), VOCAB, seed=seed + 1)
        assert_same_verdict(twins, logits_RV, twins.proposal(draft_RV, one_hot=one_hot), num_logprobs)

    @pytest.mark.parametrize("guessed", [False, True])
    @pytest.mark.parametrize("rule", Verification)
    def test_many_seeds(self, rule: Verification, guessed: bool) -> None:
        logits_RV = random_rows(5, VOCAB, seed=2) / 2
        draft_RV = logits_RV[: 4 + guessed] + random_rows(4 + guessed, VOCAB, seed=3) / 4
        lengths = set()
        for seed in range(400):
            twins = twins_of(rule, seed=seed)
            proposal = twins.proposal(draft_RV)
            assert_same_verdict(twins, logits_RV, proposal)
            lengths.add(twins.judge_on_host(logits_RV, proposal).num_accepted)
        assert lengths == set(range(5 + guessed))

    @pytest.mark.parametrize("rule", Verification)
    def test_any_token_after_any_row(self, rule: Verification) -> None:
        for token_id in range(VOCAB):
            for seed in range(4):
                twins = twins_of(rule, seed=seed, top_k=3)
                assert_same_verdict(twins, random_rows(2, VOCAB, seed=seed), Proposal(token_ids=(token_id,)))

    def test_a_draft_that_is_above_the_target_everywhere(self) -> None:
        # By rounding, in truth; a rejection then leaves no residual, and the target itself is the law.
        num_rejected = 0
        for seed in range(200):
            twins = twins_of(Verification.REJECTION, seed=seed)
            logits_RV = random_rows(2, VOCAB, seed=1)
            target_V = twins.host.apply(logits_RV[0], twins.history).probabilities_V()
            proposal = Proposal(token_ids=(2,), probabilities=(target_V * 4,))
            assert_same_verdict(twins, logits_RV, proposal)
            num_rejected += twins.judge_on_host(logits_RV, proposal).num_accepted == 0
        assert 100 < num_rejected < 200

    @pytest.mark.parametrize("rule", Verification)
    def test_host_numbers_do_as_well_as_tensors(self, rule: Verification) -> None:
        twins = twins_of(rule, seed=4, min_tokens=3)
        logits_RV = random_rows(3, VOCAB, seed=4)
        proposal = twins.proposal(logits_RV[:2])
        found = judge_on_device(
            twins.device,
            twins.noise,
            logits_RV,
            position=twins.history.length,
            num_output=0,
            counts=None,
            block_ids_B=torch.tensor(proposal.token_ids),
            guess_ids_G=torch.empty(0, dtype=torch.int64),
            draft_probabilities=proposal.probabilities,
        )
        assert torch.equal(found.packed(), twins.judge_on_device(logits_RV, proposal).packed())


class TestStrictness:
    def verdict_at(self, monkeypatch: pytest.MonkeyPatch, share: float, target: list[float], draft: list[float]) -> int:
        """Tokens accepted when every uniform is `share`; token 0 was proposed."""
        monkeypatch.setattr(
            NoiseTable, "uniform_R", lambda self, purpose, positions_R: torch.full((1,), share, dtype=torch.float64)
        )
        settings = SamplingSettings(temperature=1.0, verification=Verification.REJECTION)
        twins = Twins(settings, vocab_size=len(target))
        logits_RV = torch.tensor([target, [1.0] * len(target)]).log()
        verdict = twins.judge_and_unpack(
            logits_RV, Proposal(token_ids=(0,), probabilities=(torch.tensor(draft),))
        ).verdict
        assert target[verdict.token_ids[0]] > 0
        return verdict.num_accepted

    def test_zero_does_not_accept_what_the_target_forbids(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert self.verdict_at(monkeypatch, 0.0, [0.0, 0.5, 0.5], [0.8, 0.1, 0.1]) == 0

    def test_zero_accepts_what_is_barely_possible(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert self.verdict_at(monkeypatch, 0.0, [1e-30, 0.5, 0.5], [0.8, 0.1, 0.1]) == 1

    def test_equal_probabilities_are_accepted(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert self.verdict_at(monkeypatch, JUST_BELOW_ONE, [0.25, 0.25, 0.5], [0.25, 0.25, 0.5]) == 1

    def test_the_ratio_is_what_counts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert self.verdict_at(monkeypatch, 0.499, [0.25, 0.25, 0.5], [0.5, 0.25, 0.25]) == 1
        assert self.verdict_at(monkeypatch, 0.501, [0.25, 0.25, 0.5], [0.5, 0.25, 0.25]) == 0


class TestBrokenRows:
    @pytest.mark.parametrize("rule", Verification)
    @pytest.mark.parametrize("temperature", [0.0, 1.0])
    @pytest.mark.parametrize("damage", [float("nan"), float("inf"), FORBIDDEN])
    def test_behind_the_first_disagreement_have_no_say(
        self, rule: Verification, temperature: float, damage: float
    ) -> None:
        twins = twins_of(rule, temperature=temperature)
        logits_RV = random_rows(4, VOCAB, seed=6)
        proposal = twins.proposal(logits_RV[:3])
        logits_RV[0, proposal.token_ids[0]] = FORBIDDEN
        logits_RV[1:] = damage
        assert_same_verdict(twins, logits_RV, proposal)

    @pytest.mark.parametrize("rule", Verification)
    @pytest.mark.parametrize("temperature", [0.0, 1.0])
    @pytest.mark.parametrize("damage", [float("nan"), float("inf"), FORBIDDEN])
    @pytest.mark.parametrize("broken_row", range(4))
    @pytest.mark.parametrize("guessed", [False, True])
    def test_are_reported_where_the_host_raises(
        self, rule: Verification, temperature: float, damage: float, broken_row: int, guessed: bool
    ) -> None:
        twins = twins_of(rule, temperature=temperature)
        logits_RV = random_rows(4, VOCAB, seed=6)
        proposal = twins.proposal(logits_RV[: 3 + guessed])
        # What the first maximum of a row of equals or NaNs is: not even such an agreement counts.
        token_ids = (*proposal.token_ids[:broken_row], 0, *proposal.token_ids[broken_row + 1 :])[: 3 + guessed]
        proposal = dataclasses.replace(proposal, token_ids=token_ids)
        logits_RV[broken_row] = damage
        arrived = twins.judge_and_unpack(logits_RV, proposal, num_logprobs=1)
        assert not arrived.finite
        assert not arrived.hit
        assert arrived.verdict.num_accepted == broken_row
        place = f"position {twins.history.length + broken_row}"
        with pytest.raises(NonFiniteLogitsError, match=place):
            twins.judge_on_host(logits_RV, proposal)
        with pytest.raises(NonFiniteLogitsError, match=place):
            arrived.check_finite()

    def test_a_sound_verdict_passes_the_check(self) -> None:
        twins = twins_of(Verification.COUPLED)
        twins.judge_and_unpack(random_rows(1, VOCAB, seed=0), Proposal()).check_finite()


class TestPacking:
    @pytest.mark.parametrize("num_logprobs", [None, 0, 2])
    def test_a_slot_may_be_longer_than_the_verdict(self, num_logprobs: int | None) -> None:
        twins = twins_of(Verification.COUPLED)
        logits_RV = random_rows(3, VOCAB, seed=1)
        verdict = twins.judge_on_device(logits_RV, twins.proposal(logits_RV[:2]), num_logprobs=num_logprobs)
        slot = torch.full((200,), 99, dtype=torch.int64)
        slot[: verdict.layout.num_words] = verdict.packed()
        assert verdict.layout.unpack(slot) == verdict.layout.unpack(verdict.packed())

    def test_a_short_copy_is_refused(self) -> None:
        layout = VerdictLayout.of(num_rows=3, num_logprobs=None, vocab_size=VOCAB)
        with pytest.raises(ValueError, match="takes 9 words, got 8"):
            layout.unpack(torch.zeros(8, dtype=torch.int64))

    def test_the_layout_is_known_before_the_verdict(self) -> None:
        twins = twins_of(Verification.COUPLED)
        logits_RV = random_rows(3, VOCAB, seed=1)
        for num_logprobs in (None, 0, 5, 100):
            verdict = twins.judge_on_device(logits_RV, twins.proposal(logits_RV[:2]), num_logprobs=num_logprobs)
            assert verdict.layout == VerdictLayout.of(num_rows=3, num_logprobs=num_logprobs, vocab_size=VOCAB)


class TestMisuse:
    def test_rows_must_fit_the_block(self) -> None:
        twins = twins_of(Verification.COUPLED)
        with pytest.raises(ValueError, match="a block of 0 tokens is judged by 1 rows, got 2"):
            twins.judge_on_device(random_rows(2, VOCAB, seed=0), Proposal())

    def test_one_guess_is_the_most(self) -> None:
        twins = twins_of(Verification.COUPLED)
        with pytest.raises(ValueError, match="at most 1 guess, got 2"):
            twins.judge_on_device(random_rows(1, VOCAB, seed=0), Proposal(token_ids=(1, 2)))

    def test_each_proposed_token_has_its_q(self) -> None:
        twins = twins_of(Verification.REJECTION)
        with pytest.raises(ValueError, match="for each of the 2 proposed tokens, got 1"):
            twins.judge_on_device(
                random_rows(3, VOCAB, seed=0), Proposal(token_ids=(1, 2), probabilities=(torch.ones(VOCAB) / VOCAB,))
            )


class UploadError(Exception):
    """A tensor was made of host values: on a CUDA device that is a copy which the host waits for."""


class NoUploads(TorchDispatchMode):
    """Refuses `torch.tensor` of numbers."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__.startswith("lift_fresh"):
            raise UploadError(str(func))
        return func(*args, **(kwargs or {}))


@contextmanager
def nothing_waits() -> Iterator[None]:
    with forbid_host_reads(), NoUploads():
        yield


class Operations(TorchDispatchMode):
    """Counts them."""

    number = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.number += 1
        return func(*args, **(kwargs or {}))


EVERYTHING = {
    "temperature": 0.9,
    "top_k": 7,
    "top_p": 0.95,
    "min_p": 0.01,
    "repetition_penalty": 1.2,
    "presence_penalty": 0.2,
    "frequency_penalty": 0.1,
    "logit_bias": {1: 1.0, 3: -2.0},
    "min_tokens": 6,
}


def judge_under(mode: AbstractContextManager[object], twins: Twins, num_block: int, *, guessed: bool) -> VerdictLayout:
    """Judge a block with its inputs already on the device; what the mode sees is the judging alone."""
    logits_RV = random_rows(num_block + 1, VOCAB, seed=1)
    proposal = twins.proposal(random_rows(num_block + guessed, VOCAB, seed=2))
    inputs: dict[str, Any] = {
        "block_ids_B": torch.tensor(proposal.token_ids[:num_block], dtype=torch.int64),
        "guess_ids_G": torch.tensor(proposal.token_ids[num_block:], dtype=torch.int64),
        "position": torch.tensor(twins.history.length),
        "num_output": torch.tensor(0),
    }
    with mode:
        verdict = judge_on_device(
            twins.device,
            twins.noise,
            logits_RV,
            counts=twins.counts,
            draft_probabilities=proposal.probabilities,
            num_logprobs=2,
            **inputs,
        )
        verdict.packed()
        if twins.counts is not None:
            twins.counts.with_tokens(verdict.token_ids_R)
    return verdict.layout


class TestNothingWaits:
    @pytest.mark.parametrize("guessed", [False, True])
    @pytest.mark.parametrize("num_block", [0, 3])
    @pytest.mark.parametrize("options", [{"temperature": 0.0}, {}, EVERYTHING, {"top_p": 0.9}])
    @pytest.mark.parametrize("rule", Verification)
    def test_no_value_is_read_or_sent_by_the_host(
        self, rule: Verification, options: dict[str, Any], num_block: int, guessed: bool
    ) -> None:
        judge_under(nothing_waits(), twins_of(rule, **options), num_block, guessed=guessed)

    @pytest.mark.parametrize("rule", Verification)
    def test_the_watch_sees_what_the_host_path_does(self, rule: Verification) -> None:
        twins = twins_of(rule)
        logits_RV = random_rows(2, VOCAB, seed=1)
        proposal = twins.proposal(logits_RV[:1])
        with pytest.raises(HostReadError), nothing_waits():
            twins.judge_on_host(logits_RV, proposal)
        with pytest.raises(UploadError), nothing_waits():
            torch.tensor([1, 2])

    @pytest.mark.parametrize("rule", Verification)
    @pytest.mark.parametrize("options", [{}, EVERYTHING])
    def test_operations_do_not_grow_with_the_block(self, rule: Verification, options: dict[str, Any]) -> None:
        numbers = set()
        for num_block in (1, 4, 9):
            operations = Operations()
            judge_under(operations, twins_of(rule, **options), num_block, guessed=True)
            numbers.add(operations.number)
        assert len(numbers) == 1

    @pytest.mark.parametrize("guessed", [False, True])
    @pytest.mark.parametrize("options", [{"temperature": 0.0}, {}, EVERYTHING])
    @pytest.mark.parametrize("rule", Verification)
    def test_shapes_need_no_values(self, rule: Verification, options: dict[str, Any], guessed: bool) -> None:
        """Meta tensors have shapes and nothing else: what depends on a value cannot run on them."""
        settings = SamplingSettings(**{"temperature": 1.0, "verification": rule, **options})
        twins = Twins(settings, vocab_size=VOCAB, device="meta")
        rejection = rule is Verification.REJECTION
        proposal = Proposal(
            token_ids=(1, 2, 3)[: 2 + guessed],
            probabilities=tuple(torch.empty(VOCAB, device="meta") for _ in range(2 + guessed)) if rejection else None,
        )
        verdict = twins.judge_on_device(torch.empty(3, VOCAB, device="meta"), proposal, num_logprobs=2)
        assert verdict.packed().shape == (verdict.layout.num_words,)
        assert verdict.token_ids_R.device.type == "meta"


def test_frozen_values() -> None:
    verdict = twins_of(Verification.COUPLED).judge_on_device(random_rows(1, VOCAB, seed=0), Proposal())
    with pytest.raises(dataclasses.FrozenInstanceError):
        verdict.hit = verdict.finite  # type: ignore[misc]  # it is frozen, which is the point
