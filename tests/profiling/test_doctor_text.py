"""The doctor on pairs whose text is wrong, or could be: each fault is found, and healthy pairs have none."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch

from models import WeightKind
from profiling.doctor.check import CannotTell, Verdict
from profiling.doctor.probabilities import check_probabilities
from profiling.doctor.repetition import judge_repetition
from profiling.doctor.same_text import judge_draws, transformed_law
from profiling.doctor.trials import Turn
from runtime import Mode
from scheduler import (
    Distribution,
    FixedGamma,
    Lane,
    ModelProposer,
    Proposal,
    SamplingLaw,
    SamplingSettings,
    TokenHistory,
)
from tests.fuzz.mutants import installed, rewritten
from tests.support.doctor_pairs import diagnose, found, pair_of, turn_of, with_sources
from tests.support.table_model import TableCache, TableModel
from tests.support.table_runtime import VOCAB_SIZE, Rig, build_rig, similar_draft, table_target
from tests.support.watched_model import ScriptedModel


def healthy_rig(**options: Any) -> Rig:
    target = table_target()
    return build_rig(target, similar_draft(target), mode=Mode.AUTO, **options)


class BiasedProposer(ModelProposer):
    """Draws its most likely token, and says that it drew by its probabilities."""

    def extend(self, law: SamplingLaw, history: TokenHistory, chain_ids: Sequence[int], max_tokens: int) -> Proposal:
        honest = super().extend(law, history, chain_ids, 1)
        if honest.probabilities is None:
            return honest
        best = int(honest.probabilities[0].argmax())
        return dataclasses.replace(honest, token_ids=(best,))


class RestrictedProposer(ModelProposer):
    """Draws through other options than those that judge: from its two most likely tokens alone."""

    def extend(self, law: SamplingLaw, history: TokenHistory, chain_ids: Sequence[int], max_tokens: int) -> Proposal:
        honest = super().extend(law, history, chain_ids, 1)
        settings = dataclasses.replace(law.settings, top_k=2)
        other = super().extend(SamplingLaw(settings, vocab_size=law.vocab_size), history, chain_ids, 1)
        return dataclasses.replace(other, probabilities=honest.probabilities)


class TemperatureBlindProposer(ModelProposer):
    """Draws as if the temperature were 1, and is judged as if it had heeded it."""

    def extend(self, law: SamplingLaw, history: TokenHistory, chain_ids: Sequence[int], max_tokens: int) -> Proposal:
        honest = super().extend(law, history, chain_ids, 1)
        settings = dataclasses.replace(law.settings, temperature=1.0)
        other = super().extend(SamplingLaw(settings, vocab_size=law.vocab_size), history, chain_ids, 1)
        return dataclasses.replace(other, probabilities=honest.probabilities)


class DamagedModel(TableModel):
    """Gives rows in which one logit is something else, or in another dtype."""

    def __init__(self, *, planted: float | None = None, dtype: torch.dtype = torch.float32, **settings: Any) -> None:
        super().__init__(vocab_size=VOCAB_SIZE, order=2, seed=5, sharpness=3.0, **settings)
        self._planted, self._dtype = planted, dtype

    def forward(self, token_ids_T: torch.Tensor, cache: TableCache, *, num_logits: int) -> torch.Tensor:
        logits_RV = super().forward(token_ids_T, cache, num_logits=num_logits)
        if self._planted is not None:
            logits_RV[:, 7] = self._planted
        return logits_RV.to(self._dtype)


class HalfLaw(SamplingLaw):
    """A law in half precision."""

    def apply(self, logits_V: torch.Tensor, history: TokenHistory, proposed_ids: Sequence[int] = ()) -> Distribution:
        whole = super().apply(logits_V, history, proposed_ids)

        class Half(Distribution):
            def probabilities_V(self) -> torch.Tensor:
                return super().probabilities_V().half()

        return Half(vocab_size=whole.vocab_size, token_ids_C=whole.token_ids_C, log_weights_C=whole.log_weights_C)


class TestHealthyPair:
    def test_all_that_must_be_right_is(self) -> None:
        names = ("tokenizers", "probabilities", "same-text", "law")
        findings = diagnose(pair_of(healthy_rig()), *names)
        assert [finding.verdict for finding in findings] == [Verdict.OK] * len(names), findings
        assert findings[2].figures["num_compared"] == 12
        # A draft that is still reading the prompt proposes nothing.
        assert 140 <= findings[3].figures["num_draws"] <= 150


class TestTokenizers:
    def test_a_mismatch_is_a_failure_and_what_needs_the_draft_is_skipped(self) -> None:
        pair = pair_of(
            build_rig(table_target(), mode=Mode.AUTO), mismatch="id 3 is 'a' in the target and 'b' in the draft"
        )
        tokenizers, law, acceptance = diagnose(pair, "tokenizers", "law", "acceptance")
        assert tokenizers.verdict is Verdict.FAIL
        assert tokenizers.measured.startswith("id 3 is 'a'")
        assert tokenizers.advice
        assert {law.verdict, acceptance.verdict} == {Verdict.SKIPPED}
        assert "does not fit" in law.measured


class TestProbabilities:
    @pytest.mark.parametrize(
        ("damage", "said"),
        [
            ({"planted": float("nan")}, "4 of 1200 of the target's logits are inf or NaN"),
            ({"planted": float("inf")}, "inf or NaN"),
            ({"dtype": torch.float16}, "the target's logits are float16, not float32"),
        ],
    )
    def test_a_damaged_target(self, damage: dict[str, Any], said: str) -> None:
        (finding,) = diagnose(pair_of(build_rig(DamagedModel(**damage), mode=Mode.AUTO)), "probabilities")
        assert finding.verdict is Verdict.FAIL
        assert said in finding.measured

    def test_a_damaged_draft(self) -> None:
        rig = build_rig(table_target(), DamagedModel(planted=float("nan"), name="draft"), mode=Mode.AUTO)
        (finding,) = diagnose(pair_of(rig), "probabilities")
        assert finding.verdict is Verdict.FAIL
        assert "draft's logits" in finding.measured

    def test_half_precision_probabilities(self) -> None:
        def new_law(settings: SamplingSettings, vocab_size: int) -> SamplingLaw:
            return HalfLaw(settings, vocab_size=vocab_size)

        finding = found(pair_of(healthy_rig()), partial(check_probabilities, new_law=new_law))
        assert finding.verdict is Verdict.FAIL
        assert "probabilities are float16 at temperature 1e-06" in finding.measured

    def test_overflow_at_a_tiny_temperature(self) -> None:
        # Dividing first and taking the largest logit off afterwards is the classic way to infinity.
        divides_first = rewritten(
            "scheduler.transforms",
            "(logits_V - largest) / max(temperature, _SMALLEST_TEMPERATURE)",
            "logits_V / max(temperature, _SMALLEST_TEMPERATURE) - largest / max(temperature, _SMALLEST_TEMPERATURE)",
        )
        with installed(divides_first):
            (finding,) = diagnose(pair_of(healthy_rig()), "probabilities")
        assert finding.verdict is Verdict.FAIL
        assert "probabilities are not finite at temperature 1e-06, logits up to 1e38" in finding.measured

    def test_a_model_that_fails_stops_one_check_and_not_the_others(self) -> None:
        rig = healthy_rig()
        rig.target.fail_at(1, RuntimeError("planted\n failure"))
        broken, tokenizers = diagnose(pair_of(rig), "probabilities", "tokenizers")
        assert broken.verdict is Verdict.FAIL
        assert broken.measured == "RuntimeError: planted failure"
        assert tokenizers.verdict is Verdict.OK


class TestSameText:
    def test_proposals_that_nobody_refuses(self) -> None:
        accepts_all = rewritten(
            "scheduler.verify", "row == len(proposed_ids) or token_id != proposed_ids[row]", "row == len(proposed_ids)"
        )
        with installed(accepts_all):
            (finding,) = diagnose(pair_of(healthy_rig()), "same-text")
        assert finding.verdict is Verdict.FAIL
        assert "are not plain decoding's" in finding.measured

    def test_what_failed_once_is_not_tried_again(self) -> None:
        rig = healthy_rig()
        rig.target.fail_at(1, RuntimeError("planted"))
        first, second = diagnose(pair_of(rig), "same-text", "repetition")
        assert first.verdict is Verdict.FAIL
        assert second.verdict is Verdict.SKIPPED
        assert "failed before: planted" in second.measured

    @pytest.mark.parametrize(("scale", "verdict"), [(1e-3, Verdict.WARN), (1.0, Verdict.FAIL)])
    def test_in_half_precision_texts_may_part_at_a_tie_and_nowhere_else(self, scale: float, verdict: Verdict) -> None:
        accepts_all = rewritten(
            "scheduler.verify", "row == len(proposed_ids) or token_id != proposed_ids[row]", "row == len(proposed_ids)"
        )
        target, draft = table_target(), table_target(name="draft", seed=8)
        target.tables *= scale
        with installed(accepts_all):
            rig = build_rig(target, draft, mode=Mode.AUTO)
            (finding,) = diagnose(pair_of(rig, weights=WeightKind.BFLOAT16), "same-text")
        assert finding.verdict is verdict
        assert ("all but tie" in finding.measured) is (verdict is Verdict.WARN)


class TestLaw:
    @pytest.mark.parametrize("wrong", [BiasedProposer, RestrictedProposer, TemperatureBlindProposer])
    def test_a_sampler_whose_draft_and_judge_differ(self, wrong: type[ModelProposer]) -> None:
        rig = healthy_rig()
        lane = Lane("draft", similar_draft(table_target(), share=0.2), rig.draft_stream, capacity=512)
        (finding,) = diagnose(with_sources(rig, wrong(lane, FixedGamma(4))), "law")
        assert finding.verdict is Verdict.FAIL, finding
        assert finding.advice

    def test_the_same_source_without_the_fault(self) -> None:
        rig = healthy_rig()
        lane = Lane("draft", similar_draft(table_target(), share=0.2), rig.draft_stream, capacity=512)
        (finding,) = diagnose(with_sources(rig, ModelProposer(lane, FixedGamma(4))), "law")
        assert finding.verdict is Verdict.OK, finding

    def test_the_law_that_draws_are_held_against(self) -> None:
        probabilities = {1: 0.5, 2: 0.25, 3: 0.15, 4: 0.05, 5: 0.04}
        law = transformed_law({token: math.log(share) for token, share in probabilities.items()})
        assert law is not None
        settings = SamplingSettings(temperature=0.6, top_k=4, top_p=0.95)
        logits_V = torch.full((8,), -math.inf)
        for token, share in probabilities.items():
            logits_V[token] = math.log(share)
        own_V = SamplingLaw(settings, vocab_size=8).apply(logits_V, TokenHistory((1,))).probabilities_V()
        assert law == pytest.approx({token: float(own_V[token]) for token in law}, abs=1e-5)
        assert sum(float(own_V[token]) for token in law) == pytest.approx(1)

    @pytest.mark.parametrize(
        "shares", [(0.4, 0.3, 0.2, 0.0501, 0.0499), (0.75**0.6, 0.2005**0.6, 0.0495**0.6)], ids=["top_k", "top_p"]
    )
    def test_places_at_the_edge_of_a_filter_are_passed_over(self, shares: tuple[float, ...]) -> None:
        assert transformed_law({token: math.log(share) for token, share in enumerate(shares)}) is None

    def test_more_draws_notice_less(self) -> None:
        few, many = judge_draws({1: 0.5, 2: 0.5}, {1: 20, 2: 20}), judge_draws({1: 0.5, 2: 0.5}, {1: 500, 2: 500})
        noticed = [float(re.search(r"a fault of (\d\.\d+)", item.measured).group(1)) for item in (few, many)]
        assert 0.2 < noticed[0] < 0.5
        assert noticed[1] < noticed[0] / 4

    def test_a_token_that_has_no_chance(self) -> None:
        finding = judge_draws({1: 0.5, 2: 0.5}, {1: 50, 2: 49, 3: 1})
        assert finding.verdict is Verdict.FAIL
        assert "token 3 was drawn" in finding.measured

    def test_sampling_noise_is_no_fault(self) -> None:
        assert judge_draws({1: 0.5, 2: 0.5}, {1: 60, 2: 40}).verdict is Verdict.OK
        assert judge_draws({1: 0.5, 2: 0.5}, {1: 80, 2: 20}).verdict is Verdict.FAIL

    def test_a_certain_target_tells_nothing(self) -> None:
        certain = ScriptedModel([5, 6, 7, 8], vocab_size=VOCAB_SIZE)
        (finding,) = diagnose(pair_of(build_rig(certain, table_target(name="draft"), mode=Mode.AUTO)), "law")
        assert finding.verdict is Verdict.SKIPPED
        assert "certain" in finding.measured


class TestRepetition:
    def test_a_target_that_repeats_itself(self) -> None:
        script = ScriptedModel([5, 6, 7], vocab_size=VOCAB_SIZE)
        rig = build_rig(script, table_target(name="draft"), mode=Mode.AUTO)
        (finding,) = diagnose(pair_of(rig), "repetition")
        assert finding.verdict is Verdict.WARN
        assert "the model and not speculation" in finding.measured
        assert "repetition_penalty" in finding.advice

    def test_a_text_without_repetition(self) -> None:
        rig = build_rig(ScriptedModel(range(3, 260), vocab_size=VOCAB_SIZE), table_target(name="draft"), mode=Mode.AUTO)
        (finding,) = diagnose(pair_of(rig), "repetition")
        assert finding.verdict is Verdict.OK

    def test_repetition_that_only_speculation_has(self) -> None:
        turn = answers(plain=range(20), auto=[1, 2] * 10)
        finding = judge_repetition([turn])
        assert finding.verdict is Verdict.FAIL
        assert "the target alone would not" in finding.measured

    def test_another_answer_that_repeats_itself_alone_excuses_nothing(self) -> None:
        alone = answers(plain=[1] * 20, auto=[1] * 20)
        finding = judge_repetition([alone, answers(plain=range(20), auto=[1, 2, 3] * 7)])
        assert finding.verdict is Verdict.FAIL

    def test_short_answers_tell_nothing(self) -> None:
        with pytest.raises(CannotTell, match="too short"):
            judge_repetition([answers(plain=range(4), auto=range(4))])


def answers(*, plain: Sequence[int], auto: Sequence[int]) -> Turn:
    """One prompt, answered alone and with drafts."""
    return turn_of({Mode.PLAIN: 1.0, Mode.AUTO: 1.0}, token_ids={Mode.PLAIN: tuple(plain), Mode.AUTO: tuple(auto)})
