"""The recorder on every kind of stream and in both loops: what it notes, and that it changes nothing."""

from __future__ import annotations

import asyncio
import statistics
import sys
import threading
import time
from itertools import pairwise
from types import FrameType
from typing import Any

import pytest

from scheduler import (
    FixedGamma,
    Lane,
    LaunchKind,
    LaunchOutcome,
    ModelProposer,
    NoMarkers,
    PipelinedLoop,
    SequentialLoop,
    SpanRecorder,
    Stage,
    ThreadStream,
    VirtualDevice,
    nvtx_markers,
    stage_of,
)
from tests.support.device_loops import FakeGpu, close_model
from tests.support.device_loops import target_model as positioned_target
from tests.support.fake_nvtx import COLOURS, FakeNvtx
from tests.support.loops import decode, model_proposer, request_of, rigged
from tests.support.sequential_cases import PROMPT, new_model, sources, target_model
from tests.support.spans import COSTS, REQUEST, FakeMarkers, check_recording, half_right, recorded


@pytest.mark.parametrize("kind", ["none", "ngram", "same", "unrelated"])
@pytest.mark.parametrize("options", [{}, {"two_streams": True}, {"pipelined": True}], ids=["one", "two", "pipelined"])
async def test_all_launches_and_rounds_are_noted_and_no_token_changes(kind: str, options: dict[str, Any]) -> None:
    output, recording = await recorded(target_model(), REQUEST, sources(kind, 3), **options)
    assert output.ids == (await decode(target_model(), REQUEST, sources(kind, 3), **options)).ids
    check_recording(recording, output)
    assert {span.stream for span in recording.launches} <= ({"target", "draft"} if options else {"target"})


@pytest.mark.parametrize("seed", range(4))
async def test_on_a_virtual_device_times_are_those_of_its_clock(seed: int) -> None:
    device = VirtualDevice(seed, costs=COSTS)
    output, recording = await recorded(
        target_model(), REQUEST, [half_right()], pipelined=True, new_stream=device.stream
    )
    check_recording(recording, output)
    noted = [
        (span.stream, span.label, span.start_ms, span.end_ms, span.generation)
        for span in recording.launches
        if span.outcome is LaunchOutcome.RAN
    ]
    shown = [
        (entry.stream, entry.label, entry.start_ms, entry.end_ms, entry.generation)
        for entry in device.timeline
        if not entry.skipped
    ]
    assert sorted(noted, key=str) == sorted(shown, key=str)
    skipped = [span for span in recording.launches if span.outcome is LaunchOutcome.SKIPPED]
    assert len(skipped) == sum(entry.skipped for entry in device.timeline) > 0
    assert {span.hit for span in recording.rounds} >= {True, False}


@pytest.mark.parametrize("pipelined", [False, True])
async def test_on_a_gpu_times_are_the_devices_told_by_the_hosts_clock(pipelined: bool) -> None:
    gpu = FakeGpu(3)
    request = request_of(PROMPT, 24, temperature=0.0)
    recorder = SpanRecorder()
    options = gpu.rig_options(pipelined=pipelined, two_streams=True, spans=recorder)
    async with rigged(positioned_target(), [model_proposer(close_model(), 3)], **options) as rig:
        recorder.start()
        output = await rig.run(request)
        await rig.idle()
        recording = recorder.stop()
        gpu.driver.calls.clear()
        await rig.run(request)
        assert "elapsed_ms" not in gpu.driver.calls
    assert gpu.driver.faults == []
    ran = [span for span in recording.launches if span.outcome is LaunchOutcome.RAN]
    assert {span.label for span in ran} >= {"verify", "judge", "draft", "settle", "confirm", "note"}
    ends_ms: dict[str, float] = {}
    for span in ran:
        assert span.start_ms is not None
        assert span.end_ms is not None
        assert ends_ms.get(span.stream, span.start_ms) <= span.start_ms <= span.end_ms
        ends_ms[span.stream] = span.end_ms
    assert [span.num_tokens for span in recording.rounds] == [len(report.token_ids) for report in output.reports]
    verifies = [span for span in ran if span.label == LaunchKind.VERIFY]
    assert [span.num_tokens for span in verifies[1:]] == [span.num_proposed + 1 for span in recording.rounds[1:]]


class TestMarkers:
    @pytest.mark.parametrize("pipelined", [False, True])
    async def test_hear_of_every_launch_and_round_and_of_its_end(self, pipelined: bool) -> None:
        markers = FakeMarkers()
        output, recording = await recorded(
            target_model(), REQUEST, [half_right()], markers=markers, pipelined=pipelined
        )
        assert markers.num_open == 0
        launched = [item for item in markers.started if item[0] not in ("round", "commit", "roll back")]
        ran = [span for span in recording.launches if span.outcome is LaunchOutcome.RAN]
        rounds = [-1 if span.round_number is None else span.round_number for span in ran]
        assert sorted(launched) == sorted(
            (span.label, span.stage, number) for span, number in zip(ran, rounds, strict=True)
        )
        num_refuted = sum(report.num_accepted < report.num_proposed or report.hit is False for report in output.reports)
        assert sum(item[:2] == ("roll back", Stage.ROLLBACK) for item in markers.started) == num_refuted > 0
        numbers = list(range(len(output.reports)))
        assert [item[2] for item in markers.started if item[0] == "round"] == numbers
        assert [item[1:] for item in markers.started if item[0] == "commit"] == [(Stage.COMMIT, n) for n in numbers]

    async def test_ranges_end_where_the_caller_goes_away(self) -> None:
        markers, recorder = FakeMarkers(), SpanRecorder()
        async with rigged(target_model(), [half_right()], pipelined=True, spans=recorder) as rig:
            recorder.start(markers)
            await rig.loop.prefill(REQUEST)
            rounds = rig.loop.rounds(REQUEST)
            await anext(rounds)
            await anext(rounds)
            await rounds.aclose()
            await rig.idle()
            assert markers.num_open == 0
            assert len(recorder.stop().rounds) == 2
            # And it can be used again.
            recorder.start(markers)
            output = await rig.run(REQUEST)
            await rig.idle()
            check_recording(recorder.stop(), output)
        assert markers.num_open == 0

    @pytest.mark.parametrize("lane", ["target", "draft"])
    async def test_ranges_end_where_a_model_fails(self, lane: str) -> None:
        markers, recorder = FakeMarkers(), SpanRecorder()
        target, draft = target_model(), new_model(2)
        async with rigged(target, [model_proposer(draft, 3)], pipelined=True, spans=recorder) as rig:
            recorder.start(markers)
            await rig.loop.prefill(REQUEST)
            rounds = rig.loop.rounds(REQUEST)
            await anext(rounds)

            def fail(*arguments: object, **options: object) -> Any:
                raise OSError("out of luck")

            (target if lane == "target" else draft).forward = fail
            with pytest.raises(OSError, match="out of luck"):
                async for _ in rounds:
                    pass
            await rig.idle()
            recording = recorder.stop()
        assert markers.num_open == 0
        failed = [span for span in recording.launches if span.outcome is LaunchOutcome.FAILED]
        assert {span.lane for span in failed} == {lane}
        assert all(span.duration_ms > 0 for span in failed)

    async def test_ones_that_fail_themselves_fail_no_request(self, caplog: pytest.LogCaptureFixture) -> None:
        class Failing(FakeMarkers):
            def start(self, label: str, *, stage: Stage, payload: int) -> Any:
                if len(self.started) == 20:
                    raise OSError("the profiler went away")
                return super().start(label, stage=stage, payload=payload)

        markers = Failing()
        output, recording = await recorded(target_model(), REQUEST, [half_right()], markers=markers, pipelined=True)
        check_recording(recording, output)
        assert len(markers.started) == 20
        assert [record.message for record in caplog.records] == [
            "nothing is marked any more, as the markers failed: OSError('the profiler went away')"
        ]


class TestNvtx:
    async def test_ranges_carry_categories_and_numbers(self, monkeypatch: pytest.MonkeyPatch) -> None:
        nvtx = FakeNvtx()
        monkeypatch.setitem(sys.modules, "nvtx", nvtx)
        output, recording = await recorded(
            target_model(), REQUEST, [half_right()], markers=nvtx_markers(), pipelined=True
        )
        assert nvtx.domain_name == "slipstream"
        assert set(nvtx.categories) >= {"draft", "verify", "rollback", "commit"}
        assert nvtx.open == {}
        # Few words, told apart by their payloads: each would be kept for ever.
        assert {item["message"] for item in nvtx.closed} <= {*LaunchKind, "round", "commit", "roll back"}
        by_message = {item["message"]: item["category"] for item in nvtx.closed}
        assert by_message["roll back"] == nvtx.categories["rollback"]
        assert by_message["draft"] == nvtx.categories["draft"]
        rounds = [item["payload"] for item in nvtx.closed if item["message"] == "round"]
        assert rounds == list(range(len(output.reports)))
        verifies = [item["payload"] for item in nvtx.closed if item["message"] == "verify"]
        assert verifies == rounds
        assert len(recording.rounds) == len(rounds)

    def test_where_the_package_is_absent_nothing_is_marked(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "nvtx", None)
        markers = nvtx_markers()
        assert isinstance(markers, NoMarkers)
        markers.start("verify", stage=Stage.VERIFY, payload=1)()

    async def test_the_real_package_takes_the_words_of_the_fake(self) -> None:
        """Without a tool attached it marks nothing, so more than the words cannot be seen."""
        nvtx = pytest.importorskip("nvtx")
        assert set(nvtx.colors._NVTX_COLORS) >= COLOURS
        output, recording = await recorded(
            target_model(), REQUEST, [half_right()], markers=nvtx_markers(), pipelined=True
        )
        check_recording(recording, output)


class TestStartAndStop:
    async def test_what_is_not_recording_leads_past_itself(self) -> None:
        recorder = SpanRecorder()
        async with rigged(target_model(), [half_right()], pipelined=True, spans=recorder) as rig:
            assert _track_streams(rig.loop) == [rig.target_stream, rig.draft_stream]
            recorder.start()
            assert all(stream not in (rig.target_stream, rig.draft_stream) for stream in _track_streams(rig.loop))
            recorder.stop()
            assert _track_streams(rig.loop) == [rig.target_stream, rig.draft_stream]
            await rig.run(REQUEST)
            recorder.start()
            assert recorder.stop().launches == ()

    async def test_misuse_is_told(self) -> None:
        recorder = SpanRecorder()
        with pytest.raises(RuntimeError, match="no loop launches through this recorder"):
            recorder.start()
        with pytest.raises(RuntimeError, match="nothing is recording"):
            recorder.stop()
        async with rigged(target_model(), spans=recorder):
            recorder.start()
            with pytest.raises(RuntimeError, match="is recording already"):
                recorder.start()
        untimed = VirtualDevice(0)
        async with rigged(target_model(), spans=(recorder := SpanRecorder()), new_stream=untimed.stream) as rig:
            with pytest.raises(ValueError, match="no time passes on this VirtualDevice"):
                recorder.start()
            assert not recorder.on
            await rig.run(REQUEST)

    async def test_a_round_of_an_earlier_recording_is_none_of_this_one(self) -> None:
        recorder = SpanRecorder()
        async with rigged(target_model(), [half_right()], pipelined=True, spans=recorder) as rig:
            recorder.start()
            await rig.loop.prefill(REQUEST)
            rounds = rig.loop.rounds(REQUEST)
            await anext(rounds)
            recorder.stop()
            recorder.start()
            reports = [report async for report in rounds]
            await rig.idle()
            recording = recorder.stop()
        # The first of these was on its way when the recording began.
        assert [span.num_tokens for span in recording.rounds] == [len(report.token_ids) for report in reports[1:]]

    async def test_launches_behind_an_error_do_not_pile_up(self) -> None:
        recorder = SpanRecorder()
        async with rigged(target_model(), [half_right()], spans=recorder) as rig:
            recorder.start()
            stream = rig.loop._verifier._track.stream

            def fail() -> None:
                raise OSError("out of luck")

            stream.launch(fail, label="verify")
            stream.launch(int, label="judge")
            with pytest.raises(OSError, match="out of luck"):
                await stream.record()
            output = await rig.run(REQUEST)
            await rig.idle()
            assert len(recorder._pending) < 10
            recording = recorder.stop()
        outcomes = [span.outcome for span in recording.launches]
        assert outcomes[:2] == [LaunchOutcome.FAILED, LaunchOutcome.UNKNOWN]
        assert len(recording.rounds) == len(output.reports)

    async def test_where_drafting_does_not_pay_gamma_is_0(self) -> None:
        _, recording = await recorded(target_model(), REQUEST, [model_proposer(new_model(2), 0)])
        assert {span.gamma for span in recording.rounds[:-1]} == {0}

    async def test_only_the_newest_spans_are_kept(self) -> None:
        recorder = SpanRecorder(max_spans=5)
        async with rigged(target_model(), [half_right()], spans=recorder) as rig:
            recorder.start()
            output = await rig.run(REQUEST)
            await rig.idle()
            recording = recorder.stop()
        assert [span.number for span in recording.rounds] == list(range(len(output.reports)))[-5:]
        assert len(recording.launches) == 5
        assert recording.num_dropped > len(output.reports)

    async def test_a_launch_that_is_not_over_has_no_times(self) -> None:
        gate = asyncio.Event()
        recorder = SpanRecorder()
        async with rigged(target_model(), [half_right()], spans=recorder) as rig:
            recorder.start()
            loop = asyncio.get_running_loop()
            stream = _track_streams(rig.loop)[0]
            stream.launch(lambda: asyncio.run_coroutine_threadsafe(gate.wait(), loop).result(), label="verify")
            recording = recorder.stop()
            gate.set()
            await rig.idle()
        assert [span.outcome for span in recording.launches] == [LaunchOutcome.UNKNOWN]
        assert recording.launches[0].duration_ms == 0.0


def _track_streams(loop: Any) -> list[Any]:
    return [loop._verifier._track.stream, loop._drafter._track.stream]


def test_every_kind_of_launch_has_a_stage() -> None:
    assert all(stage_of(kind) is not Stage.OTHER for kind in LaunchKind)
    assert stage_of("load target") is Stage.OTHER


async def test_while_off_no_code_of_the_recorder_runs_in_a_round() -> None:
    entered: set[str] = set()

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and "/spans/" in frame.f_code.co_filename.replace("\\", "/"):
            entered.add(frame.f_code.co_qualname)

    recorder = SpanRecorder()
    threading.setprofile(note)
    try:
        async with rigged(target_model(), [half_right()], pipelined=True, spans=recorder) as rig:
            entered.clear()
            sys.setprofile(note)
            await rig.run(REQUEST)
            await rig.idle()
            sys.setprofile(None)
            assert entered == set()
            recorder.start()
            sys.setprofile(note)
            await rig.run(REQUEST)
            sys.setprofile(None)
            assert "SpanRecorder.queue" in entered
    finally:
        threading.setprofile(None)
        sys.setprofile(None)


async def test_a_recorder_that_is_off_costs_less_than_a_hundredth_of_a_costless_round() -> None:
    """Both measured in this run: what a loop asks of it in a round, and a round with models that cost nothing."""
    recorder = SpanRecorder()
    target_stream, draft_stream = ThreadStream("target", num_threads=1), ThreadStream("draft", num_threads=1)
    try:
        target = Lane("target", target_model(), target_stream, capacity=4096)
        proposer = ModelProposer(Lane("draft", target_model(), draft_stream, capacity=4096), FixedGamma(4))
        for loop in (
            SequentialLoop(target, draft_stream, [proposer], max_gamma=4, spans=recorder),
            PipelinedLoop(target, draft_stream, [proposer], max_gamma=4, max_lead=4, spans=recorder),
        ):
            round_s, asking_s = await _round_and_asking_s(loop, recorder)
            assert asking_s < 0.01 * round_s
    finally:
        target_stream.close()
        draft_stream.close()


async def _round_and_asking_s(loop: Any, recorder: SpanRecorder) -> tuple[float, float]:
    request = request_of(PROMPT, 1000, temperature=0.0)
    await loop.prefill(request)
    times_s, reports = [time.perf_counter()], []
    async for report in loop.rounds(request):
        times_s.append(time.perf_counter())
        reports.append(report)
    verifier, track = loop._verifier, loop._drafter._track
    flight = _NoFlight()
    asked_s = []
    for _ in range(len(times_s)):
        began_s = time.perf_counter()
        # As many times as the loops do, or more: a round has eight pieces at most, and some ten launches.
        for _ in range(10):
            _ = recorder.on
            _ = track.stream
        verifier.close_round(flight, reports[-1])
        asked_s.append(time.perf_counter() - began_s)
    rounds_s = [after - before for before, after in pairwise(times_s)]
    return statistics.median(rounds_s), statistics.median(asked_s)


class _NoFlight:
    round_number = None
