"""The mode that chooses for itself: what it does with good, useless and slow drafts, and what it says about it.

Costs are made up, so that decisions do not depend on this machine; tokens must not depend on them either.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from runtime import GenerationResult, Mode
from runtime.report import summary
from tests.support.table_model import TableModel
from tests.support.table_runtime import Rig, build_rig, similar_draft, table_target

PROMPT = [7, 3, 9, 3, 7, 3]


@contextmanager
def rig_of(draft: TableModel | None, **options: object) -> Iterator[Rig]:
    rig = build_rig(table_target(), draft, **{"mode": Mode.AUTO, "gamma": None, **options})  # type: ignore[arg-type]  # real options
    try:
        yield rig
    finally:
        rig.close_streams()


async def answer(rig: Rig, *, num_tokens: int = 120, mode: Mode | None = None, **sampling: object) -> GenerationResult:
    return await rig.runtime.generate(PROMPT, max_tokens=num_tokens, ignore_eos=True, mode=mode, **sampling)  # type: ignore[arg-type]  # real options


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.8, "seed": 3}])
@pytest.mark.parametrize("draft_step_ms", [0.1, 3.0, 20.0])
@pytest.mark.parametrize("with_ngram", [False, True])
async def test_whatever_it_chooses_it_writes_the_target_s_text(
    sampling: dict[str, object], draft_step_ms: float, with_ngram: bool
) -> None:
    with rig_of(similar_draft(table_target()), draft_step_ms=draft_step_ms, with_ngram=with_ngram) as rig:
        assert rig.runtime.modes == tuple(Mode)
        expected = (await answer(rig, mode=Mode.PLAIN, **sampling)).token_ids
        for mode in (Mode.AUTO, Mode.PIPELINED, None, Mode.SEQUENTIAL, Mode.AUTO):
            assert (await answer(rig, mode=mode, **sampling)).token_ids == expected


async def test_a_good_draft_that_is_not_cheap_runs_ahead() -> None:
    with rig_of(table_target(), draft_step_ms=3.0) as rig:
        await answer(rig)
        metrics = (await answer(rig)).metrics
        assert metrics.draft_acceptance_rate == 1.0
        # What the last rounds may still draft is limited, and they need not overlap.
        assert metrics.num_overlapped_steps > 0.5 * metrics.num_spec_steps
        assert metrics.num_hits > 0
        assert " tokens ahead: promises " in metrics.decision


async def test_where_running_ahead_promises_nothing_the_lanes_take_turns() -> None:
    with rig_of(similar_draft(table_target()), draft_step_ms=0.01) as rig:
        metrics = (await answer(rig)).metrics
        assert metrics.num_spec_steps > 0
        assert metrics.num_overlapped_steps == 0
        # When gamma shrinks, a token that was drafted already may lie past the block.
        assert metrics.num_hits + metrics.num_misses <= 3
        assert ": sequential, blocks of " in metrics.decision


async def test_a_useless_draft_is_soon_left_alone_and_stays_so() -> None:
    with rig_of(table_target(seed=77), draft_step_ms=3.0) as rig:
        first, second = [(await answer(rig)).metrics for _ in range(2)]
        assert first.num_plain_steps > 80
        assert second.num_draft_tokens <= 4
        assert second.num_plain_steps >= 116
        assert "table: plain, as drafting promises too little: sequential 0." in second.decision
        assert second.decision.startswith(
            f"{second.num_plain_steps} of {second.num_plain_steps + second.num_spec_steps}"
        )


async def test_a_draft_as_slow_as_its_target_is_left_alone() -> None:
    with rig_of(similar_draft(table_target()), draft_step_ms=10.0) as rig:
        await answer(rig)
        metrics = (await answer(rig)).metrics
        assert metrics.num_draft_tokens <= 5
        assert "plain, as drafting promises too little" in metrics.decision


async def test_fixed_settings_win() -> None:
    with rig_of(table_target(seed=77), gamma=3, draft_step_ms=3.0) as rig:
        metrics = (await answer(rig)).metrics
        # The first block waits for one token, as gamma is known only then, and the last two have no room for three.
        assert metrics.num_draft_tokens >= 3 * (metrics.num_spec_steps - 3)
        assert metrics.num_plain_steps <= 2
        assert "(gamma is fixed)" in metrics.decision
        plain = (await answer(rig, mode=Mode.PLAIN)).metrics
        assert plain.num_draft_tokens == 0
        assert plain.decision == "plain decoding was asked for"
        pipelined = (await answer(rig, mode=Mode.PIPELINED)).metrics
        assert pipelined.num_overlapped_steps > 0
        assert pipelined.decision.startswith("pipelined decoding was asked for; table: ")


async def test_without_a_draft_it_is_plain_decoding_and_says_so() -> None:
    with rig_of(None) as rig:
        metrics = (await answer(rig, num_tokens=10)).metrics
        assert metrics.num_plain_steps == 10
        assert metrics.decision == "plain decoding: there is no draft"


async def test_the_summary_tells_what_was_decided() -> None:
    with rig_of(table_target(), draft_step_ms=3.0) as rig:
        result = await answer(rig, num_tokens=40)
        lines = summary(result, rig.runtime.description).splitlines()
        assert lines[-1] == f"decided: {result.metrics.decision}"
        assert result.metrics.as_dict()["decision"] == result.metrics.decision
