"""The sequential loop: where it ends, how much it accepts, how often it calls the target, and what it reuses."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import torch

from scheduler import (
    FinishReason,
    FixedGamma,
    Leads,
    NgramProposer,
    Proposal,
    Proposer,
    SamplingLaw,
    Stream,
    TokenHistory,
    Verification,
)
from scheduler.gamma import IN_TURN
from scheduler.promise import Promise
from tests.support.loops import (
    decode,
    model_proposer,
    one_token_decoding,
    request_of,
    rigged,
)
from tests.support.sequential_cases import (
    PROMPT,
    VOCAB,
    adaptive,
    check_reports,
    sources,
    target_model,
)
from tests.support.table_model import TableCache, TableModel


def wide_model() -> TableModel:
    """Enough tokens that a greedy run does not soon repeat one."""
    return TableModel(vocab_size=300, seed=21)


class TestStops:
    @pytest.fixture
    def greedy_ids(self) -> list[int]:
        ids = one_token_decoding(wide_model(), request_of((17,), 14))
        assert len(set(ids)) == 14, "the test needs a run without repetitions"
        return ids

    @pytest.mark.parametrize("index", range(14))
    @pytest.mark.parametrize("gamma", [0, 1, 5, 8])
    async def test_at_each_index_of_a_block(self, greedy_ids: list[int], index: int, gamma: int) -> None:
        request = request_of((17,), 14, stop_ids=frozenset({greedy_ids[index]}), num_logprobs=0)
        output = await decode(wide_model(), request, [model_proposer(wide_model(), gamma)])
        assert output.ids == greedy_ids[: index + 1]
        assert len(output.logprobs) == index + 1
        assert output.reports[-1].finish_reason is FinishReason.STOP
        check_reports(output, 14)

    async def test_the_first_of_several_counts(self, greedy_ids: list[int]) -> None:
        request = request_of((17,), 14, stop_ids=frozenset({greedy_ids[9], greedy_ids[3], greedy_ids[6]}))
        output = await decode(wide_model(), request, [model_proposer(wide_model(), 5)])
        assert output.ids == greedy_ids[:4]

    async def test_a_stop_id_in_the_prompt_is_no_stop(self, greedy_ids: list[int]) -> None:
        output = await decode(
            wide_model(), request_of((17,), 14, stop_ids=frozenset({17})), [model_proposer(wide_model(), 5)]
        )
        assert output.ids == greedy_ids

    async def test_accepted_tokens_behind_the_stop_are_not_counted(self, greedy_ids: list[int]) -> None:
        request = request_of((17,), 14, stop_ids=frozenset({greedy_ids[2]}))
        output = await decode(wide_model(), request, [model_proposer(wide_model(), 8)])
        (report,) = output.reports
        assert (report.num_proposed, report.num_accepted, len(report.token_ids)) == (8, 3, 3)

    @pytest.mark.parametrize("min_tokens", [0, 1, 3, 4, 7, 12])
    @pytest.mark.parametrize("gamma", [0, 2, 8])
    async def test_not_before_min_tokens(self, greedy_ids: list[int], gamma: int, min_tokens: int) -> None:
        request = request_of((17,), 14, stop_ids=frozenset({greedy_ids[3]}), min_tokens=min_tokens)
        output = await decode(wide_model(), request, [model_proposer(wide_model(), gamma)])
        assert output.ids == one_token_decoding(wide_model(), request)
        assert len(output.ids) >= min_tokens
        assert (output.ids == greedy_ids[:4]) == (min_tokens <= 3)


class TestLimits:
    @pytest.mark.parametrize("max_tokens", range(1, 8))
    @pytest.mark.parametrize("rule", Verification)
    async def test_exactly_max_tokens_with_a_perfect_draft(self, max_tokens: int, rule: Verification) -> None:
        request = request_of(PROMPT, max_tokens, temperature=1.0, verification=rule)
        target = target_model()
        output = await decode(target, request, sources("same", 8))
        assert len(output.ids) == max_tokens
        assert output.reports[-1].finish_reason is FinishReason.LENGTH
        # Nothing is proposed that could not be kept, so a perfect draft needs one round.
        assert len(output.reports) == 1
        assert output.num_proposed == output.num_accepted == max_tokens - 1

    @pytest.mark.parametrize("room", range(6))
    @pytest.mark.parametrize("kind", ["none", "ngram", "same", "unrelated", "half the context"])
    async def test_the_contexts_end(self, kind: str, room: int) -> None:
        prompt = (PROMPT * 4)[:40]
        request = request_of(prompt, 50, temperature=1.0, seed=1)
        output = await decode(target_model(), request, sources(kind, 8), capacity=40 + room)
        # A full context still gives the token that its last row predicts.
        assert output.ids == one_token_decoding(target_model(), request)[: max(room, 1)]
        assert output.reports[-1].finish_reason is FinishReason.LENGTH

    @pytest.mark.parametrize("room", range(6))
    async def test_nothing_is_proposed_that_the_context_could_not_keep(self, room: int) -> None:
        request = request_of(PROMPT, 50, temperature=1.0, seed=1)
        output = await decode(target_model(), request, sources("same", 8), capacity=len(PROMPT) + room)
        assert len(output.reports) == 1
        assert output.num_proposed == output.num_accepted == max(room - 1, 0)

    async def test_policies_are_left_alone_where_nothing_may_be_proposed(self) -> None:
        # Being asked moves a policy on: plain rounds must not use up the pause before its next attempt.
        policy = ScriptedGamma(3)
        request = request_of(PROMPT, 20, temperature=1.0, seed=1)
        async with rigged(target_model(), [model_proposer(target_model(), policy)], warmup_tokens=5) as rig:
            await rig.loop.prefill(request)
            chosen = [(report.num_proposed, policy.num_chosen) async for report in rig.loop.rounds(request)]
        assert chosen[:7] == [(0, 0)] * 5 + [(3, 1), (3, 2)]

    @pytest.mark.parametrize("draft_capacity", [1, 2, 11, 12, 13, 20])
    async def test_a_draft_with_less_context_stops_proposing(self, draft_capacity: int) -> None:
        request = request_of(PROMPT, 30, temperature=1.0, seed=1)
        draft = target_model()
        output = await decode(target_model(), request, [model_proposer(draft, 4, capacity=draft_capacity)])
        assert output.ids == one_token_decoding(target_model(), request)
        last_proposed = max((index for index, report in enumerate(output.reports) if report.num_proposed), default=0)
        assert sum(len(report.token_ids) for report in output.reports[:last_proposed]) + len(PROMPT) <= max(
            draft_capacity, len(PROMPT)
        )
        assert (output.num_proposed > 0) == (draft_capacity > len(PROMPT))

    @pytest.mark.parametrize("max_block", [1, 2, 3, 7])
    async def test_narrow_calls(self, max_block: int) -> None:
        request = request_of(PROMPT, 20, temperature=1.0, seed=1)
        target = target_model(max_block=max_block)
        output = await decode(target, request, [model_proposer(target_model(max_block=max_block), 8)])
        assert output.ids == one_token_decoding(target, request)
        assert max(report.num_proposed for report in output.reports) == min(max_block - 1, 8)

    @pytest.mark.parametrize("max_gamma", [0, 1, 4])
    async def test_max_gamma_holds_for_every_source(self, max_gamma: int) -> None:
        output = await decode(
            target_model(), request_of(PROMPT, 30), sources("ngram, then a model", 8), max_gamma=max_gamma
        )
        assert max(report.num_proposed for report in output.reports) == max_gamma


class ScriptedGamma(FixedGamma):
    """Proposes what the script says, over and over."""

    def __init__(self, *gammas: int) -> None:
        super().__init__(max(gammas))
        self._gammas = gammas
        self.num_chosen = 0
        self.seen: list[tuple[int, int]] = []

    def choose(self) -> int:
        self.num_chosen += 1
        return self._gammas[(self.num_chosen - 1) % len(self._gammas)]

    def observe(self, num_proposed: int, num_accepted: int) -> None:
        self.seen.append((num_proposed, num_accepted))


class TestAcceptance:
    @pytest.mark.parametrize("two_streams", [False, True], ids=["one stream", "two streams"])
    @pytest.mark.parametrize("temperature", [0.0, 1.0])
    @pytest.mark.parametrize("rule", Verification)
    @pytest.mark.parametrize("script", [(4,), (1,), (3, 0, 0, 3), (0, 5), (2, 8, 0, 1)])
    async def test_identical_models_agree_in_every_round(
        self, script: tuple[int, ...], rule: Verification, temperature: float, two_streams: bool
    ) -> None:
        request = request_of(PROMPT, 400, temperature=temperature, verification=rule)
        policy = ScriptedGamma(*script)
        async with rigged(target_model(), [model_proposer(target_model(), policy)], two_streams=two_streams) as rig:
            await rig.loop.prefill(request)
            num_rounds = 0
            async for report in rig.loop.rounds(request):
                assert report.num_accepted == report.num_proposed == script[num_rounds % len(script)]
                num_rounds += 1
                if num_rounds == 50:
                    break
            # The draft's stream learns of a verdict on its own, behind its event.
            await rig.idle()
            assert policy.seen == [(gamma, gamma) for gamma in policy_script(script, 50) if gamma]

    @pytest.mark.parametrize("rule", Verification)
    async def test_each_source_learns_from_its_own_proposals(self, rule: Verification) -> None:
        ngram_policy, model_policy = ScriptedGamma(2), ScriptedGamma(3)

        def ngram(stream: Stream) -> Proposer:
            return NgramProposer(lambda: ngram_policy, min_match=2)

        output = await decode(
            target_model(),
            request_of(PROMPT, 60, temperature=1.0, verification=rule),
            [ngram, model_proposer(target_model(), model_policy)],
        )
        by_source: dict[int, list[tuple[int, int]]] = {0: [], 1: []}
        for report in output.reports[:-1]:
            if report.num_proposed:
                by_source[report.source].append((report.num_proposed, report.num_accepted))
        assert ngram_policy.seen[: len(by_source[0])] == by_source[0]
        assert model_policy.seen[: len(by_source[1])] == by_source[1]
        assert by_source[0]
        assert by_source[1]
        assert all(proposed == accepted for proposed, accepted in by_source[1])


def policy_script(script: tuple[int, ...], num_rounds: int) -> list[int]:
    return [script[index % len(script)] for index in range(num_rounds)]


class TestCalls:
    @pytest.mark.parametrize("kind", ["none", "ngram", "same", "unrelated", "adaptive"])
    async def test_the_target_is_called_once_a_round(self, kind: str) -> None:
        target = target_model(max_block=16)
        output = await decode(target, request_of(PROMPT * 8, 60, temperature=1.0), sources(kind, 4))
        num_prefill = -(-len(PROMPT) * 8 // 8)
        assert target.num_calls <= len(output.reports) + num_prefill
        assert len(output.reports) <= len(output.ids)

    async def test_a_draft_that_is_never_right_is_given_up_and_taken_back(self) -> None:
        target, draft = target_model(), target_model()
        right = draft.tables.clone()
        # Always the token that the target likes least.
        wrong = -right
        policy = adaptive(8)
        async with rigged(target, [model_proposer(draft, policy)]) as rig:
            draft.tables[:] = wrong
            output = await rig.run(request_of(PROMPT, 300))
            assert target.num_calls <= 300 + 2
            gammas = [report.num_proposed for report in output.reports]
            assert sum(gammas[100:]) <= 4
            assert draft.num_calls < 80

            draft.tables[:] = right
            output = await rig.run(request_of(PROMPT, 400))
            gammas = [report.num_proposed for report in output.reports]
            assert gammas[-3] == 8
            assert target.num_calls <= 300 + 400

    @pytest.mark.parametrize("max_block", [2, 4, 16])
    async def test_a_draft_far_behind_catches_up_however_narrow_its_calls(self, max_block: int) -> None:
        # While it proposes nothing it falls further behind than one call can read.
        target, draft = target_model(), target_model(max_block=max_block)
        right = draft.tables.clone()
        async with rigged(target, [model_proposer(draft, adaptive(8))]) as rig:
            draft.tables[:] = -right
            await rig.run(request_of(PROMPT, 200))
            draft.tables[:] = right
            output = await rig.run(request_of(PROMPT, 450))
        # Right again and cheap: the later part of the text is written in long blocks.
        assert sum(report.num_accepted for report in output.reports) > 100

    async def test_each_round_reports_what_its_draft_and_its_verify_took(self, monkeypatch: pytest.MonkeyPatch) -> None:
        # A clock that only models move: each call of the draft takes 3 ms, of the target 20 ms.
        now_s = [0.0]

        class TimedModel(TableModel):
            cost_s = 0.0

            def forward(self, token_ids_T: torch.Tensor, cache: TableCache, *, num_logits: int) -> torch.Tensor:
                now_s[0] += self.cost_s
                return super().forward(token_ids_T, cache, num_logits=num_logits)

        target, draft = TimedModel(max_block=64), TimedModel(max_block=64)
        target.cost_s, draft.cost_s = 0.020, 0.003
        monkeypatch.setattr("time.perf_counter", lambda: now_s[0])
        output = await decode(target, request_of((3, 1, 4), 17), [model_proposer(draft, 3)])
        assert [report.num_proposed for report in output.reports] == [3, 3, 3, 3, 0]
        assert [report.draft_ms for report in output.reports] == pytest.approx([9.0, 9.0, 9.0, 9.0, 0.0])
        assert [report.verify_ms for report in output.reports] == pytest.approx([20.0] * 5)

    async def test_the_time_of_a_draft_that_only_caught_up_counts(self) -> None:
        class Reader:
            name, buffers, instant, max_block, lead = "reader", (), False, 16, 0
            promise = Promise(acceptance=0.5)

            def begin(self, history: TokenHistory, leads: Leads = IN_TURN, gamma: int | None = None) -> None: ...

            def roll_back(self, length: int) -> None: ...

            def observe(self, num_proposed: int, num_accepted: int) -> None: ...

            def is_behind(self, history: TokenHistory) -> bool:
                return True

            def catch_up(self, history: TokenHistory) -> None: ...

            def choose(self, history: TokenHistory) -> int:
                return 4

            def explain(self) -> str:
                return "always behind"

            def extend(
                self, law: SamplingLaw, history: TokenHistory, chain_ids: Sequence[int], max_tokens: int
            ) -> Proposal:
                return Proposal(draft_ms=7.0)

        output = await decode(target_model(), request_of(PROMPT, 5), [lambda stream: Reader()])
        assert [report.draft_ms for report in output.reports] == [7.0, 7.0, 7.0, 7.0, 0.0]


class TestReuse:
    """The cache is kept from one request to the next, as far as the prompts agree."""

    @pytest.mark.parametrize("kind", ["none", "ngram", "same", "unrelated"])
    @pytest.mark.parametrize("rule", Verification)
    async def test_a_conversation_equals_fresh_runs(self, kind: str, rule: Verification) -> None:
        generator = random.Random(8)
        prompt = list(PROMPT)
        async with rigged(target_model(), sources(kind, 4), two_streams=True) as rig:
            held: list[int] = []
            for turn in range(12):
                request = request_of(prompt, 10, temperature=1.0, seed=turn, verification=rule)
                output = await rig.run(request)
                fresh = await decode(target_model(), request, sources(kind, 4))
                assert output.ids == fresh.ids
                assert output.prefill.num_prompt_tokens == len(prompt)
                common = next(
                    (i for i, (old, new) in enumerate(zip(held, prompt, strict=False)) if old != new),
                    min(len(held), len(prompt)),
                )
                # All of the earlier text but its last token may be held; one token is always left to read.
                assert output.prefill.num_reused_tokens == min(common, len(prompt) - 1)
                held = [*prompt, *output.ids][:-1]
                match turn % 4:
                    case 0:  # go on
                        prompt = [*prompt, *output.ids, generator.randrange(VOCAB)]
                    case 1:  # the very same again
                        pass
                    case 2:  # the beginning only
                        prompt = prompt[: len(prompt) // 2]
                    case 3:  # another ending
                        prompt = [*prompt[:-1], (prompt[-1] + 1) % VOCAB]

    @pytest.mark.parametrize("kind", ["same", "ngram"])
    async def test_the_same_prompt_twice(self, kind: str) -> None:
        request = request_of(PROMPT, 12, temperature=1.0, seed=3)
        async with rigged(target_model(), sources(kind, 4)) as rig:
            first, second = await rig.run(request), await rig.run(request)
        assert first.ids == second.ids
        assert first.num_proposed == second.num_proposed
        assert second.prefill.num_reused_tokens == len(PROMPT) - 1

    async def test_a_prompt_is_read_in_blocks(self) -> None:
        target = target_model(max_block=4)
        prompt = PROMPT * 3
        async with rigged(target, max_gamma=2) as rig:
            report = await rig.loop.prefill(request_of(prompt, 5))
            assert report.num_reused_tokens == 0
            assert len(prompt) - 3 < rig.target.num_held < len(prompt)
            assert target.num_calls == -(-rig.target.num_held // 4)

    async def test_greedy_after_sampled_after_greedy(self) -> None:
        async with rigged(target_model(), sources("unrelated", 4)) as rig:
            for options in ({}, {"temperature": 1.0, "seed": 4}, {"temperature": 1e-6}, {}):
                request = request_of(PROMPT, 15, **options)
                assert (await rig.run(request)).ids == one_token_decoding(target_model(), request)
