"""The pipelined loop: where it ends. What was drafted past the end must leave no trace."""

from __future__ import annotations

import pytest

from scheduler import FinishReason, Verification, VirtualDevice
from tests.support.loops import decode, model_proposer, one_token_decoding, request_of, rigged
from tests.support.sequential_cases import PROMPT, check_reports, sources, target_model
from tests.support.table_model import TableModel


def wide_model() -> TableModel:
    """Enough tokens that a greedy run does not soon repeat one."""
    return TableModel(vocab_size=300, seed=21)


@pytest.fixture(scope="module")
def greedy_ids() -> list[int]:
    ids = one_token_decoding(wide_model(), request_of((17,), 14))
    assert len(set(ids)) == 14, "the test needs a run without repetitions"
    return ids


class TestStops:
    @pytest.mark.parametrize("index", range(14))
    @pytest.mark.parametrize("gamma", [1, 5, 8])
    @pytest.mark.parametrize("num_awaited", [0, 5])
    async def test_at_each_index_of_a_block(
        self, greedy_ids: list[int], num_awaited: int, gamma: int, index: int
    ) -> None:
        request = request_of((17,), 14, stop_ids=frozenset({greedy_ids[index]}), num_logprobs=0)
        output = await decode(
            wide_model(),
            request,
            [model_proposer(wide_model(), gamma)],
            pipelined=True,
            new_stream=VirtualDevice(index).stream,
            num_awaited=num_awaited,
        )
        assert output.ids == greedy_ids[: index + 1]
        assert len(output.logprobs) == index + 1
        assert output.reports[-1].finish_reason is FinishReason.STOP
        check_reports(output, 14)

    async def test_the_request_behind_a_stop_is_right(self, greedy_ids: list[int]) -> None:
        # The draft ran past the stop, and the target may have accepted tokens behind it.
        async with rigged(
            wide_model(),
            [model_proposer(wide_model(), 5)],
            pipelined=True,
            new_stream=VirtualDevice(2).stream,
            num_awaited=5,
        ) as rig:
            for index in range(14):
                stopped = request_of((17,), 14, stop_ids=frozenset({greedy_ids[index]}))
                assert (await rig.run(stopped)).ids == greedy_ids[: index + 1]
                other = request_of((17, *greedy_ids[: index + 1], 5), 6)
                output = await rig.run(other)
                assert output.ids == one_token_decoding(wide_model(), other)
                assert output.num_accepted == output.num_proposed

    @pytest.mark.parametrize("min_tokens", [1, 3, 4, 7, 12])
    @pytest.mark.parametrize("seed", range(3))
    async def test_not_before_min_tokens(self, greedy_ids: list[int], seed: int, min_tokens: int) -> None:
        request = request_of((17,), 14, stop_ids=frozenset({greedy_ids[3]}), min_tokens=min_tokens)
        output = await decode(
            wide_model(),
            request,
            [model_proposer(wide_model(), 4)],
            pipelined=True,
            new_stream=VirtualDevice(seed).stream,
        )
        assert output.ids == one_token_decoding(wide_model(), request)
        assert len(output.ids) >= min_tokens


class TestLimits:
    @pytest.mark.parametrize("max_tokens", range(1, 8))
    @pytest.mark.parametrize("rule", Verification)
    @pytest.mark.parametrize("num_awaited", [0, 8])
    async def test_exactly_max_tokens_with_a_perfect_draft(
        self, num_awaited: int, rule: Verification, max_tokens: int
    ) -> None:
        request = request_of(PROMPT, max_tokens, temperature=1.0, verification=rule)
        output = await decode(
            target_model(),
            request,
            sources("same", 8),
            pipelined=True,
            new_stream=VirtualDevice(max_tokens).stream,
            num_awaited=num_awaited,
        )
        assert len(output.ids) == max_tokens
        assert output.reports[-1].finish_reason is FinishReason.LENGTH
        assert output.num_accepted == output.num_proposed
        # Nothing is drafted that could not be kept, but where there is place for a single token, which is not guessed.
        assert output.num_discarded == (max_tokens == 1)
        assert output.num_proposed + output.num_hits <= max_tokens
        check_reports(output, max_tokens)

    @pytest.mark.parametrize("room", range(6))
    @pytest.mark.parametrize("kind", ["none", "ngram", "same", "unrelated", "half the context"])
    async def test_the_contexts_end(self, kind: str, room: int) -> None:
        prompt = (PROMPT * 4)[:40]
        request = request_of(prompt, 50, temperature=1.0, seed=1)
        output = await decode(
            target_model(),
            request,
            sources(kind, 8),
            pipelined=True,
            new_stream=VirtualDevice(room).stream,
            capacity=40 + room,
            num_awaited=room % 3,
        )
        assert output.ids == one_token_decoding(target_model(), request)[: max(room, 1)]
        assert output.reports[-1].finish_reason is FinishReason.LENGTH

    @pytest.mark.parametrize("draft_capacity", [1, 2, 11, 12, 13, 20])
    @pytest.mark.parametrize("num_awaited", [0, 4])
    async def test_a_draft_with_less_context_stops_proposing(self, num_awaited: int, draft_capacity: int) -> None:
        request = request_of(PROMPT, 30, temperature=1.0, seed=1)
        output = await decode(
            target_model(),
            request,
            [model_proposer(target_model(), 4, capacity=draft_capacity)],
            pipelined=True,
            new_stream=VirtualDevice(draft_capacity).stream,
            num_awaited=num_awaited,
        )
        assert output.ids == one_token_decoding(target_model(), request)
        assert output.num_misses == 0
        assert (output.num_proposed + output.num_hits > 0) == (draft_capacity > len(PROMPT))

    @pytest.mark.parametrize("max_block", [1, 2, 3, 7])
    @pytest.mark.parametrize("seed", range(3))
    async def test_narrow_calls(self, seed: int, max_block: int) -> None:
        request = request_of(PROMPT, 20, temperature=1.0, seed=1)
        target = target_model(max_block=max_block)
        output = await decode(
            target,
            request,
            [model_proposer(target_model(max_block=max_block), 8)],
            pipelined=True,
            new_stream=VirtualDevice(seed).stream,
            num_awaited=2,
        )
        assert output.ids == one_token_decoding(target, request)
        assert 0 <= max(report.num_proposed for report in output.reports) <= max_block - 1
