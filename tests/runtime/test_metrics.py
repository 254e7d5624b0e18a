"""Metrics: sums over made-up rounds, then agreement with what a runtime really did."""

from __future__ import annotations

import dataclasses
import json
import logging
from typing import Any

import pytest

from runtime import Chunk, Metrics, Mode
from runtime.metrics import MetricsRecorder
from scheduler import PrefillReport, RoundReport
from tests.support.table_runtime import VOCAB_SIZE, build_rig, similar_draft, table_target
from tests.support.watched_model import ScriptedModel

PROMPT = (5, 17, 40, 8)


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr("runtime.metrics.time.perf_counter", made)
    return made


def spec_round(num_proposed: int, num_accepted: int, *, source: int = 0, **changes: Any) -> RoundReport:
    return RoundReport(
        token_ids=(7,) * (num_accepted + 1),
        num_proposed=num_proposed,
        num_accepted=num_accepted,
        source=source,
        draft_ms=2.0,
        verify_ms=5.0,
        **changes,
    )


def test_a_request_by_hand(clock: Clock) -> None:
    recorder = MetricsRecorder(("ngram", "small"))
    clock.now_s += 1.0
    recorder.start()
    recorder.add_prefill(PrefillReport(num_prompt_tokens=10, num_reused_tokens=4))
    for report in (
        spec_round(4, 2),
        RoundReport(token_ids=(7,), verify_ms=3.0),
        spec_round(3, 0, source=1),
        spec_round(4, 4, source=1),
    ):
        clock.now_s += 0.5
        recorder.add_round(report, len(report.token_ids))
    metrics = recorder.snapshot(acceptance_low=True)
    assert metrics == Metrics(
        num_prompt_tokens=10,
        num_reused_tokens=4,
        num_output_tokens=3 + 1 + 1 + 5,
        num_spec_steps=3,
        num_plain_steps=1,
        num_draft_tokens=11,
        num_accepted_draft_tokens=6,
        acceptance_histogram=(1, 0, 1, 0, 1),
        num_proposed_per_position=(3, 3, 3, 2),
        num_accepted_per_position=(2, 2, 1, 1),
        drafts={"ngram": (4, 2), "small": (7, 4)},
        queue_ms=1000.0,
        ttft_ms=500.0,
        num_first_tokens=3,
        total_ms=2000.0,
        draft_ms=6.0,
        verify_ms=18.0,
        acceptance_low=True,
    )
    assert metrics.draft_acceptance_rate == pytest.approx(6 / 11)
    assert metrics.mean_acceptance_length == pytest.approx(1 + 6 / 3)
    # Over the three speculative rounds, as vLLM has it, and over those that proposed so many tokens.
    assert metrics.acceptance_rate_per_position == pytest.approx((2 / 3, 2 / 3, 1 / 3, 1 / 3))
    assert metrics.acceptance_rate_where_proposed == pytest.approx((2 / 3, 2 / 3, 1 / 3, 1 / 2))
    assert sum(metrics.acceptance_rate_per_position) == pytest.approx(metrics.mean_acceptance_length - 1)
    # The three tokens of the first round came with it; seven more took a second and a half.
    assert metrics.tpot_ms == pytest.approx(1500 / 7)
    assert metrics.tokens_per_s == pytest.approx(7 / 1.5)


def test_hits_misses_and_what_was_thrown_away(clock: Clock) -> None:
    recorder = MetricsRecorder(("small",))
    recorder.start()
    for report in (
        spec_round(4, 4, hit=True),
        spec_round(4, 1, hit=False, num_discarded=5),
        spec_round(4, 4, hit=False, num_discarded=2),
        spec_round(4, 4),
        # A guess after no block at all: nothing but the target's own token was verified.
        RoundReport(token_ids=(7,), hit=True),
        RoundReport(token_ids=(7,), num_discarded=1),
    ):
        recorder.add_round(report, len(report.token_ids))
    metrics = recorder.snapshot()
    assert (metrics.num_hits, metrics.num_misses, metrics.num_discarded_draft_tokens) == (2, 2, 8)
    assert metrics.hit_rate == 0.5
    assert (metrics.num_spec_steps, metrics.num_plain_steps) == (4, 2)
    assert metrics.num_draft_tokens == 16, "guesses and lookahead are counted apart"
    assert metrics.as_dict()["hit_rate"] == 0.5


def test_a_round_that_a_stop_cut_counts_what_was_kept(clock: Clock) -> None:
    recorder = MetricsRecorder(("ngram",))
    recorder.start()
    recorder.add_round(spec_round(6, 5), 2)
    metrics = recorder.snapshot()
    assert metrics.num_output_tokens == 2
    assert metrics.num_accepted_draft_tokens == 2
    assert metrics.acceptance_histogram == (0, 0, 1)
    assert metrics.num_proposed_per_position == (1,) * 6
    assert metrics.num_accepted_per_position == (1, 1, 0, 0, 0, 0)


def test_what_did_not_happen_is_none_and_not_zero() -> None:
    for metrics in (Metrics(), MetricsRecorder(()).snapshot()):
        assert metrics.ttft_ms is None
        assert metrics.tpot_ms is None
        assert metrics.tokens_per_s is None
        assert metrics.draft_acceptance_rate is None
        assert metrics.mean_acceptance_length is None
        assert metrics.hit_rate is None
        assert metrics.acceptance_histogram == ()
        assert metrics.acceptance_rate_per_position == ()
        assert metrics.acceptance_rate_where_proposed == ()


def test_json_has_every_field_and_figure() -> None:
    metrics = Metrics(drafts={"ngram": (4, 2)}, num_draft_tokens=4, num_accepted_draft_tokens=2, num_spec_steps=1)
    values = json.loads(json.dumps(metrics.as_dict()))
    assert {field.name for field in dataclasses.fields(Metrics)} <= values.keys()
    assert values["drafts"] == {"ngram": {"num_draft_tokens": 4, "num_accepted_draft_tokens": 2}}
    assert values["draft_acceptance_rate"] == 0.5
    assert values["mean_acceptance_length"] == 3.0
    assert values["tpot_ms"] is None
    assert values["acceptance_rate_per_position"] == []


async def test_positions_of_a_planted_draft_by_hand() -> None:
    # Right (1) or wrong (0) at each token of the output. Blocks of three, the last one cut by the limit of twelve:
    # 110 accepts two, 0.. none, 111 three, 10. one, and the last proposes one token and is right.
    right = [True, True, False, False, True, True, True, False, True, False, True, True]
    prompt = [3, 4]
    script = [*prompt, *(10 + number for number in range(len(right)))]
    wrong = [*prompt, *(token if hit else 99 for token, hit in zip(script[2:], right, strict=True))]
    target = ScriptedModel(script, vocab_size=VOCAB_SIZE)
    rig = build_rig(target, ScriptedModel(wrong, vocab_size=VOCAB_SIZE), gamma=3)
    async with rig.runtime, rig.runtime.stream(prompt, max_tokens=len(right), ignore_eos=True) as stream:
        chunks = [chunk async for chunk in stream]
    metrics = stream.result.metrics
    assert list(stream.result.token_ids) == script[2:]
    assert metrics.num_proposed_per_position == (5, 4, 4)
    assert metrics.num_accepted_per_position == (4, 2, 1)
    assert metrics.acceptance_histogram == (1, 2, 1, 1)
    assert metrics.acceptance_rate_per_position == (4 / 5, 2 / 5, 1 / 5)
    assert metrics.acceptance_rate_where_proposed == (4 / 5, 2 / 4, 1 / 4)
    assert metrics.mean_acceptance_length == pytest.approx(12 / 5)
    assert [(chunk.num_draft_tokens, chunk.num_accepted_draft_tokens) for chunk in chunks] == [
        *((3, 2), (3, 0), (3, 3), (3, 1), (1, 1)),
    ]


@pytest.mark.parametrize("gamma", [0, 1, 4, None])
@pytest.mark.parametrize("with_ngram", [False, True])
@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.0, "seed": 1}, {"temperature": 1.0}])
async def test_counts_agree_with_the_chunks(
    gamma: int | None, with_ngram: bool, sampling: dict[str, float], mode: Mode
) -> None:
    target = table_target()
    rig = build_rig(target, similar_draft(target), mode=mode, gamma=gamma, with_ngram=with_ngram, num_awaited=1)
    async with (
        rig.runtime,
        rig.runtime.stream(PROMPT, max_tokens=90, ignore_eos=True, **sampling) as stream,  # type: ignore[arg-type]  # real options
    ):
        chunks: list[Chunk] = [chunk async for chunk in stream]
    metrics = stream.result.metrics
    assert len(chunks) == metrics.num_spec_steps + metrics.num_plain_steps
    assert sum(metrics.acceptance_histogram) == metrics.num_spec_steps
    assert sum(a * count for a, count in enumerate(metrics.acceptance_histogram)) == metrics.num_accepted_draft_tokens
    assert sum(proposed for proposed, _ in metrics.drafts.values()) == metrics.num_draft_tokens
    assert sum(accepted for _, accepted in metrics.drafts.values()) == metrics.num_accepted_draft_tokens
    assert 0 <= metrics.num_accepted_draft_tokens <= metrics.num_draft_tokens
    assert sum(chunk.num_draft_tokens for chunk in chunks) == metrics.num_draft_tokens
    assert sum(chunk.num_accepted_draft_tokens for chunk in chunks) == metrics.num_accepted_draft_tokens
    assert all(len(chunk.token_ids) == chunk.num_accepted_draft_tokens + 1 for chunk in chunks)
    assert sum(metrics.num_proposed_per_position) == metrics.num_draft_tokens
    assert sum(metrics.num_accepted_per_position) == metrics.num_accepted_draft_tokens
    # Each round adds what it accepted and one token of the target's own.
    assert metrics.num_output_tokens == 90
    assert metrics.num_accepted_draft_tokens + len(chunks) == 90
    assert metrics.num_first_tokens == len(chunks[0].token_ids)
    assert metrics.num_prompt_tokens == len(PROMPT)
    assert (metrics.num_draft_tokens == 0) == (gamma == 0)
    assert (metrics.num_hits + metrics.num_misses == 0) == (mode is Mode.SEQUENTIAL or gamma == 0)
    # A wrong guess is thrown away, and a hit leads to no more than one block.
    assert metrics.num_discarded_draft_tokens >= metrics.num_misses
    assert metrics.num_hits <= len(chunks)
    assert metrics.ttft_ms is not None
    assert 0 < metrics.ttft_ms <= metrics.total_ms
    if mode is Mode.SEQUENTIAL:
        assert metrics.draft_ms + metrics.verify_ms <= metrics.total_ms
        assert metrics.num_discarded_draft_tokens == 0
    assert max(metrics.draft_ms, metrics.verify_ms) <= metrics.total_ms


@pytest.mark.parametrize("named", ["stranger", "auto"])
async def test_the_rolling_rate_warns_once_and_shows_in_metrics(
    caplog: pytest.LogCaptureFixture, mode: Mode, named: str
) -> None:
    """Who named no draft is not told to name another."""
    target = table_target()
    stranger = table_target(seed=77, name="stranger")
    rig = build_rig(target, stranger, mode=mode, gamma=4, num_awaited=2, acceptance_threshold=0.4, named=named)
    with caplog.at_level(logging.WARNING, logger="slipstream"):
        async with rig.runtime:
            assert rig.runtime.acceptance_rate is None
            first = await rig.runtime.generate(PROMPT, max_tokens=10, ignore_eos=True)
            assert not first.metrics.acceptance_low, "ten rounds say little"
            for _ in range(2):
                last = await rig.runtime.generate(PROMPT, max_tokens=120, ignore_eos=True)
            assert last.metrics.acceptance_low is (named != "auto")
            assert rig.runtime.acceptance_rate is not None
            assert rig.runtime.acceptance_rate < 0.4
    warnings = [record for record in caplog.records if "acceptance rate" in record.message]
    assert len(warnings) == (named != "auto")
