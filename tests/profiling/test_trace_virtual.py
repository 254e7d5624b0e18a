"""Pairs on virtual streams: time by the prices of calls, the target's own tokens, overlap that can be seen."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from matplotlib import image

from profiling.trace.lane_times import LaneTimes
from profiling.trace.program import main
from profiling.trace.summary import TraceSummary, summarise
from profiling.trace.traced_round import Stretch
from profiling.trace.virtual_pair import PricedCalls, build_virtual_engine
from runtime import Engine, GenerationResult, LoadSettings, Mode, Runtime
from scheduler import (
    CostModel,
    DecodeRequest,
    FixedGamma,
    Lane,
    LaunchKind,
    ModelProposer,
    PipelinedLoop,
    Recording,
    SamplingSettings,
    SpanRecorder,
    VirtualDevice,
    summarize_timeline,
)
from tests.support.table_model import TableModel
from tests.support.tiny_checkpoint import write_tiny_gguf

VERIFY_MS = {1: 10.0, 4: 13.0, 9: 18.0}
DRAFT_MS = {1: 2.0, 2: 2.5, 9: 6.0}
PROMPT = "Count: one, two,"


def decoding(summary: TraceSummary) -> LaneTimes:
    assert summary.decoding is not None
    return summary.decoding


async def run_tables(
    *, contention: float = 1.0, same_draft: bool = False
) -> tuple[VirtualDevice, list[Lane], Recording]:
    """A request over models that are tables, whose calls have round prices."""
    calls = PricedCalls()
    device = VirtualDevice(
        costs=CostModel(duration_ms=calls.take, contention={"target": contention, "draft": contention})
    )
    target = Lane("target", TableModel(seed=1), device.stream("target"), capacity=200)
    draft = Lane("draft", TableModel(seed=1 if same_draft else 2), device.stream("draft"), capacity=200)
    for lane, costs_ms in ((target, VERIFY_MS), (draft, DRAFT_MS)):
        lane.costs.calibrate(costs_ms)
        lane.costs_together.calibrate({width: 2 * cost_ms for width, cost_ms in costs_ms.items()})
        calls.charge(lane, contention=contention)
    recorder = SpanRecorder()
    proposer = ModelProposer(draft, FixedGamma(3))
    loop = PipelinedLoop(target, draft.stream, [proposer], max_gamma=3, max_lead=4, spans=recorder)
    request = DecodeRequest(prompt_ids=(1, 2, 3), settings=SamplingSettings(temperature=0.0), max_tokens=40)
    recorder.start()
    await loop.prefill(request)
    async for _ in loop.rounds(request):
        pass
    for lane in (target, draft):
        await lane.stream.record()
    return device, [target, draft], recorder.stop()


class TestPrices:
    async def test_a_launch_takes_what_its_calls_cost_at_their_widths(self) -> None:
        """Rounds of this loop overlap, so it is the prices beside another lane that count, which are double here."""
        _, _, recording = await run_tables()
        verifies = [span for span in recording.launches if span.label == LaunchKind.VERIFY]
        assert {span.num_tokens for span in verifies} >= {1, 4}
        expected_ms = {1: 20.0, 2: 22.0, 3: 24.0, 4: 26.0}
        for span in verifies[1:]:
            assert span.num_tokens is not None
            assert span.duration_ms in (
                pytest.approx(expected_ms[span.num_tokens]),
                pytest.approx(expected_ms[span.num_tokens] / 2),
            )
        drafted_ms = {round(span.duration_ms, 6) for span in recording.launches if span.label == LaunchKind.DRAFT}
        # A step reads one token, two after a block that was accepted as a whole, and at first the prompt.
        assert {4.0} <= drafted_ms <= {0.0, 4.0, 5.0, 6.0}
        assert all(span.duration_ms == 0 for span in recording.launches if span.label == LaunchKind.JUDGE)

    async def test_the_summary_says_what_the_virtual_clock_says(self) -> None:
        device, _, recording = await run_tables(same_draft=True)
        summary = summarise(recording)
        first, last = recording.rounds[0], recording.rounds[-1]
        inside = [
            entry for entry in device.timeline if entry.start_ms >= first.start_ms and entry.end_ms <= last.end_ms
        ]
        clock = summarize_timeline(inside)
        times = decoding(summary)
        assert times.span_ms == pytest.approx(last.verdict_ms - first.start_ms)
        assert times.target_ms == pytest.approx(clock.busy_ms["target"])
        assert times.both_ms == pytest.approx(clock.overlap_ms)
        assert times.both_ms > 0.2 * times.span_ms
        # A host and a draft that are fast enough: always a guess, and nothing is waited for after a hit.
        assert summary.acceptance.acceptance_rate == 1
        assert summary.after_hit is not None
        assert summary.after_hit.max_ms == 0

    async def test_after_a_miss_the_target_waits_for_a_whole_block(self) -> None:
        _, _, recording = await run_tables()
        summary = summarise(recording)
        assert summary.after_miss is not None
        assert summary.host_gap is not None
        # Three steps; the first of them may be launched before the verdict is known.
        assert 4.0 <= summary.after_miss.median_ms <= 3 * 5.0
        assert summary.host_gap.hear_ms == summary.host_gap.commit_ms == 0

    async def test_contention_stretches_what_overlaps_and_lanes_know_of_it(self) -> None:
        runs = [await run_tables(contention=contention) for contention in (1.0, 1.5)]
        spans_ms = [decoding(summarise(recording)).span_ms for *_, recording in runs]
        assert 1.05 * spans_ms[0] < spans_ms[1] <= 1.5 * spans_ms[0]
        for (target, draft), factor in ((runs[0][1], 1.0), (runs[1][1], 1.5)):
            # What the rounds told the lanes is what they were told at first.
            assert target.costs_together.estimate(4) == pytest.approx(factor * 26)
            assert draft.costs_together.estimate(1) == pytest.approx(factor * 4)
            assert target.costs.estimate(4) == pytest.approx(13)

    async def test_the_same_prices_give_the_same_recording(self) -> None:
        first, again = [(await run_tables())[2] for _ in range(2)]
        assert [(span.label, span.start_ms, span.end_ms) for span in first.launches] == [
            (span.label, span.start_ms, span.end_ms) for span in again.launches
        ]


@pytest.fixture(scope="module")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gguf(tmp_path_factory.mktemp("virtual") / "tiny.gguf")


def settings_of(tiny_gguf: Path, **changes: object) -> LoadSettings:
    fields: dict[str, object] = {
        "target": tiny_gguf, "draft": "early-exit:1", "mode": Mode.PIPELINED, "gamma": 2, "threads": 2, "device": "cpu",
    }  # fmt: skip
    return LoadSettings(**{**fields, **changes})  # type: ignore[arg-type]  # the caller names real fields


async def recorded(engine: Engine, settings: LoadSettings) -> tuple[GenerationResult, Recording]:
    async with Runtime(engine, settings) as runtime:
        runtime.start_recording()
        result = await runtime.generate(PROMPT, max_tokens=32, temperature=0.0, ignore_eos=True)
        return result, await runtime.stop_recording()


class TestLoadedPair:
    async def test_a_real_pair_overlaps_and_writes_its_own_text(self, tiny_gguf: Path) -> None:
        settings = settings_of(tiny_gguf)
        async with await Runtime.load(tiny_gguf, draft="none", mode="plain", threads=2, device="cpu") as runtime:
            plain = await runtime.generate(PROMPT, max_tokens=32, temperature=0.0, ignore_eos=True)
        result, recording = await recorded(await build_virtual_engine(settings), settings)
        assert result.token_ids == plain.token_ids
        assert {span.stream for span in recording.launches} == {"target", "draft"}
        summary = summarise(recording)
        assert summary.num_rounds == result.metrics.num_spec_steps + result.metrics.num_plain_steps
        assert decoding(summary).both_ms
        assert summary.overlap_efficiency is not None
        assert summary.num_unknown == 0
        # Each width has one price alone and one beside the draft.
        for row in summary.by_width:
            durations = {
                round(span.duration_ms, 6)
                for span in recording.launches
                if span.label == LaunchKind.VERIFY and str(span.num_tokens) == row.what
            }
            assert len(durations) <= 2, row.what

    async def test_lanes_that_take_turns_share_one_virtual_stream(self, tiny_gguf: Path) -> None:
        settings = settings_of(tiny_gguf, mode=Mode.SEQUENTIAL)
        _, recording = await recorded(await build_virtual_engine(settings, contention=3.0), settings)
        assert {span.stream for span in recording.launches} == {"target"}
        times = decoding(summarise(recording))
        assert times.both_ms is None
        assert times.draft_ms
        stretch = Stretch(start_ms=recording.rounds[0].start_ms, end_ms=recording.rounds[-1].verdict_ms)
        assert times.span_ms == pytest.approx(stretch.span_ms)

    def test_the_program_traces_it_and_draws_it(
        self, tiny_gguf: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        pair = ["--target", str(tiny_gguf), "--draft", "early-exit:1", "--gamma", "2", "--threads", "2"]
        files = ["--out", str(tmp_path / "trace.json"), "--picture", str(tmp_path / "rounds.png"), "--rounds", "1", "3"]
        virtual = ["--streams", "virtual", "--contention", "1.5", "--max-tokens", "24"]
        assert main([*pair, *files, *virtual, "--json"]) == 0
        *lines, last = capsys.readouterr().out.splitlines()
        assert any(line.startswith("picture of rounds 1 to 3: ") for line in lines)
        assert any(line.startswith("The lanes overlap ") for line in lines)
        printed = json.loads(last)
        assert printed["picture"] == str(tmp_path / "rounds.png")
        assert printed["figures"]["decoding"]["both_ms"] > 0
        height, width, _ = image.imread(tmp_path / "rounds.png").shape
        assert width > 2 * height > 0

    async def test_a_gpu_and_an_impossible_contention_are_refused(self, tiny_gguf: Path) -> None:
        with pytest.raises(ValueError, match="virtual streams run models on the CPU, not on 'cuda:1'"):
            await build_virtual_engine(settings_of(tiny_gguf, device="cuda:1"))
        with pytest.raises(ValueError, match="contention must lie in \\[1, "):
            await build_virtual_engine(settings_of(tiny_gguf), contention=0.5)
