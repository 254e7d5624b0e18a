"""The summary of a recording: every figure by hand, what is unknown, and that times add up."""

from __future__ import annotations

import dataclasses
import json
import random

import pytest

from profiling.trace.bandwidth import Bandwidth
from profiling.trace.lane_times import LaneTimes, busy_shares, common_ms, lane_times, merged
from profiling.trace.summary import TraceSummary, summarise
from profiling.trace.summary_text import format_summary
from profiling.trace.traced_round import Stretch, discarded, traced_requests
from profiling.trace.traffic import TargetReads
from scheduler import LaunchKind, LaunchOutcome, LaunchSpan, Recording
from tests.support.hand_recording import HandRecording, hit_and_miss

READS = TargetReads(weight_bytes=1000, bytes_per_position=10, num_prompt_tokens=7)
BANDWIDTH = Bandwidth(bytes_per_s=111_000, method="by hand")


def decoding(summary: TraceSummary) -> LaneTimes:
    assert summary.decoding is not None
    return summary.decoding


class TestHitAndMiss:
    """All figures of one recording, counted on paper."""

    @pytest.fixture
    def summary(self) -> TraceSummary:
        return summarise(hit_and_miss(offset_ms=1000.0), reads=READS, bandwidth=BANDWIDTH)

    def test_lanes(self, summary: TraceSummary) -> None:
        assert decoding(summary) == LaneTimes(span_ms=78, target_ms=63, draft_ms=31.5, both_ms=20, neither_ms=3.5)
        assert summary.overlap_efficiency == 20 / 31.5
        assert summary.prefill == LaneTimes(span_ms=10, target_ms=10, draft_ms=7, both_ms=7, neither_ms=0)

    def test_bubbles(self, summary: TraceSummary) -> None:
        for bubble, wait_ms in ((summary.after_hit, 3), (summary.after_miss, 11)):
            assert bubble is not None
            assert dataclasses.astuple(bubble) == (1, wait_ms, wait_ms, wait_ms)
        # The last round has none behind it.
        assert summary.after_no_guess is None
        assert summary.after_plain is None

    def test_host_gap(self, summary: TraceSummary) -> None:
        gap = summary.host_gap
        assert gap is not None
        assert (gap.count, gap.median_ms, gap.max_ms, gap.total_ms) == (2, 7, 11, 14)
        assert (gap.hear_ms, gap.commit_ms, gap.start_ms) == (1.5, 1, 4.5)
        assert (gap.draft_wait_ms, gap.total_draft_wait_ms) == (4, 8)

    def test_rounds(self, summary: TraceSummary) -> None:
        rows = [dataclasses.astuple(row) for row in summary.by_width]
        assert rows == [
            ("2", 1, 20, 10, 2, 15.5),
            ("3", 1, 20, 4, 1, 25),
            ("5", 1, 20, 3.5, 2, 11),
        ]
        assert [(row.what, row.count, row.ms_per_token) for row in summary.by_kind] == [
            ("hit", 1, 11),
            ("miss", 1, 25),
            ("no guess", 1, 15.5),
        ]

    def test_acceptance(self, summary: TraceSummary) -> None:
        acceptance = summary.acceptance
        assert (acceptance.num_tokens, acceptance.num_proposed, acceptance.num_accepted) == (5, 4, 2)
        assert (acceptance.acceptance_rate, acceptance.mean_acceptance_length) == (0.5, 1 + 2 / 3)
        assert (acceptance.num_hits, acceptance.num_guesses, acceptance.hit_rate) == (1, 2, 0.5)
        assert acceptance.num_discarded == 2

    def test_traffic(self, summary: TraceSummary) -> None:
        """The cache grows by what was committed: blocks of 1080, 1110 and 1110 bytes in 20 ms each."""
        traffic = summary.traffic
        assert traffic is not None
        assert (traffic.bytes_per_call, traffic.bytes_per_s) == (1110, 55_500)
        assert (traffic.share_of_bound, traffic.bandwidth_method) == (0.5, "by hand")

    def test_launches(self, summary: TraceSummary) -> None:
        assert (summary.num_requests, summary.num_rounds) == (1, 3)
        assert (summary.num_launches, summary.num_skipped, summary.num_unknown, summary.num_dropped) == (18, 1, 0, 0)

    def test_as_json_and_as_text(self, summary: TraceSummary) -> None:
        printed = json.loads(json.dumps(summary.as_dict()))
        assert printed["decoding"]["both_ms"] == 20
        assert printed["overlap_efficiency"] == 20 / 31.5
        assert printed["by_kind"][1] | {"what": "miss", "tokens_per_round": 1} == printed["by_kind"][1]
        lines = [" ".join(line.split()) for line in format_summary(summary).splitlines()]
        assert "decoding 78.0 63.0 (81%) 31.5 (40%) 20.0 (26%) 3.5 (4%) 63%" in lines
        assert "after a miss 1 11.00 11.00 11.00" in lines
        assert "after no guess - - - -" in lines
        assert "miss 1 20.00 4.00 1.00 25.00" in lines
        assert any("50% of the 0.0 GB/s measured here" in line for line in lines)


class TestUnknown:
    """None, a dash, and no crash."""

    def test_nothing_was_recorded(self) -> None:
        summary = summarise(Recording(launches=(), rounds=(), start_ms=0.0, end_ms=0.0), reads=READS)
        assert (summary.decoding, summary.prefill, summary.host_gap, summary.traffic) == (None,) * 4
        assert (summary.acceptance.acceptance_rate, summary.acceptance.mean_acceptance_length) == (None, None)
        assert summary.acceptance.num_hits is None
        assert (summary.overlap_efficiency, summary.by_width, summary.by_kind) == (None, (), ())
        text = format_summary(summary)
        assert "0.0" not in text
        assert text.endswith("No round was recorded, so there is nothing to conclude.")

    def test_one_plain_round_without_a_draft(self) -> None:
        hand = HandRecording()
        hand.round(0, 12, verify=(1, 10), judged_ms=11)
        summary = summarise(hand.build())
        assert decoding(summary) == LaneTimes(span_ms=12, target_ms=10, draft_ms=None, both_ms=None, neither_ms=2)
        assert summary.overlap_efficiency is None
        # It begins before the recording.
        assert summary.prefill is None
        assert (summary.after_plain, summary.host_gap, summary.traffic) == (None, None, None)
        assert [(row.what, row.draft_ms_per_token) for row in summary.by_width + summary.by_kind] == [
            ("1", None),
            ("plain", None),
        ]
        assert "hits - of 0 guesses" in format_summary(summary)

    def test_lanes_that_share_a_stream_have_no_overlap_and_not_one_of_zero(self) -> None:
        hand = HandRecording(draft_stream="target")
        first = hand.draft(0, 4, tokens=2)
        hand.round(0, 14, verify=(4, 13), drafts=(first,), proposed=2, accepted=1)
        second = hand.draft(15, 19, tokens=2)
        hand.round(14, 29, verify=(19, 28), queued_ms=15, drafts=(second,), proposed=2, accepted=1)
        summary = summarise(hand.build())
        assert decoding(summary) == LaneTimes(span_ms=29, target_ms=18, draft_ms=8, both_ms=None, neither_ms=3)
        assert summary.overlap_efficiency is None
        bubble, gap = summary.after_no_guess, summary.host_gap
        assert bubble is not None
        assert gap is not None
        # The host knew it after 1 ms and launched after 1 more; the draft then took until the block began.
        assert (bubble.median_ms, gap.hear_ms, gap.commit_ms, gap.start_ms, gap.draft_wait_ms) == (6, 1, 1, 4, 4)
        assert [row.draft_ms_per_token for row in summary.by_kind] == [2]

    def test_launches_without_times_count_for_nothing(self) -> None:
        hand = HandRecording()
        hand.round(0, 10, verify=(0, 9))
        hand.round(10, 20)
        hand.launch("target", LaunchKind.VERIFY, None, of_round=1, outcome=LaunchOutcome.UNKNOWN)
        hand.launch("draft", LaunchKind.DRAFT, None, outcome=LaunchOutcome.SKIPPED)
        hand.round(20, 30, verify=(21, 29))
        summary = summarise(hand.build(num_dropped=3), reads=READS)
        assert (decoding(summary).target_ms, decoding(summary).draft_ms) == (17, 0)
        assert summary.overlap_efficiency is None
        # Neither into the round nor out of it is anything known.
        assert summary.host_gap is None
        assert [(row.count, row.verify_ms) for row in summary.by_width] == [(3, 8.5)]
        assert (summary.num_skipped, summary.num_unknown, summary.num_dropped) == (1, 1, 3)
        assert "3 older launches and rounds were forgotten" in format_summary(summary)
        assert summary.traffic is not None
        assert summary.traffic.share_of_bound is None

    def test_a_round_that_came_to_nothing_leaves_no_bubble(self) -> None:
        """Cancelled in the middle: its launches are there, the round is not."""
        hand = HandRecording()
        hand.round(0, 10, verify=(0, 9))
        hand.launch("target", LaunchKind.VERIFY, (11, 20), of_round=1, tokens=1)
        summary = summarise(hand.build())
        assert summary.num_rounds == 1
        assert summary.host_gap is None
        assert decoding(summary).span_ms == 10

    def test_rounds_that_do_not_follow_each_other_have_no_bubble_between_them(self) -> None:
        recording = hit_and_miss()
        first, _, last = recording.rounds
        summary = summarise(dataclasses.replace(recording, rounds=(first, last)))
        assert summary.host_gap is None
        assert summary.num_rounds == 2

    def test_a_guess_that_is_drawn_while_its_block_runs_is_not_waited_for(self) -> None:
        hand = HandRecording()
        hand.round(0, 10, verify=(0, 9))
        block, guess = hand.draft(9, 13), hand.draft(13, 20)
        hand.round(10, 40, verify=(14, 39), queued_ms=11, drafts=(block, guess), proposed=1, hit=False)
        gap = summarise(hand.build()).host_gap
        assert gap is not None
        assert (gap.start_ms, gap.draft_wait_ms) == (3, 2)

    def test_plain_rounds_do_not_shorten_the_mean_acceptance_length(self) -> None:
        """It is of the rounds that proposed something, as in a request's metrics."""
        hand = HandRecording()
        hand.round(0, 10)
        hand.round(10, 20, proposed=4, accepted=3)
        hand.round(20, 30, proposed=4, accepted=0)
        acceptance = summarise(hand.build()).acceptance
        assert (acceptance.mean_acceptance_length, acceptance.acceptance_rate) == (2.5, 3 / 8)


class TestRequests:
    def test_the_time_between_two_requests_is_neither_prefill_nor_decoding(self) -> None:
        hand = HandRecording()
        for offset in (0, 1000):
            hand.launch("target", LaunchKind.RESUME, (offset, offset + 1))
            hand.launch("target", LaunchKind.PREFILL, (offset + 2, offset + 9))
            hand.round(offset + 10, offset + 20, verify=(offset + 10, offset + 19))
            hand.round(offset + 20, offset + 30, verify=(offset + 21, offset + 29))
        recording = hand.build()
        first, second = traced_requests(recording)
        assert (first.prefill, second.prefill) == (Stretch(start_ms=0, end_ms=10), Stretch(start_ms=1000, end_ms=1010))
        assert second.decoding == Stretch(start_ms=1010, end_ms=1030)
        summary = summarise(recording, reads=READS)
        assert (summary.num_requests, decoding(summary).span_ms, decoding(summary).target_ms) == (2, 40, 34)
        assert summary.prefill == LaneTimes(span_ms=20, target_ms=16, draft_ms=None, both_ms=None, neither_ms=4)
        assert summary.after_plain is not None
        assert (summary.after_plain.count, summary.after_plain.max_ms) == (2, 2)
        assert [row.ms_per_token for row in summary.by_kind] == [10]
        # Each request's cache begins with its prompt.
        assert summary.traffic is not None
        assert summary.traffic.bytes_per_call == 1075

    def test_a_request_without_a_round_is_none(self) -> None:
        hand = HandRecording()
        hand.launch("target", LaunchKind.RESUME, (0, 1))
        hand.launch("target", LaunchKind.RESUME, (50, 51))
        hand.round(60, 70, verify=(60, 69))
        (request,) = traced_requests(hand.build())
        assert request.prefill == Stretch(start_ms=50, end_ms=60)

    def test_lookahead_that_no_block_was_cut_from_is_discarded(self) -> None:
        recording = hit_and_miss()
        thrown_away = [recording.launches[number] for number in sorted(discarded(recording))]
        assert [(span.start_ms, span.end_ms) for span in thrown_away] == [(34, 38), (38, 42)]


class TestLaneTimes:
    def test_lanes_that_overlap_exactly(self) -> None:
        hand = HandRecording()
        hand.draft(0, 10)
        hand.round(0, 10, verify=(0, 10))
        summary = summarise(hand.build())
        assert decoding(summary) == LaneTimes(span_ms=10, target_ms=10, draft_ms=10, both_ms=10, neither_ms=0)
        assert summary.overlap_efficiency == 1

    def test_lanes_that_only_touch(self) -> None:
        hand = HandRecording()
        hand.draft(0, 4)
        hand.round(0, 10, verify=(4, 10))
        assert decoding(summarise(hand.build())).both_ms == 0

    def test_intervals(self) -> None:
        assert merged([(5, 7), (0, 2), (1, 3), (3, 4), (6, 6.5)]) == [(0, 4), (5, 7)]
        assert common_ms([(0, 4), (5, 7)], [(1, 6)]) == 4
        assert common_ms([(0, 4)], []) == 0

    def test_shares_of_a_stretch(self) -> None:
        """Launches that reach out of it are cut, those outside of it do not count."""
        hand = HandRecording()
        for ran in ((-5, 4), (6, 8), (30, 40)):
            hand.launch("target", LaunchKind.VERIFY, ran)
        for ran in ((-9, -1), (3, 7), (9, 12)):
            hand.launch("draft", LaunchKind.DRAFT, ran)
        shares = busy_shares(hand.launches, Stretch(start_ms=0, end_ms=10))
        assert dataclasses.asdict(shares) == pytest.approx(
            {"both": 0.2, "target_only": 0.4, "draft_only": 0.3, "neither": 0.1}
        )
        assert busy_shares([], Stretch(start_ms=0, end_ms=1)).neither == 1
        with pytest.raises(ValueError, match="start_ms must be below end_ms 3"):
            busy_shares(hand.launches, Stretch(start_ms=3, end_ms=3))

    @pytest.mark.parametrize("seed", range(40))
    def test_the_parts_are_what_a_clock_that_looks_every_millisecond_counts(self, seed: int) -> None:
        draw = random.Random(seed)
        hand = HandRecording(draft_stream=draw.choice(["draft", "draft", "other"]))
        for _ in range(draw.randrange(12)):
            start = draw.randrange(-10, 60)
            hand.launch(draw.choice(["target", "draft"]), "work", (start, start + draw.randrange(15)))
        ends = sorted(draw.sample(range(60), 4))
        stretches = [Stretch(start_ms=a, end_ms=b) for a, b in (ends[:2], ends[2:])]
        times = lane_times(hand.launches, stretches)
        ticks = [tick for stretch in stretches for tick in range(int(stretch.start_ms), int(stretch.end_ms))]
        target, draft = (_busy_ticks(hand.launches, lane, ticks) for lane in ("target", "draft"))
        assert times.span_ms == len(ticks)
        assert times.target_ms == len(target)
        assert (times.draft_ms or 0) == len(draft)
        assert (times.both_ms or 0) == len(target & draft)
        assert times.neither_ms == len(ticks) - len(target | draft)
        assert times.target_ms + (times.draft_ms or 0) - (times.both_ms or 0) + times.neither_ms == times.span_ms
        has_draft = any(launch.lane == "draft" for launch in hand.launches)
        assert (times.draft_ms is None, times.both_ms is None) == (not has_draft, not has_draft)


def _busy_ticks(launches: list[LaunchSpan], lane: str, ticks: list[int]) -> set[int]:
    return {
        tick
        for tick in ticks
        for launch in launches
        if launch.lane == lane and launch.start_ms is not None and launch.start_ms <= tick < (launch.end_ms or 0)
    }
