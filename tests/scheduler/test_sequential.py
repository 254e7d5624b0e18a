"""The sequential loop: equal to one-token decoding with every draft, and ending where that would end."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from scheduler import (
    NonFiniteLogitsError,
    Proposal,
    SamplingLaw,
    TokenHistory,
    Verification,
)
from tests.support.loops import (
    decode,
    model_proposer,
    one_token_decoding,
    request_of,
    rigged,
)
from tests.support.proposing import propose as offer
from tests.support.sequential_cases import (
    GAMMAS,
    KINDS,
    OPTIONS,
    PROMPT,
    check_reports,
    sources,
    target_model,
)
from tests.support.table_model import TableModel


class TestEquality:
    @pytest.mark.parametrize("two_streams", [False, True], ids=["one stream", "two streams"])
    @pytest.mark.parametrize("name", OPTIONS)
    @pytest.mark.parametrize("kind", KINDS)
    async def test_every_draft_gives_the_targets_own_tokens(self, kind: str, name: str, two_streams: bool) -> None:
        request = request_of(PROMPT, 30, **OPTIONS[name])
        wanted = one_token_decoding(target_model(), request)
        plain = await decode(target_model(), request)
        assert plain.ids == wanted
        for gamma in GAMMAS:
            output = await decode(target_model(), request, sources(kind, gamma), two_streams=two_streams)
            assert output.ids == wanted
            assert output.logprobs == plain.logprobs
            assert (output.num_proposed > 0) == (gamma > 0 and kind != "none")
            check_reports(output, 30)
            if request.num_logprobs is not None:
                assert [token_id for token_id, _, _ in output.logprobs] == wanted

    async def test_tokens_do_not_depend_on_the_seed_by_chance(self) -> None:
        outputs = {
            tuple(one_token_decoding(target_model(), request_of(PROMPT, 20, temperature=1.0, seed=seed)))
            for seed in range(20)
        }
        assert len(outputs) == 20

    @pytest.mark.parametrize("gamma", range(1, 9))
    async def test_one_token_prompt_and_an_unrelated_draft(self, gamma: int) -> None:
        target = target_model()
        wanted = [5]
        for _ in range(60):
            wanted.append(int(target.logits_after(wanted).argmax()))
        output = await decode(target, request_of((5,), 60), sources("unrelated", gamma))
        assert output.ids == wanted[1:]

    @pytest.mark.parametrize("warmup_tokens", [0, 1, 5, 100])
    async def test_warm_up_is_plain_and_changes_nothing(self, warmup_tokens: int) -> None:
        request = request_of(PROMPT, 30, temperature=1.0, seed=2)
        output = await decode(target_model(), request, sources("same", 4), warmup_tokens=warmup_tokens)
        assert output.ids == one_token_decoding(target_model(), request)
        num_plain = next((i for i, report in enumerate(output.reports) if report.num_proposed), len(output.reports))
        assert num_plain == min(warmup_tokens, 30)

    @pytest.mark.parametrize("kind", ["none", "ngram", "same", "unrelated"])
    @pytest.mark.parametrize(
        "options",
        [
            {"temperature": 1e4, "seed": 1},
            {"temperature": 5e-324, "seed": 1},
            {"temperature": 1.0, "top_p": 1e-300},
            {"temperature": 2.0, "top_k": 1},
            {"temperature": 1.0, "logit_bias": {7: -1e4, 2: 1e4}},
            {"temperature": 1.0, "presence_penalty": -100, "frequency_penalty": 100, "repetition_penalty": 1e4},
        ],
    )
    async def test_extreme_options(self, kind: str, options: dict[str, object]) -> None:
        request = request_of(PROMPT, 20, num_logprobs=1, **options)
        output = await decode(target_model(), request, sources(kind, 3))
        assert output.ids == one_token_decoding(target_model(), request)
        assert np.isfinite([logprob for _, logprob, _ in output.logprobs]).all()

    @pytest.mark.parametrize("kind", ["none", "ngram", "same", "unrelated"])
    @pytest.mark.parametrize("rule", Verification)
    @pytest.mark.parametrize("temperature", [0.0, 1e-6, 1.0, 1e4])
    async def test_extreme_logits(self, temperature: float, rule: Verification, kind: str) -> None:
        def model() -> TableModel:
            table = target_model(order=1)
            table.tables[0, ::3] *= 1e30
            table.tables[0, 1::3, ::2] = float("-inf")
            return table

        drafts = [model_proposer(model(), 3)] if kind == "same" else sources(kind, 3)
        request = request_of(PROMPT, 20, temperature=temperature, seed=4, verification=rule)
        output = await decode(model(), request, drafts)
        assert len(output.ids) == 20
        check_reports(output, 20)
        if rule is Verification.COUPLED or temperature == 0:
            assert output.ids == one_token_decoding(model(), request)
        for index, token_id in enumerate(output.ids):
            assert model().logits_after([*PROMPT, *output.ids[:index]])[token_id] > float("-inf")

    @pytest.mark.parametrize("where", ["target", "draft"])
    async def test_a_row_without_a_law_is_an_error_and_not_the_end(self, where: str) -> None:
        target, draft = target_model(), target_model()
        broken = {"target": target, "draft": draft}[where]
        healthy = broken.tables.clone()
        async with rigged(target, [model_proposer(draft, 3)], two_streams=True) as rig:
            broken.tables[:] = float("nan")
            with pytest.raises(NonFiniteLogitsError, match="position 11"):
                await rig.run(request_of(PROMPT, 5))
            broken.tables[:] = healthy
            request = request_of(PROMPT, 5)
            assert (await rig.run(request)).ids == one_token_decoding(target, request)


class TestRejection:
    @pytest.mark.parametrize("two_streams", [False, True], ids=["one stream", "two streams"])
    @pytest.mark.parametrize("kind", ["ngram", "same", "unrelated", "narrower", "wider"])
    async def test_rounds_are_those_of_fresh_models_on_whole_sequences(self, kind: str, two_streams: bool) -> None:
        # The law of such rounds is proved elsewhere; here, that caches, streams and rollbacks add nothing to them.
        for seed in range(8):
            request = request_of(
                PROMPT, 24, temperature=1.0, top_p=0.97, seed=seed, verification=Verification.REJECTION
            )

            def propose(law: SamplingLaw, history: TokenHistory) -> Proposal:
                room = 24 - history.num_output_tokens - 1
                if room == 0:
                    return Proposal()
                (new_proposer,) = sources(kind, 3)
                fresh = new_proposer(rig.draft_stream)
                fresh.begin(history)
                return offer(fresh, law, history, room)

            async with rigged(target_model(), sources(kind, 3), two_streams=two_streams) as rig:
                output = await rig.run(request)
                assert output.ids == one_token_decoding(target_model(), request, propose=propose)
                assert output.num_proposed > 0
                check_reports(output, 24)

    async def test_same_seed_same_tokens_whatever_else_draws(self) -> None:
        request = request_of(PROMPT, 30, temperature=1.0, seed=9, verification=Verification.REJECTION)
        first = await decode(target_model(), request, sources("unrelated", 4))
        torch.manual_seed(123)
        torch.rand(1000)
        random.seed(5)
        second = await decode(target_model(), request, sources("unrelated", 4))
        assert first.ids == second.ids
        others = {
            tuple(
                (
                    await decode(
                        target_model(),
                        request_of(PROMPT, 30, temperature=1.0, seed=seed, verification=Verification.REJECTION),
                        sources("unrelated", 4),
                    )
                ).ids
            )
            for seed in range(5)
        }
        assert len(others) == 5

    @pytest.mark.parametrize("rule", Verification)
    async def test_global_generators_stay_untouched(self, rule: Verification) -> None:
        before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
        await decode(
            target_model(), request_of(PROMPT, 10, temperature=1.0, verification=rule), sources("unrelated", 3)
        )
        assert torch.equal(torch.get_rng_state(), before[0])
        assert random.getstate() == before[1]
        assert (np.random.get_state()[1] == before[2]).all()
