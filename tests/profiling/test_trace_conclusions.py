"""What is concluded from a summary, rule by rule, and how the memory's bandwidth is measured."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest
import torch

from models import TOY_DRAFT, WeightKind, random_decoder
from profiling.trace.bandwidth import best_rate, measure_bandwidth
from profiling.trace.conclusions import conclusions
from profiling.trace.summary import TraceSummary, summarise
from profiling.trace.traffic import TargetReads, Traffic
from scheduler import CostModel, CudaStream, Recording, VirtualDevice
from tests.support.fake_cuda import FakeDriver
from tests.support.hand_recording import HandRecording, hit_and_miss
from tests.support.table_model import TableModel


def advice(summary: TraceSummary) -> str:
    return conclusions(summary)[-1]


def rounds(
    *, num: int = 4, draft_ms: float = 0.0, hear_ms: float = 0.0, launch_ms: float = 0.0, accepted: int = 2,
    stream: str = "target",
) -> TraceSummary:  # fmt: skip
    """Rounds in which the target reads for 100 ms, and before which these times pass."""
    hand, now_ms = HandRecording(draft_stream=stream), 0.0
    for _ in range(num):
        start_ms = now_ms + launch_ms
        drafted_ms = start_ms + draft_ms
        draft = hand.draft(start_ms, drafted_ms, tokens=2)
        read_ms = drafted_ms + 100
        now_ms = read_ms + hear_ms
        hand.round(
            start_ms, now_ms, verify=(drafted_ms, read_ms), queued_ms=start_ms, drafts=(draft,),
            proposed=2, accepted=accepted,
        )  # fmt: skip
    return summarise(hand.build())


def test_the_sentences_of_a_recording() -> None:
    overlap, waiting, what = conclusions(summarise(hit_and_miss()))
    assert overlap == "The lanes overlap 26% of the time, which hides 63% of the less busy one."
    assert waiting == (
        "The target waits 11.0 ms after a miss, 3.0 ms after a hit (medians): 18% of the time in all, 10% for tokens "
        "that are still being drafted."
    )
    assert what == (
        "What would help: a faster draft, a smaller gamma or a smaller num_awaited, as the target waits for it 10% of "
        "the time."
    )


def test_nothing_to_conclude_from() -> None:
    empty = summarise(Recording(launches=(), rounds=(), start_ms=0.0, end_ms=0.0))
    assert conclusions(empty) == ("No round was recorded, so there is nothing to conclude.",)


def test_plain_decoding_is_told_to_draft() -> None:
    hand = HandRecording()
    hand.round(0, 10, verify=(0, 9))
    hand.round(10, 20, verify=(11, 19))
    overlap, waiting, what = conclusions(summarise(hand.build()))
    assert overlap == "Nothing was drafted: the target decodes alone."
    assert waiting.startswith("The target waits 2.0 ms after a plain round (medians): 10% of the time")
    assert what.startswith("What would help: proposals, of which there were none")


def test_lanes_on_one_stream_take_turns() -> None:
    summary = rounds(draft_ms=25)
    assert conclusions(summary)[0] == (
        "The lanes take turns on one stream: the target runs 80% of the time, the draft 20%."
    )
    assert advice(summary).startswith("What would help: drafting beside the target (mode pipelined")


def test_a_low_acceptance_comes_before_everything_else() -> None:
    summary = rounds(draft_ms=25, accepted=0)
    assert advice(summary).endswith("another draft, as only 0% of the proposed tokens are accepted.")


@pytest.mark.parametrize(
    ("waits", "expected"),
    [
        ({"hear_ms": 20.0}, "a host that answers sooner, as the target waits for it 1"),
        ({"launch_ms": 20.0, "draft_ms": 10.0}, "a host that answers sooner, as the target waits for it 1"),
        ({"launch_ms": 10.0, "draft_ms": 20.0, "stream": "draft"}, "a faster draft, a smaller gamma"),
        ({"draft_ms": 2.0}, "the target is busy 98% of the time, so more tokens a round"),
        ({"launch_ms": 4.0, "draft_ms": 4.0, "hear_ms": 0.0}, "the target is busy 93% of the time"),
    ],
)
def test_what_is_waited_for_most_is_what_would_help(waits: dict[str, float], expected: str) -> None:
    assert advice(rounds(**waits)).startswith(f"What would help: {expected}")  # type: ignore[arg-type]  # one is a name


def test_a_busy_target_that_reads_slowly_wants_a_faster_verify() -> None:
    summary = rounds(draft_ms=2.0)
    for share, expected in ((0.3, "so a faster verify: it reads at 30%"), (0.8, "so more tokens a round")):
        traffic = Traffic(
            bytes_per_call=1, weight_bytes=1, bytes_per_s=1, bandwidth_bytes_per_s=1, bandwidth_method="",
            share_of_bound=share,
        )  # fmt: skip
        assert expected in advice(dataclasses.replace(summary, traffic=traffic))


def test_where_nothing_stands_out_nothing_is_recommended() -> None:
    """Both wait a little, for each other and for the host, and neither is much."""
    summary = rounds(launch_ms=4.0, draft_ms=4.5, hear_ms=0.5, num=40)
    times = summary.decoding
    assert times is not None
    idle = dataclasses.replace(summary, decoding=dataclasses.replace(times, target_ms=0.89 * times.span_ms))
    assert advice(idle) == "What would help: nothing that stands out."


class TestTargetReads:
    @pytest.mark.parametrize("weights", [WeightKind.FLOAT32, WeightKind.BFLOAT16])
    def test_what_a_call_reads(self, weights: WeightKind) -> None:
        """All weights, each once; of an embedding that is no head, only the rows of the call's tokens."""
        for tied in (True, False):
            config = dataclasses.replace(TOY_DRAFT, tie_embeddings=tied)
            model = random_decoder(config, weights=weights)
            element_bytes = 4 if weights is WeightKind.FLOAT32 else 2
            embedding_bytes = 0 if tied else config.vocab_size * config.hidden_size * element_bytes
            reads = TargetReads.of(model, num_prompt_tokens=5)
            assert reads is not None
            assert reads.weight_bytes == model.num_weight_bytes - embedding_bytes
            cache = model.new_cache(10)
            assert reads.bytes_per_position == cache.num_bytes / cache.num_positions

    def test_nobody_knows_what_other_models_read(self) -> None:
        assert TargetReads.of(TableModel(), num_prompt_tokens=5) is None


class TestBandwidth:
    async def test_the_best_run_counts_and_a_copy_moves_each_byte_twice(self) -> None:
        """On a clock by which the cold run is the fastest, and runs become slower."""
        spent = iter([0.0, 1.0, 1.0, 4.0, 5.0, 8.0, 9.0])
        device = VirtualDevice(costs=CostModel(duration_ms=lambda stream, label, value: next(spent)))
        rate = await best_rate(device.stream("memory"), torch.device("cpu"), num_bytes=4000, reads=True, num_runs=2)
        assert rate == pytest.approx(2 * 4000 / 4e-3)

    async def test_reading_alone_may_be_faster(self) -> None:
        spent = iter([0.0, 1.0, 1.0, 8.0, 1.0])
        device = VirtualDevice(costs=CostModel(duration_ms=lambda stream, label, value: next(spent)))
        rate = await best_rate(device.stream("memory"), torch.device("cpu"), num_bytes=4000, reads=True, num_runs=1)
        assert rate == pytest.approx(4000 / 1e-3)

    async def test_a_gpu_is_timed_by_its_own_events(self) -> None:
        """On a made-up device, whose events pass by a clock of its own."""
        stream = CudaStream("memory", FakeDriver(), timing=True)
        rate = await best_rate(stream, torch.device("cpu"), num_bytes=4000, reads=False)
        stream.close()
        assert rate > 0

    async def test_it_says_what_was_done(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("profiling.trace.bandwidth._CPU_BYTES", 1 << 20)
        one, two = [await measure_bandwidth(torch.device("cpu"), num_threads=num) for num in (1, 2)]
        assert one.bytes_per_s > 1e6
        assert one.method == "reading or copying with 1 thread, 1 MiB at a time, the best of 5"
        assert two.method.startswith("reading or copying with 2 threads")

    def test_a_gpu_that_is_not_there_is_named(self) -> None:
        if torch.cuda.is_available():
            pytest.skip("there is a GPU")
        from runtime import DeviceUnavailableError

        with pytest.raises(DeviceUnavailableError):
            asyncio.run(measure_bandwidth(torch.device("cuda"), num_threads=1))
