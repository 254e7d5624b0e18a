"""Rounds that stay on the device: the tokens of one-token decoding and of rounds on the host, in any legal order."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from models import UnsupportedModelError
from scheduler import (
    DeviceResidency,
    FixedGamma,
    Lane,
    ModelProposer,
    NonFiniteLogitsError,
    PipelinedLoop,
    SequentialLoop,
    Verification,
    VirtualDevice,
)
from scheduler.verifier import Verifier
from tests.scheduler.test_pipeline_loop import ScriptedGamma
from tests.support.device_loops import close_model, new_model, target_model
from tests.support.loops import (
    decode,
    model_proposer,
    ngram_proposer,
    one_token_decoding,
    request_of,
    rigged,
    thread_stream,
)
from tests.support.positioned_table import PositionedTableModel
from tests.support.sequential_cases import OPTIONS, PROMPT, VOCAB, adaptive, check_reports
from tests.support.table_model import TableModel

DRAFTS = {
    "same": target_model,
    "unrelated": lambda: new_model(2),
    "close": close_model,
    "hole": lambda: with_hole(new_model(3)),
    "narrower": lambda: new_model(1, vocab_size=VOCAB - 2),
    "wider": lambda: new_model(4, vocab_size=VOCAB + 5),
}
LOOPS: dict[str, dict[str, Any]] = {
    "sequential": {"two_streams": True},
    "one stream": {},
    "lead 1": {"pipelined": True, "max_lead": 1},
    "lead 6": {"pipelined": True, "max_lead": 6},
    "not awaited": {"pipelined": True, "max_lead": 3, "num_awaited": 0},
}


def with_hole(model: PositionedTableModel) -> PositionedTableModel:
    model.tables[:, :, 7] = float("-inf")
    return model


def on_device(seed: int, **options: Any) -> dict[str, Any]:
    return {"new_stream": VirtualDevice(seed).stream, "residency": DeviceResidency(), **options}


class TestEquality:
    @pytest.mark.parametrize("loop", LOOPS)
    @pytest.mark.parametrize("name", OPTIONS)
    @pytest.mark.parametrize("kind", DRAFTS)
    async def test_every_draft_gives_the_targets_own_tokens(self, kind: str, name: str, loop: str) -> None:
        request = request_of(PROMPT, 24, **OPTIONS[name])
        plain = await decode(target_model(), request)
        for gamma in (1, 5):
            output = await decode(
                target_model(), request, [model_proposer(DRAFTS[kind](), gamma)], **on_device(gamma, **LOOPS[loop])
            )
            assert output.ids == plain.ids == one_token_decoding(target_model(), request)
            assert output.logprobs == plain.logprobs
            assert output.num_proposed + output.num_hits + output.num_misses > 0
            check_reports(output, 24)

    @pytest.mark.parametrize("loop", LOOPS)
    @pytest.mark.parametrize("name", ["sampled", "everything"])
    async def test_on_threads(self, name: str, loop: str) -> None:
        request = request_of(PROMPT, 40, **OPTIONS[name])
        output = await decode(
            target_model(),
            request,
            [model_proposer(close_model(), 4)],
            residency=DeviceResidency(),
            new_stream=thread_stream,
            **LOOPS[loop],
        )
        assert output.ids == one_token_decoding(target_model(), request)
        if loop != "not awaited":
            # A target that never waits may find nothing proposed in time.
            assert 0 < output.num_accepted < output.num_proposed
        check_reports(output, 40)

    @pytest.mark.parametrize("gamma", [0, 8])
    @pytest.mark.parametrize("loop", LOOPS)
    async def test_no_proposals_and_the_longest(self, loop: str, gamma: int) -> None:
        request = request_of(PROMPT, 40, temperature=1.0, seed=3)
        output = await decode(
            target_model(), request, [model_proposer(close_model(), gamma)], **on_device(gamma, **LOOPS[loop])
        )
        assert output.ids == one_token_decoding(target_model(), request)
        assert (output.num_proposed + output.num_hits + output.num_misses > 0) == (gamma > 0)

    @pytest.mark.parametrize("rule", Verification)
    @pytest.mark.parametrize("name", OPTIONS)
    @pytest.mark.parametrize("kind", ["same", "close", "hole"])
    async def test_sequential_rounds_are_those_of_the_host(self, kind: str, name: str, rule: Verification) -> None:
        # Blocks do not depend on time, so that both rules draw the same tokens from the same noise.
        for seed, gamma in ((0, 2), (1, 5)):
            request = request_of(PROMPT, 30, **{**OPTIONS[name], "seed": seed, "verification": rule})
            host, device = [
                await decode(target_model(), request, [model_proposer(DRAFTS[kind](), gamma)], **options)
                for options in ({}, on_device(seed))
            ]
            assert device.ids == host.ids
            assert device.logprobs == host.logprobs
            assert [(report.num_proposed, report.num_accepted) for report in device.reports] == [
                (report.num_proposed, report.num_accepted) for report in host.reports
            ]

    @pytest.mark.parametrize("loop", LOOPS)
    @pytest.mark.parametrize("prompt", [(3,), (3, 1)])
    async def test_shortest_prompts(self, prompt: tuple[int, ...], loop: str) -> None:
        request = request_of(prompt, 20, temperature=1.0, seed=4)
        output = await decode(
            target_model(), request, [model_proposer(target_model(), 3)], **on_device(1, **LOOPS[loop])
        )
        assert output.ids == one_token_decoding(target_model(), request)
        assert output.num_accepted == output.num_proposed > 0
        assert output.num_misses == 0

    @pytest.mark.parametrize("loop", LOOPS)
    async def test_many_requests_in_turn(self, loop: str) -> None:
        generator = random.Random(4)
        async with rigged(
            target_model(), [model_proposer(new_model(2, max_block=5), 3)], **on_device(5, **LOOPS[loop])
        ) as rig:
            text: list[int] = list(PROMPT)
            for turn in range(25):
                start = generator.choice((len(text), len(text) // 2, 0))
                prompt = [*text[:start], *(generator.randrange(VOCAB) for _ in range(generator.randint(1, 12)))]
                penalty = {"repetition_penalty": 1.3} if turn % 3 == 0 else {}
                request = request_of(prompt, generator.randint(1, 12), temperature=1.0, seed=turn, **penalty)
                output = await rig.run(request)
                assert output.ids == one_token_decoding(target_model(), request)
                text = [*prompt, *output.ids][:60]

    @pytest.mark.parametrize("warmup_tokens", [0, 1, 5, 100])
    @pytest.mark.parametrize("loop", LOOPS)
    async def test_warm_up_is_plain_and_changes_nothing(self, loop: str, warmup_tokens: int) -> None:
        request = request_of(PROMPT, 30, temperature=1.0, seed=2)
        output = await decode(
            target_model(),
            request,
            [model_proposer(target_model(), 4)],
            **on_device(warmup_tokens, warmup_tokens=warmup_tokens, **LOOPS[loop]),
        )
        assert output.ids == one_token_decoding(target_model(), request)
        plain = [report for report in output.reports[:warmup_tokens] if not report.num_proposed and report.hit is None]
        assert len(plain) == min(warmup_tokens, 30)
        # What the target wrote alone is read before anything is drafted, so that nothing is refused.
        assert output.num_misses == 0
        assert (output.num_proposed == output.num_accepted > 0) == (warmup_tokens < 30)


class TestPerfectDraft:
    @pytest.mark.parametrize("seed", range(3))
    @pytest.mark.parametrize("rule", Verification)
    @pytest.mark.parametrize("lead", [1, 4, 8])
    async def test_every_guess_is_a_hit(self, lead: int, rule: Verification, seed: int) -> None:
        request = request_of(PROMPT, 150, temperature=1.0, verification=rule)
        output = await decode(
            target_model(),
            request,
            [model_proposer(target_model(), 4)],
            **on_device(seed, pipelined=True, max_lead=lead),
        )
        assert output.num_accepted == output.num_proposed
        assert output.num_misses == 0
        assert output.num_hits > 15

    @pytest.mark.parametrize("rule", Verification)
    async def test_a_sequential_draft_reads_two_tokens_a_step_and_nothing_else(self, rule: Verification) -> None:
        draft = target_model()
        request = request_of(PROMPT, 151, temperature=1.0, verification=rule)
        output = await decode(target_model(), request, [model_proposer(draft, 4)], **on_device(0))
        assert output.num_accepted == output.num_proposed == 120
        assert draft.num_steps == 120
        assert draft.num_calls == 120 + 1

    @pytest.mark.parametrize("loop", LOOPS)
    @pytest.mark.parametrize("script", [(3, 0, 0, 3), (0, 5), (2, 8, 0, 1)])
    async def test_rounds_without_proposals_in_between_cost_no_acceptance(
        self, script: tuple[int, ...], loop: str
    ) -> None:
        output = await decode(
            target_model(),
            request_of(PROMPT, 100, temperature=1.0),
            [model_proposer(target_model(), ScriptedGamma(*script))],
            **on_device(2, **LOOPS[loop]),
        )
        assert output.num_proposed + output.num_hits > 20
        assert output.num_proposed == output.num_accepted
        assert output.num_misses == 0

    @pytest.mark.parametrize("loop", LOOPS)
    async def test_a_draft_that_was_silent_for_long_catches_up(self, loop: str) -> None:
        draft = target_model(max_block=4)
        output = await decode(
            target_model(),
            request_of(PROMPT, 100, temperature=1.0),
            [model_proposer(draft, ScriptedGamma(*[0] * 40, *[3] * 1000))],
            **on_device(3, **LOOPS[loop]),
        )
        assert output.num_proposed == output.num_accepted > 10
        assert output.num_misses == 0
        # What was written meanwhile is read in blocks of four, not token by token.
        assert draft.num_calls - draft.num_steps <= (len(PROMPT) + 60) // 4 + 5


class TestLimits:
    @pytest.mark.parametrize("loop", LOOPS)
    @pytest.mark.parametrize("max_tokens", range(1, 8))
    async def test_the_exact_count(self, max_tokens: int, loop: str) -> None:
        request = request_of(PROMPT, max_tokens)
        output = await decode(
            target_model(), request, [model_proposer(target_model(), 8)], **on_device(max_tokens, **LOOPS[loop])
        )
        assert output.ids == one_token_decoding(target_model(), request)
        assert len(output.ids) == max_tokens

    @pytest.mark.parametrize("loop", LOOPS)
    @pytest.mark.parametrize("capacity", [len(PROMPT) + 2, 24])
    async def test_a_draft_with_less_context(self, capacity: int, loop: str) -> None:
        request = request_of(PROMPT, 30, temperature=1.0)
        draft = target_model()
        output = await decode(
            target_model(), request, [model_proposer(draft, 5, capacity=capacity)], **on_device(1, **LOOPS[loop])
        )
        assert output.ids == one_token_decoding(target_model(), request)
        assert output.num_proposed > 0
        # Tokens are drawn for positions within its context only.
        assert draft.num_steps < capacity

    @pytest.mark.parametrize("loop", LOOPS)
    @pytest.mark.parametrize("index", range(6))
    async def test_a_stop_anywhere_in_a_block(self, index: int, loop: str) -> None:
        text = one_token_decoding(target_model(), request_of(PROMPT, 12, temperature=1.0, seed=8))
        request = request_of(PROMPT, 12, temperature=1.0, seed=8, stop_ids=frozenset({text[index]}))
        output = await decode(
            target_model(), request, [model_proposer(target_model(), 5)], **on_device(index, **LOOPS[loop])
        )
        assert output.ids == text[: text.index(text[index]) + 1]

    @pytest.mark.parametrize("loop", LOOPS)
    async def test_a_token_that_the_draft_does_not_know_ends_its_drafting(self, loop: str) -> None:
        # Ids from 10 on have no row in the draft's tables: reading one would raise.
        request = request_of(PROMPT, 40, temperature=1.0, seed=1)
        wanted = one_token_decoding(target_model(), request)
        assert max(wanted) >= VOCAB - 2
        draft = new_model(1, vocab_size=VOCAB - 2)
        output = await decode(target_model(), request, [model_proposer(draft, 3)], **on_device(0, **LOOPS[loop]))
        assert output.ids == wanted
        first = next(index for index, token_id in enumerate(wanted) if token_id >= VOCAB - 2)
        assert draft.num_steps <= first + 20

    async def test_a_prompt_that_the_draft_does_not_know(self) -> None:
        request = request_of((3, VOCAB - 1, 2), 10)
        draft = new_model(1, vocab_size=VOCAB - 2)
        output = await decode(target_model(), request, [model_proposer(draft, 3)], **on_device(0, pipelined=True))
        assert output.ids == one_token_decoding(target_model(), request)
        assert (draft.num_calls, output.num_proposed) == (0, 0)


class TestRollback:
    @pytest.mark.parametrize("loop", LOOPS)
    async def test_caches_hold_what_they_say(self, loop: str) -> None:
        async with rigged(target_model(), [model_proposer(close_model(), 4)], **on_device(3, **LOOPS[loop])) as rig:
            draft = rig.proposers[0].lane  # type: ignore[attr-defined]  # a model's
            caches = (rig.target._cache, draft._cache)
            for index in range(3):
                request = request_of(PROMPT[index:], 40, temperature=1.0, seed=index)
                output = await rig.run(request)
                assert 0 < output.num_accepted < output.num_proposed
                await rig.idle()
                text = [*request.prompt_ids, *output.ids]
                assert (rig.target._cache, draft._cache) == caches
                assert rig.target._held_ids == text[:-1]
                for lane in (rig.target, draft):
                    held = lane._held_ids
                    assert held == lane._cache.token_ids[: lane._cache.length]
                    assert held == text[: len(held)]
                assert draft.num_held > len(text) - 12

    async def test_the_target_reads_nothing_twice(self) -> None:
        target = target_model()
        output = await decode(
            target,
            request_of(PROMPT, 40, temperature=1.0),
            [model_proposer(new_model(2), 4)],
            **on_device(1, pipelined=True),
        )
        assert target.num_calls == len(output.reports)

    async def test_adaptive_gamma_gives_a_useless_draft_up(self) -> None:
        target, draft = target_model(), target_model()
        draft.tables *= -1
        output = await decode(
            target, request_of(PROMPT, 300), [model_proposer(draft, adaptive(8))], **on_device(3, pipelined=True)
        )
        assert sum(report.num_proposed for report in output.reports[100:]) <= 20
        assert draft.num_calls < 250


class TestDamage:
    @pytest.mark.parametrize("loop", LOOPS)
    @pytest.mark.parametrize("rule", Verification)
    async def test_a_draft_without_finite_rows_is_told_of(self, rule: Verification, loop: str) -> None:
        draft = target_model()
        draft.tables[0, PROMPT[-1]] = float("nan")
        request = request_of(PROMPT, 10, temperature=1.0, verification=rule)
        async with rigged(target_model(), [model_proposer(draft, 3)], **on_device(0, **LOOPS[loop])) as rig:
            with pytest.raises(NonFiniteLogitsError, match="the draft's weights are damaged"):
                await rig.run(request)
            draft.tables[:] = target_model().tables
            assert (await rig.run(request_of(PROMPT, 10))).ids == one_token_decoding(
                target_model(), request_of(PROMPT, 10)
            )

    @pytest.mark.parametrize("loop", LOOPS)
    async def test_a_target_without_finite_rows_is_told_of(self, loop: str) -> None:
        target = target_model()
        target.tables[0, PROMPT[-1]] = float("nan")
        with pytest.raises(NonFiniteLogitsError, match=f"position {len(PROMPT)}"):
            await decode(
                target, request_of(PROMPT, 10), [model_proposer(target_model(), 3)], **on_device(0, **LOOPS[loop])
            )


def test_the_host_keeps_no_counts_of_its_own() -> None:
    for residency, keeps in ((None, True), (DeviceResidency(), False)):
        lane = Lane("target", target_model(), VirtualDevice().stream("target"), capacity=32)
        verifier = Verifier("loop", lane, max_gamma=2, warmup_tokens=0, residency=residency)
        history = verifier.prepare(request_of(PROMPT, 4, presence_penalty=0.5)).start_history()
        assert (history.counts is not None) is keeps
        assert history.ids() == list(PROMPT)


class TestRefused:
    def test_models_whose_positions_are_numbers(self) -> None:
        device = VirtualDevice(0)
        stream = device.stream("all")
        draft = TableModel(vocab_size=VOCAB)
        proposer = ModelProposer(Lane("draft", draft, stream, capacity=8), FixedGamma(2))
        lane = Lane("target", target_model(), stream, capacity=8)
        with pytest.raises(UnsupportedModelError, match=r"draft 'table' \(TableModel\) cannot take positions"):
            SequentialLoop(lane, stream, [proposer], residency=DeviceResidency())

    @pytest.mark.parametrize("others", [[], [model_proposer(target_model(), 2)]])
    def test_any_but_one_model(self, others: list[Any]) -> None:
        device = VirtualDevice(0)
        stream = device.stream("all")
        lane = Lane("target", target_model(), stream, capacity=8)
        proposers = [new(stream) for new in (ngram_proposer(2), *others)]
        with pytest.raises(ValueError, match="exactly one draft source, a model, got 'ngram'"):
            PipelinedLoop(lane, stream, proposers, residency=DeviceResidency())

    async def test_no_source_is_plain_decoding(self) -> None:
        request = request_of(PROMPT, 12, temperature=1.0)
        for options in LOOPS.values():
            output = await decode(target_model(), request, [], **on_device(0, **options))
            assert output.ids == one_token_decoding(target_model(), request)


def test_a_table_on_the_device_is_the_table() -> None:
    # What all of the above rests on: enqueued calls give the rows that whole sequences give.
    model = target_model()
    cache = model.new_cache(32)
    text = list(PROMPT)
    for index, token_id in enumerate(text):
        rows_RV = model.forward_at(
            torch.tensor([text[max(0, index - 1)], token_id]),
            torch.tensor([max(0, index - 1), index]),
            cache,
            key_length=index + 1,
            num_logits=1,
        )
        assert torch.equal(rows_RV[0], model.logits_after(text[: index + 1]))
