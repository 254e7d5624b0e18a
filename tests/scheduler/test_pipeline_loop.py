"""The pipelined loop: equal to one-token decoding with every draft, perfect with a perfect one, right after rollbacks.

Most runs are on virtual streams, each seed in another order; the fuzz does the same with tiny models and more chance.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from scheduler import (
    FixedGamma,
    GammaPolicy,
    Lane,
    ModelProposer,
    PipelinedLoop,
    Proposal,
    Proposer,
    SamplingLaw,
    Stream,
    TokenHistory,
    Verification,
    VirtualDevice,
)
from tests.support.loops import decode, model_proposer, one_token_decoding, request_of, rigged, thread_stream
from tests.support.sequential_cases import (
    KINDS,
    OPTIONS,
    PROMPT,
    VOCAB,
    adaptive,
    check_reports,
    new_model,
    sources,
    target_model,
)

SEEDS = range(3)


def pipelined(seed: int, **options: Any) -> dict[str, Any]:
    """Options of a rig whose streams are virtual."""
    return {"pipelined": True, "new_stream": VirtualDevice(seed).stream, **options}


class ScriptedGamma(FixedGamma):
    """Proposes what the script says, over and over."""

    def __init__(self, *gammas: int) -> None:
        super().__init__(max(gammas))
        self._gammas = gammas
        self.num_chosen = 0

    def choose(self) -> int:
        self.num_chosen += 1
        return self._gammas[(self.num_chosen - 1) % len(self._gammas)]

    def observe(self, num_proposed: int, num_accepted: int) -> None:
        """Nothing to learn."""


class UncachedProposer(ModelProposer):
    """Compares every proposal, and the q it was drawn from, with that of a fresh draft which reads the whole text."""

    def __init__(self, lane: Lane, policy: GammaPolicy) -> None:
        super().__init__(lane, policy)
        self._policy_of_fresh = policy
        self.num_compared = 0

    def extend(self, law: SamplingLaw, history: TokenHistory, chain_ids: Sequence[int], max_tokens: int) -> Proposal:
        proposal = super().extend(law, history, chain_ids, max_tokens)
        fresh = ModelProposer(
            Lane("fresh", self._lane.model, self._lane.stream, capacity=self._lane.capacity), self._policy_of_fresh
        ).extend(law, history, chain_ids, max_tokens)
        assert proposal.token_ids == fresh.token_ids
        if proposal.probabilities is not None and fresh.probabilities is not None:
            for mine_V, other_V in zip(proposal.probabilities, fresh.probabilities, strict=True):
                assert torch.equal(mine_V, other_V)
        self.num_compared += len(proposal)
        return proposal


class TestEquality:
    @pytest.mark.parametrize("name", OPTIONS)
    @pytest.mark.parametrize("kind", KINDS)
    async def test_every_draft_gives_the_targets_own_tokens(self, kind: str, name: str) -> None:
        request = request_of(PROMPT, 24, **OPTIONS[name])
        plain = await decode(target_model(), request)
        assert plain.ids == one_token_decoding(target_model(), request)
        for gamma, lead in ((0, 3), (1, 1), (3, 6), (8, 2)):
            output = await decode(
                target_model(), request, sources(kind, gamma), **pipelined(10 * gamma + lead, max_lead=lead)
            )
            assert output.ids == plain.ids
            assert output.logprobs == plain.logprobs
            assert (output.num_proposed + output.num_hits + output.num_misses > 0) == (gamma > 0 and kind != "none")
            check_reports(output, 24)

    @pytest.mark.parametrize("kind", ["ngram", "same", "unrelated", "half the context", "ngram, then a model"])
    async def test_on_threads(self, kind: str) -> None:
        request = request_of(PROMPT, 40, temperature=1.0, seed=3)
        wanted = one_token_decoding(target_model(), request)
        for num_awaited in (0, 2):
            output = await decode(
                target_model(),
                request,
                sources(kind, 4),
                pipelined=True,
                new_stream=thread_stream,
                num_awaited=num_awaited,
            )
            assert output.ids == wanted
            check_reports(output, 40)

    @pytest.mark.parametrize("seed", SEEDS)
    async def test_rejection_repeats_itself_where_the_order_does(self, seed: int) -> None:
        request = request_of(PROMPT, 30, temperature=1.0, seed=9, verification=Verification.REJECTION)
        first, second = [
            await decode(target_model(), request, sources("unrelated", 3), **pipelined(seed)) for _ in range(2)
        ]
        assert first.ids == second.ids
        check_reports(first, 30)

    @pytest.mark.parametrize("warmup_tokens", [0, 1, 5, 100])
    @pytest.mark.parametrize("seed", SEEDS)
    async def test_warm_up_is_plain_and_changes_nothing(self, seed: int, warmup_tokens: int) -> None:
        request = request_of(PROMPT, 30, temperature=1.0, seed=2)
        output = await decode(
            target_model(), request, sources("same", 4), **pipelined(seed, warmup_tokens=warmup_tokens, num_awaited=2)
        )
        assert output.ids == one_token_decoding(target_model(), request)
        plain = [report for report in output.reports[:warmup_tokens] if not report.num_proposed and report.hit is None]
        assert len(plain) == min(warmup_tokens, 30)
        assert (output.num_proposed > 0) == (warmup_tokens < 30)

    async def test_many_requests_in_turn(self) -> None:
        generator = random.Random(4)
        async with rigged(target_model(), sources("unrelated", 3), **pipelined(5)) as rig:
            text: list[int] = list(PROMPT)
            for turn in range(25):
                start = generator.choice((len(text), len(text) // 2, 0))
                prompt = [*text[:start], *(generator.randrange(VOCAB) for _ in range(generator.randint(1, 12)))]
                request = request_of(prompt, generator.randint(1, 12), temperature=1.0, seed=turn)
                output = await rig.run(request)
                assert output.ids == one_token_decoding(target_model(), request)
                text = [*prompt, *output.ids][:60]


class TestPerfectDraft:
    @pytest.mark.parametrize("seed", SEEDS)
    @pytest.mark.parametrize("temperature", [0.0, 1.0])
    @pytest.mark.parametrize("rule", Verification)
    async def test_every_guess_is_a_hit_for_fifty_rounds(
        self, rule: Verification, temperature: float, seed: int
    ) -> None:
        request = request_of(PROMPT, 450, temperature=temperature, verification=rule)
        async with rigged(target_model(), [model_proposer(target_model(), 4)], **pipelined(seed)) as rig:
            await rig.loop.prefill(request)
            num_rounds = 0
            async for report in rig.loop.rounds(request):
                assert report.num_accepted == report.num_proposed
                assert report.hit is True
                assert report.num_discarded == 0
                num_rounds += 1
                if num_rounds == 50:
                    break

    @pytest.mark.parametrize("seed", SEEDS)
    @pytest.mark.parametrize("rule", Verification)
    @pytest.mark.parametrize("script", [(3, 0, 0, 3), (0, 5), (2, 8, 0, 1)])
    async def test_rounds_without_proposals_in_between_cost_no_acceptance(
        self, script: tuple[int, ...], rule: Verification, seed: int
    ) -> None:
        request = request_of(PROMPT, 150, temperature=1.0, verification=rule)
        output = await decode(
            target_model(), request, [model_proposer(target_model(), ScriptedGamma(*script))], **pipelined(seed)
        )
        assert output.num_proposed == output.num_accepted > 0
        assert output.num_misses == 0
        check_reports(output, 150)

    @pytest.mark.parametrize("seed", SEEDS)
    async def test_a_draft_that_was_silent_for_long_catches_up(self, seed: int) -> None:
        draft = target_model(max_block=4)
        policy = ScriptedGamma(*[0] * 40, *[3] * 1000)
        output = await decode(
            target_model(),
            request_of(PROMPT, 100, temperature=1.0),
            [model_proposer(draft, policy)],
            **pipelined(seed, num_awaited=1),
        )
        assert output.num_proposed == output.num_accepted > 10
        # What was written meanwhile is read in blocks of four, not token by token.
        assert draft.num_calls <= (len(PROMPT) + 45) // 4 + 70


class TestRollback:
    @pytest.mark.parametrize("seed", SEEDS)
    @pytest.mark.parametrize("rule", Verification)
    @pytest.mark.parametrize("gamma", [1, 3, 6])
    async def test_after_partial_rejections_the_draft_equals_an_uncached_one(
        self, gamma: int, rule: Verification, seed: int
    ) -> None:
        proposers: list[UncachedProposer] = []

        def new(stream: Stream) -> Proposer:
            draft = new_model(1, sharpness=1.2)
            draft.tables[0, 3:6] = new_model(2).tables[0, 3:6]
            proposers.append(UncachedProposer(Lane("draft", draft, stream, capacity=512), FixedGamma(gamma)))
            return proposers[0]

        async with rigged(target_model(), [new], **pipelined(seed, max_lead=gamma)) as rig:
            for index in range(3):
                request = request_of(PROMPT[index:], 40, temperature=1.0, seed=index, verification=rule)
                output = await rig.run(request)
                assert 0 < output.num_accepted < output.num_proposed
                check_reports(output, 40)
        assert proposers[0].num_compared > 60

    @pytest.mark.parametrize("seed", SEEDS)
    async def test_the_target_reads_nothing_twice(self, seed: int) -> None:
        target = target_model()
        request = request_of(PROMPT, 40, temperature=1.0)
        output = await decode(target, request, sources("unrelated", 4), **pipelined(seed))
        # One call a round, and the prompt along with the first.
        assert target.num_calls == len(output.reports)

    async def test_caches_keep_their_place(self) -> None:
        request = request_of(PROMPT, 60, temperature=1.0)
        async with rigged(target_model(), sources("unrelated", 4), **pipelined(1)) as rig:
            cache = rig.target._cache
            await rig.run(request)
            assert rig.target._cache is cache
            assert rig.target.num_held == len(PROMPT) + 60 - 1


class TestCost:
    @pytest.mark.parametrize("seed", SEEDS)
    @pytest.mark.parametrize("num_awaited", [0, 4])
    async def test_a_draft_that_is_never_right_costs_the_target_no_call(self, num_awaited: int, seed: int) -> None:
        target, draft = target_model(), target_model()
        draft.tables *= -1
        output = await decode(
            target, request_of(PROMPT, 100), [model_proposer(draft, 4)], **pipelined(seed, num_awaited=num_awaited)
        )
        assert output.num_accepted == output.num_hits == 0
        assert target.num_calls <= len(output.ids) + 1

    async def test_adaptive_gamma_gives_it_up_and_takes_it_back(self) -> None:
        target, draft = target_model(), target_model()
        right = draft.tables.clone()
        async with rigged(target, [model_proposer(draft, adaptive(8))], **pipelined(3, num_awaited=1)) as rig:
            draft.tables[:] = -right
            output = await rig.run(request_of(PROMPT, 300))
            assert target.num_calls <= 300 + 1
            assert sum(report.num_proposed for report in output.reports[100:]) <= 20
            assert draft.num_calls < 250
            draft.tables[:] = right
            output = await rig.run(request_of(PROMPT, 400))
        assert output.num_accepted + output.num_hits > 200

    @pytest.mark.parametrize("seed", SEEDS)
    async def test_what_was_drafted_is_used_up_or_discarded(self, seed: int) -> None:
        drafted = [0]

        class CountingProposer(ModelProposer):
            def extend(
                self, law: SamplingLaw, history: TokenHistory, chain_ids: Sequence[int], max_tokens: int
            ) -> Proposal:
                proposal = super().extend(law, history, chain_ids, max_tokens)
                drafted[0] += len(proposal)
                return proposal

        def new(stream: Stream) -> Proposer:
            return CountingProposer(Lane("draft", new_model(2), stream, capacity=512), FixedGamma(3))

        request = request_of(PROMPT, 60, temperature=1.0)
        output = await decode(target_model(), request, [new], **pipelined(seed, max_lead=4))
        num_counted = output.num_proposed + output.num_hits + output.num_discarded
        # What still ran when the last report was made may be missing.
        assert num_counted <= drafted[0] <= num_counted + 3 + 4 + 2
        assert output.num_discarded > 0


class TestSettings:
    @pytest.mark.parametrize(("name", "value"), [("max_lead", 0), ("num_awaited", -1)])
    def test_out_of_range(self, name: str, value: int) -> None:
        device = VirtualDevice(0)
        lane = Lane("target", target_model(), device.stream("target"), capacity=8)
        with pytest.raises(ValueError, match=f"{name} must be"):
            PipelinedLoop(lane, device.stream("draft"), [], **{name: value})

    @pytest.mark.parametrize(("name", "value"), [("max_lead", 2.0), ("num_awaited", True)])
    def test_of_the_wrong_type(self, name: str, value: object) -> None:
        device = VirtualDevice(0)
        lane = Lane("target", target_model(), device.stream("target"), capacity=8)
        with pytest.raises(TypeError, match=f"{name} must be an integer"):
            PipelinedLoop(lane, device.stream("draft"), [], **{name: value})
