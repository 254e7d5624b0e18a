"""All requests of a runtime together: sums, outcomes, times, and figures that are asked for while it works."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import threading
import time
from collections.abc import AsyncIterator
from types import SimpleNamespace

import pytest

from runtime import (
    ContextLengthError,
    GenerationResult,
    Latency,
    Mode,
    RequestOutcome,
    Runtime,
    RuntimeClosedError,
    RuntimeMetrics,
)
from runtime.latency import LatencyCounter
from runtime.metrics import MetricsRecorder
from runtime.runtime_metrics import RuntimeRecorder
from scheduler import FinishReason, Occupancy, OccupancyField, PrefillReport, RoundReport
from tests.support.table_runtime import Rig, build_rig, similar_draft, table_target
from tests.support.watched_model import Gate

PROMPT = [5, 17, 40, 8]
SUMS = (
    "num_prompt_tokens",
    "num_reused_tokens",
    "num_output_tokens",
    "num_spec_steps",
    "num_plain_steps",
    "num_overlapped_steps",
    "num_draft_tokens",
    "num_accepted_draft_tokens",
    "num_discarded_draft_tokens",
    "num_hits",
    "num_misses",
)
LISTS = ("acceptance_histogram", "num_proposed_per_position", "num_accepted_per_position")


@pytest.fixture
async def rig(mode: Mode) -> AsyncIterator[Rig]:
    target = table_target()
    made = build_rig(target, similar_draft(target), mode=mode, with_ngram=True)
    yield made
    await made.runtime.close()


async def answer(rig: Rig, prompt: list[int] | None = None, max_tokens: int = 24) -> GenerationResult:
    return await rig.runtime.generate(prompt or PROMPT, max_tokens=max_tokens, ignore_eos=True)


def added(lists: list[tuple[int, ...]]) -> tuple[int, ...]:
    length = max(map(len, lists))
    return tuple(sum(entries[index] for entries in lists if index < len(entries)) for index in range(length))


def check_consistent(metrics: RuntimeMetrics) -> None:
    """What holds at every moment, whoever is in the middle of what."""
    assert sum(metrics.acceptance_histogram) == metrics.num_spec_steps
    assert sum(metrics.num_accepted_per_position) == metrics.num_accepted_draft_tokens
    assert sum(metrics.num_proposed_per_position) == metrics.num_draft_tokens
    assert sum(proposed for proposed, _ in metrics.drafts.values()) == metrics.num_draft_tokens
    num_rounds = metrics.num_spec_steps + metrics.num_plain_steps
    assert metrics.num_output_tokens == num_rounds + metrics.num_accepted_draft_tokens
    first, later = metrics.latencies[Latency.TIME_TO_FIRST_TOKEN], metrics.latencies[Latency.INTER_TOKEN]
    assert first.num_observations + later.num_observations == num_rounds


def outcomes(metrics: RuntimeMetrics) -> dict[str, int]:
    return {outcome.value: number for outcome, number in metrics.num_requests.items() if number}


async def test_a_runtime_adds_up_its_requests(rig: Rig) -> None:
    fresh = rig.runtime.metrics
    check_consistent(fresh)
    assert outcomes(fresh) == {}
    assert (fresh.num_output_tokens, fresh.mean_acceptance_length, fresh.acceptance_rate) == (0, None, None)
    assert fresh.drafts == {"ngram": (0, 0), "draft": (0, 0)}
    prompts = [PROMPT, [9, 9, 2], [*PROMPT, 1]]
    single = [(await answer(rig, prompt, max_tokens=10 + 7 * number)).metrics for number, prompt in enumerate(prompts)]
    metrics = rig.runtime.metrics
    check_consistent(metrics)
    assert {name: getattr(metrics, name) for name in SUMS} == {
        name: sum(getattr(one, name) for one in single) for name in SUMS
    }
    for name in LISTS:
        assert getattr(metrics, name) == added([getattr(one, name) for one in single])
    for source, counts in metrics.drafts.items():
        assert counts == added([one.drafts.get(source, (0, 0)) for one in single])
    assert outcomes(metrics) == {"length": 3}
    assert metrics.num_reused_tokens == sum(one.num_reused_tokens for one in single)
    assert (metrics.num_requests_running, metrics.num_requests_waiting) == (0, 0)
    assert metrics.acceptance_rate == rig.runtime.acceptance_rate
    assert metrics.model_name == "table"
    # The last token of an output is never read again.
    assert metrics.num_cache_tokens >= len(prompts[-1]) + 24 - 1
    assert metrics.cache_capacity == rig.runtime.context_length
    for latency in (Latency.QUEUE_TIME, Latency.TIME_TO_FIRST_TOKEN, Latency.END_TO_END):
        assert metrics.latencies[latency].num_observations == 3
    assert metrics.latencies[Latency.TIME_PER_OUTPUT_TOKEN].sum_s == pytest.approx(
        sum((one.tpot_ms or 0.0) for one in single) / 1e3
    )
    assert metrics.latencies[Latency.END_TO_END].sum_s == pytest.approx(
        sum(one.queue_ms + one.total_ms for one in single) / 1e3
    )


async def test_json_has_every_field_and_figure(rig: Rig) -> None:
    await answer(rig)
    metrics = rig.runtime.metrics
    values = json.loads(json.dumps(metrics.as_dict(), allow_nan=False))
    assert {field.name for field in dataclasses.fields(RuntimeMetrics)} <= values.keys()
    assert values["num_requests"] == {"stop": 0, "length": 1, "abort": 0, "error": 0, "refused": 0}
    assert values["mean_acceptance_length"] == metrics.mean_acceptance_length
    assert values["latencies"]["inter_token"]["num_observations"] == sum(metrics.acceptance_histogram) - 1
    assert values["drafts"]["draft"]["num_draft_tokens"] == metrics.drafts["draft"][0]
    assert values["occupancy"] is None


async def test_a_reader_who_leaves_takes_no_round_back(rig: Rig) -> None:
    read: list[int] = []
    async with rig.runtime.stream(PROMPT, max_tokens=400, ignore_eos=True) as chunks:
        async for chunk in chunks:
            read += chunk.token_ids
            assert rig.runtime.metrics.num_output_tokens >= len(read)
            if len(read) > 20:
                break
    metrics = rig.runtime.metrics
    check_consistent(metrics)
    assert outcomes(metrics) == {"abort": 1}
    assert len(read) <= metrics.num_output_tokens < 400
    assert metrics.num_prompt_tokens == len(PROMPT)
    assert metrics.num_requests_running == 0
    assert metrics.latencies[Latency.TIME_TO_FIRST_TOKEN].num_observations == 1
    assert metrics.latencies[Latency.END_TO_END].num_observations == 0, "it never came to its end"


async def test_a_reader_who_leaves_after_the_last_chunk_breaks_nothing_off(rig: Rig) -> None:
    async with rig.runtime.stream(PROMPT, max_tokens=20, ignore_eos=True) as chunks:
        async for chunk in chunks:
            if chunk.finish_reason is not None:
                assert outcomes(rig.runtime.metrics) == {"length": 1}
                break
    assert outcomes(rig.runtime.metrics) == {"length": 1}


async def test_a_stop_is_an_outcome_of_its_own(rig: Rig) -> None:
    token_ids = (await answer(rig)).token_ids
    await rig.runtime.generate(PROMPT, max_tokens=24, stop_token_ids=[token_ids[3]])
    assert outcomes(rig.runtime.metrics) == {"length": 1, "stop": 1}


@pytest.mark.parametrize("side", ["target", "draft"])
async def test_a_failing_model_is_an_error_and_its_rounds_count(rig: Rig, side: str) -> None:
    model = rig.target if side == "target" else rig.draft
    assert model is not None
    model.fail_at(6, RuntimeError("planted"))
    with pytest.raises(RuntimeError, match="planted"):
        await answer(rig, max_tokens=100)
    failed = rig.runtime.metrics
    check_consistent(failed)
    assert outcomes(failed) == {"error": 1}
    assert 0 < failed.num_output_tokens < 100
    result = await answer(rig)
    assert rig.runtime.metrics.num_output_tokens == failed.num_output_tokens + result.metrics.num_output_tokens
    assert outcomes(rig.runtime.metrics) == {"error": 1, "length": 1}


async def test_a_prompt_that_is_none_is_refused_and_not_failed(rig: Rig) -> None:
    with pytest.raises(ContextLengthError):
        await answer(rig, [1] * 5000)
    with pytest.raises(TypeError):
        await rig.runtime.generate(b"bytes")  # type: ignore[arg-type]  # the mistake under test
    metrics = rig.runtime.metrics
    assert outcomes(metrics) == {"refused": 2}
    assert metrics.num_prompt_tokens == 0
    assert metrics.latencies[Latency.QUEUE_TIME].num_observations == 0
    with pytest.raises(ValueError):
        await rig.runtime.generate(PROMPT, max_tokens=-1)
    assert outcomes(rig.runtime.metrics) == {"refused": 2}, "a wrong option makes no request"


async def test_who_runs_and_who_waits(rig: Rig) -> None:
    gate = Gate(rig.target, call=2)
    tasks = [asyncio.create_task(answer(rig)) for _ in range(4)]
    await asyncio.to_thread(gate.wait_reached)
    metrics = rig.runtime.metrics
    assert (metrics.num_requests_running, metrics.num_requests_waiting) == (1, 3)
    tasks[2].cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await tasks[2]
    metrics = rig.runtime.metrics
    assert (metrics.num_requests_running, metrics.num_requests_waiting) == (1, 2)
    assert outcomes(metrics) == {"abort": 1}
    gate.open()
    await asyncio.gather(tasks[0], tasks[1], tasks[3])
    assert outcomes(rig.runtime.metrics) == {"abort": 1, "length": 3}
    assert (rig.runtime.metrics.num_requests_running, rig.runtime.metrics.num_requests_waiting) == (0, 0)


def wait_closed(rig: Rig) -> None:
    while not rig.stream._closed:
        time.sleep(0.001)


async def test_closing_aborts_who_waits_and_keeps_the_figures(rig: Rig) -> None:
    gate = Gate(rig.target, call=2)
    tasks = [asyncio.create_task(answer(rig, max_tokens=400)) for _ in range(2)]
    await asyncio.to_thread(gate.wait_reached)
    closing = asyncio.create_task(rig.runtime.close())
    await asyncio.to_thread(wait_closed, rig)
    gate.open()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    await closing
    assert [type(result) for result in results] == [RuntimeClosedError, RuntimeClosedError]
    assert outcomes(rig.runtime.metrics) == {"abort": 2}
    check_consistent(rig.runtime.metrics)


async def test_another_thread_may_ask_at_any_time(rig: Rig) -> None:
    taken: list[RuntimeMetrics] = []
    in_calls: list[RuntimeMetrics] = []
    rig.target.before_call = lambda number: in_calls.append(rig.runtime.metrics)
    done = threading.Event()

    def watch() -> None:
        while not done.is_set():
            taken.append(rig.runtime.metrics)
            time.sleep(0.0005)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        for _ in range(3):
            await answer(rig, max_tokens=60)
    finally:
        done.set()
        watcher.join()
    # The worker of the target's stream asks in the middle of every round, the other thread at any moment.
    assert len({metrics.num_output_tokens for metrics in in_calls}) > 10
    for metrics in (*taken, *in_calls):
        check_consistent(metrics)
    for name in SUMS:
        for series in (taken, in_calls):
            values = [getattr(metrics, name) for metrics in series]
            assert values == sorted(values)


def test_figures_are_taken_between_rounds_and_never_within_one(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = RuntimeRecorder(())
    held = []
    add, counts = recorder._rounds.add, recorder._rounds.counts
    monkeypatch.setattr(recorder._rounds, "add", lambda *a: (held.append(recorder._lock.locked()), add(*a)))
    monkeypatch.setattr(recorder._rounds, "counts", lambda: (held.append(recorder._lock.locked()), counts())[1])
    recorder.add_round(RoundReport(token_ids=(1,)), 1, Latency.INTER_TOKEN, 0.1)
    assert recorder.figures()["num_plain_steps"] == 1
    assert held == [True, True]


async def test_a_warning_may_ask_for_the_figures() -> None:
    """Whoever handles log records is called in the middle of a round."""
    recorder = RuntimeRecorder(("small",), model_sources=frozenset({0}))
    asked: list[object] = []
    recorder._monitor = SimpleNamespace(  # type: ignore[assignment]  # stands in for a monitor that warns
        observe=lambda *counts: asked.append(recorder.figures()), acceptance_rate=0.1, low=True
    )
    report = RoundReport(token_ids=(1,), num_proposed=3)
    adding = threading.Thread(target=recorder.add_round, args=(report, 1, Latency.INTER_TOKEN, 0.1), daemon=True)
    adding.start()
    await asyncio.to_thread(adding.join, 30)
    assert asked
    assert recorder.figures()["acceptance_low"] is True


async def test_the_occupancy_is_told_where_there_is_a_gpu(rig: Rig) -> None:
    reading = dataclasses.replace(
        Occupancy.unknown("nobody asked", taken_at_s=time.monotonic()),
        gpu_percent=OccupancyField(value=37.0, reason="planted"),
    )
    probe = SimpleNamespace(latest=lambda: reading)
    engine = dataclasses.replace(rig.runtime._engine, probe=probe)  # type: ignore[arg-type]  # stands in for a probe
    metrics = Runtime(engine, rig.runtime.settings).metrics
    assert metrics.occupancy is reading
    assert metrics.as_dict()["occupancy"] == {"gpu_percent": 37.0}


def test_times_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [100.0]
    monkeypatch.setattr("runtime.metrics.time.perf_counter", lambda: now_s[0])
    totals = RuntimeRecorder(("small",))
    recorder = MetricsRecorder(("small",), totals=totals)
    now_s[0] += 1.0
    recorder.start()
    recorder.add_prefill(PrefillReport(num_prompt_tokens=10, num_reused_tokens=4))
    for gap_s, num_tokens in ((0.5, 2), (0.25, 3), (0.75, 1)):
        now_s[0] += gap_s
        recorder.add_round(RoundReport(token_ids=(7,) * num_tokens), num_tokens)
    now_s[0] += 9.0  # A reader who is slow to take the last chunk.
    recorder.finish(FinishReason.STOP)
    figures = totals.figures()
    sums_s = {latency.value: histogram.sum_s for latency, histogram in figures["latencies"].items()}
    assert sums_s == pytest.approx(
        {
            "queue_time": 1.0,
            "time_to_first_token": 1.5,
            "inter_token": 0.25 + 0.75,
            "time_per_output_token": 1.0 / 4,
            "end_to_end": 2.5,
        }
    )
    assert figures["latencies"][Latency.INTER_TOKEN].mean_s == 0.5
    assert figures["num_requests"][RequestOutcome.STOP] == 1
    assert (figures["num_prompt_tokens"], figures["num_reused_tokens"]) == (10, 4)


def test_what_ends_a_request_after_its_last_token_is_no_outcome() -> None:
    totals = RuntimeRecorder(())
    recorder = MetricsRecorder((), totals=totals)
    recorder.start()
    recorder.add_round(RoundReport(token_ids=(7,)), 1)
    with contextlib.suppress(GeneratorExit), recorder.outcome_noted():
        recorder.finish(FinishReason.LENGTH)
        raise GeneratorExit
    assert {outcome: number for outcome, number in totals.figures()["num_requests"].items() if number} == {
        RequestOutcome.LENGTH: 1
    }


def test_buckets_hold_their_upper_bound() -> None:
    counter = LatencyCounter((0.1, 1.0))
    assert counter.histogram().mean_s is None
    for time_s in (0.0, 0.1, 0.2, 1.0, 1.5, 80.0):
        counter.observe(time_s)
    histogram = counter.histogram()
    assert histogram.counts == (2, 2, 2)
    assert tuple(histogram.cumulative()) == ((0.1, 2), (1.0, 4), (float("inf"), 6))
    assert histogram.num_observations == 6
    assert histogram.sum_s == pytest.approx(82.8)
