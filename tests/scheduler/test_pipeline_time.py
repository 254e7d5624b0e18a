"""The pipelined loop by a virtual clock: what overlaps, what the target waits for, and what a draft's pace decides.

A verify takes 20 ms and a draft step 3 ms, but for the tests that say otherwise; judging and settling take no time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import pytest

from scheduler import CostModel, TimelineEntry, VirtualDevice, summarize_timeline
from tests.support.loops import NewProposer, Output, decode, model_proposer, ngram_proposer, request_of
from tests.support.sequential_cases import PROMPT, new_model, target_model

VERIFY_MS, STEP_MS = 20.0, 3.0


def costs(step_ms: float = STEP_MS) -> CostModel:
    durations_ms = {"verify": VERIFY_MS, "draft": step_ms}
    return CostModel(duration_ms=lambda stream, label, value: durations_ms.get(label, 0.0))


async def timed(
    new_proposers: Sequence[NewProposer],
    *,
    step_ms: float = STEP_MS,
    max_tokens: int = 60,
    temperature: float = 1.0,
    **options: object,
) -> tuple[Output, tuple[TimelineEntry, ...]]:
    """One request on a device with a clock."""
    device = VirtualDevice(costs=costs(step_ms))
    request = request_of(PROMPT, max_tokens, temperature=temperature, seed=2)
    output = await decode(
        target_model(), request, new_proposers, **{"pipelined": True, "new_stream": device.stream, **options}
    )
    return output, device.timeline


def verifies(timeline: Iterable[TimelineEntry]) -> list[TimelineEntry]:
    return [entry for entry in timeline if entry.label == "verify"]


def gaps_ms(timeline: Iterable[TimelineEntry]) -> list[float]:
    """Between one verify and the next."""
    return [later.start_ms - earlier.end_ms for earlier, later in pairwise(verifies(timeline))]


def same_weights(gamma: int = 8) -> list[NewProposer]:
    return [model_proposer(target_model(), gamma)]


class TestNotWaiting:
    @pytest.mark.parametrize("max_lead", [2, 6])
    async def test_the_target_never_stands_still_beside_a_right_draft(self, max_lead: int) -> None:
        output, timeline = await timed(same_weights(), num_awaited=0, max_lead=max_lead)
        assert gaps_ms(timeline) == pytest.approx([0.0] * (len(output.reports) - 1))
        assert output.num_misses == 0

    async def test_nor_beside_a_draft_that_is_always_wrong(self) -> None:
        draft = target_model()
        draft.tables *= -1
        output, timeline = await timed([model_proposer(draft, 8)], num_awaited=0, temperature=0.0)
        assert gaps_ms(timeline) == pytest.approx([0.0] * (len(output.reports) - 1))
        # Not one token was accepted, and it took no longer than plain decoding.
        assert len(output.reports) == len(output.ids)
        assert verifies(timeline)[-1].end_ms == pytest.approx(len(output.ids) * VERIFY_MS)

    async def test_nor_beside_one_whose_every_step_takes_longer_than_a_block(self) -> None:
        # What it might wait for is a guess. It soon finds that this does not pay, and tries again less and less often.
        output, timeline = await timed(same_weights(), step_ms=3 * VERIFY_MS, num_awaited=0, max_tokens=240)
        assert len(output.ids) == 240
        assert verifies(timeline)[-1].end_ms < 1.1 * 240 * VERIFY_MS


class TestOverlap:
    async def test_drafting_goes_on_while_a_block_is_verified(self) -> None:
        _, timeline = await timed(same_weights(), num_awaited=0, max_lead=6)
        summary = summarize_timeline(timeline)
        # Six steps of the draft fit behind a verify; each block brings six tokens and the guess.
        assert summary.overlap_ms > 0.9 * summary.busy_ms["draft"] - 3 * STEP_MS
        assert summary.busy_ms["target"] == pytest.approx(summary.span_ms, rel=0.05)

    async def test_steady_blocks_are_as_long_as_the_draft_is_fast(self) -> None:
        output, _ = await timed(same_weights(), num_awaited=0, max_lead=8, max_tokens=200)
        # 20 ms of verifying give time for six steps of 3 ms.
        steady = [report.num_proposed + (report.hit is True) for report in output.reports[5:-3]]
        assert sum(steady) / len(steady) == pytest.approx(VERIFY_MS / STEP_MS, rel=0.15)

    async def test_faster_than_taking_turns(self) -> None:
        _, pipelined = await timed(same_weights(4), max_tokens=100)
        _, in_turn = await timed(same_weights(4), max_tokens=100, pipelined=False, two_streams=True)
        # There one launch drafts a whole block, so that its other three steps are added here.
        in_turn_ms = verifies(in_turn)[-1].end_ms + 3 * STEP_MS * len(verifies(in_turn))
        assert verifies(pipelined)[-1].end_ms < 0.8 * in_turn_ms

    async def test_a_look_up_is_waited_for(self) -> None:
        # It takes no time, so the target may as well: no gap, and blocks from the first round on.
        output, timeline = await timed([ngram_proposer(4)], num_awaited=0)
        assert output.reports[0].num_proposed > 0
        assert gaps_ms(timeline) == pytest.approx([0.0] * (len(output.reports) - 1))


class TestStale:
    async def test_what_a_miss_refuted_is_not_run(self) -> None:
        # Three steps fit behind a verify, so that a lead of twelve is never worked off.
        output, timeline = await timed(
            [model_proposer(new_model(2), 8)], step_ms=0.3 * VERIFY_MS, num_awaited=0, max_lead=12
        )
        assert output.num_misses > 5
        drafts = [entry for entry in timeline if entry.label == "draft"]
        skipped = [entry for entry in drafts if entry.skipped]
        assert len(skipped) > len(drafts) / 3
        assert all(entry.end_ms == entry.start_ms for entry in skipped)
        # The draft begins anew as soon as the step is over in which the verdict found it.
        busy = [entry for entry in drafts if not entry.skipped]
        for verify in verifies(timeline)[:-4]:
            begun = min(entry.start_ms for entry in busy if entry.start_ms >= verify.end_ms)
            assert begun - verify.end_ms <= 0.3 * VERIFY_MS + 1e-6


class TestWaiting:
    async def test_for_as_many_as_it_is_told_to(self) -> None:
        output, timeline = await timed(same_weights(), num_awaited=8, max_lead=1)
        assert all(report.num_proposed >= 7 for report in output.reports[:-2])
        assert sum(gaps_ms(timeline)) > 0
