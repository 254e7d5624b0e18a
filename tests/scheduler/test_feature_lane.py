"""The lanes on both sides of a feature: what is handed out, what is taken in, and which rows rest on it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from models import UnsupportedModelError
from scheduler import (
    DeviceResidency,
    FeatureLane,
    FixedGamma,
    Lane,
    NonFiniteLogitsError,
    PipelinedLoop,
    SamplingLaw,
    SamplingSettings,
    SequentialLoop,
    Stream,
    ThreadStream,
    TokenHistory,
)
from scheduler.features import Features
from scheduler.proposers import FeatureProposer
from tests.support.feature_models import FEATURE_SIZE, OWN, TARGETS, GivesFeatures, ReadsFeatures, feature_of
from tests.support.table_model import TableModel

TEXT = [3, 1, 4, 1, 5, 2, 6, 5, 3, 5]


@pytest.fixture
def stream() -> Iterator[Stream]:
    stream = ThreadStream("idle")
    yield stream
    stream.close()


def features(start: int, stop: int) -> Features:
    rows = [feature_of(TEXT[: position + 1], TARGETS) for position in range(start, stop)]
    return Features(start=start, rows_NE=torch.tensor(rows).reshape(-1, FEATURE_SIZE))


class TestHandingOut:
    def test_each_feature_once(self, stream: Stream) -> None:
        lane = Lane("target", GivesFeatures(), stream, capacity=32, keeps_features=True)
        lane.feed(TEXT[:4], num_logits=0)
        first = lane.hand_out_features()
        lane.feed(TEXT[4:7], num_logits=3)
        lane.roll_back(6)
        second = lane.hand_out_features()
        nothing = lane.hand_out_features()
        assert [(f.start, f.stop) for f in (first, second, nothing)] == [(0, 4), (4, 6), (6, 6)]
        assert torch.equal(first.rows_NE, features(0, 4).rows_NE)
        assert torch.equal(second.rows_NE, features(4, 6).rows_NE)

    def test_what_was_read_anew_is_handed_out_anew(self, stream: Stream) -> None:
        lane = Lane("target", GivesFeatures(), stream, capacity=32, keeps_features=True)
        lane.feed([*TEXT[:2], 7, 7], num_logits=0)
        handed_out = lane.hand_out_features()
        kept = handed_out.rows_NE.clone()
        assert lane.resume(TEXT) == 2
        lane.feed(TEXT[2:5], num_logits=0)
        again = lane.hand_out_features()
        assert (again.start, again.stop) == (2, 5)
        assert torch.equal(again.rows_NE, features(2, 5).rows_NE)
        # What is under way to another stream stays as it is.
        assert torch.equal(handed_out.rows_NE, kept)

    def test_a_call_that_fails_leaves_nothing_to_hand_out(self, stream: Stream) -> None:
        model = GivesFeatures()
        lane = Lane("target", model, stream, capacity=32, keeps_features=True)
        lane.feed(TEXT[:2], num_logits=0)
        model.fail_at_call = 2
        with pytest.raises(RuntimeError, match="planted"):
            lane.feed(TEXT[2:4], num_logits=0)
        assert lane.hand_out_features().stop == 2

    def test_lanes_that_keep_none_say_so(self, stream: Stream) -> None:
        with pytest.raises(UnsupportedModelError, match="does not give its hidden states away"):
            Lane("target", TableModel(), stream, capacity=8, keeps_features=True)
        with pytest.raises(RuntimeError, match="keeps_features=True"):
            Lane("target", GivesFeatures(), stream, capacity=8).hand_out_features()


class TestReading:
    def test_rows_rest_on_the_targets_features_as_far_as_they_came(self, stream: Stream) -> None:
        model = ReadsFeatures()
        lane = FeatureLane("draft", model, stream, capacity=32)
        assert lane.num_readable == 1
        lane.receive(features(0, 3))
        lane.feed(TEXT[:4], num_logits=1)
        assert (lane.num_readable, lane.num_sure) == (4, 4)
        for token_id in TEXT[4:7]:
            lane.feed([token_id], num_logits=1)
        assert model.wrong == []
        assert [model.makers[position] for position in range(7)] == [TARGETS] * 4 + [OWN] * 3
        assert (lane.num_held, lane.num_sure) == (7, 4)
        # Two of the three were accepted: all three are read again, in one call.
        lane.receive(features(3, 6))
        lane.roll_back(6)
        assert lane.num_held == 4
        lane.feed(TEXT[4:7], num_logits=1)
        assert model.wrong == []
        assert [model.makers[position] for position in range(7)] == [TARGETS] * 7
        assert model.widths == [4, 1, 1, 1, 3]

    def test_another_text_is_read_with_its_own_features(self, stream: Stream) -> None:
        model = ReadsFeatures()
        lane = FeatureLane("draft", model, stream, capacity=32)
        lane.receive(Features(start=0, rows_NE=torch.ones(6, FEATURE_SIZE)))
        lane.receive(features(0, 2))
        assert lane.num_readable == 3
        lane.receive(features(2, 5))
        lane.feed(TEXT[:6], num_logits=0)
        assert (lane.num_sure, model.wrong) == (6, [])

    def test_features_that_never_came_are_zeros_and_a_warning(
        self, stream: Stream, caplog: pytest.LogCaptureFixture
    ) -> None:
        model = ReadsFeatures()
        lane = FeatureLane("draft", model, stream, capacity=32)
        lane.receive(features(0, 2))
        lane.receive(features(4, 6))
        lane.feed(TEXT[:7], num_logits=1)
        assert lane.num_missing == 2
        assert "the features of 2 tokens never came" in caplog.text
        assert len(model.wrong) == 2
        assert all(text.startswith("[0.0, 0.0, 0.0] at position") for text in model.wrong)

    def test_a_shorter_context_than_the_targets(self, stream: Stream) -> None:
        model = ReadsFeatures()
        lane = FeatureLane("draft", model, stream, capacity=4)
        lane.receive(features(0, 3))
        lane.receive(features(3, 7))
        lane.receive(features(7, 9))
        lane.feed(TEXT[:4], num_logits=1)
        assert (lane.num_readable, lane.num_sure, lane.num_missing, model.wrong) == (4, 4, 0, [])

    def test_a_call_that_fails_leaves_the_rows_as_they_were(self, stream: Stream) -> None:
        model = ReadsFeatures()
        lane = FeatureLane("draft", model, stream, capacity=32)
        lane.receive(features(0, 6))
        lane.feed(TEXT[:2], num_logits=1)
        model.fail_at_call = 2
        with pytest.raises(RuntimeError, match="planted"):
            lane.feed(TEXT[2:4], num_logits=1)
        assert (lane.num_held, lane.num_sure) == (2, 2)
        lane.feed(TEXT[2:7], num_logits=1)
        assert (lane.num_sure, model.wrong) == (7, [])

    def test_nothing_is_allocated_that_stays(self, stream: Stream) -> None:
        lane = FeatureLane("draft", ReadsFeatures(), stream, capacity=32)
        record_S = lane._record._rows_SE
        address = record_S.data_ptr()
        for _ in range(50):
            lane.receive(features(0, 5))
            lane.feed(TEXT[:8], num_logits=1)
            lane.roll_back(0)
        assert lane._record._rows_SE.data_ptr() == address

    def test_a_model_that_reads_none_is_refused(self, stream: Stream) -> None:
        with pytest.raises(UnsupportedModelError, match="reads no features"):
            FeatureLane("draft", TableModel(), stream, capacity=8)  # type: ignore[arg-type]  # that is the point


class TestProposing:
    def test_nothing_is_proposed_before_the_features_are_there(self, stream: Stream) -> None:
        model = ReadsFeatures()
        proposer = FeatureProposer(FeatureLane("draft", model, stream, capacity=64), FixedGamma(3))
        law = SamplingLaw(SamplingSettings(), vocab_size=8)
        history = TokenHistory(TEXT)
        proposer.begin(history)
        assert proposer.is_behind(history)
        assert proposer.extend(law, history, (), 3).token_ids == ()
        proposer.receive(features(0, 8))
        assert proposer.is_behind(history)
        assert proposer.extend(law, history, (), 3).token_ids == ()
        assert model.widths == []
        proposer.receive(features(8, 9))
        assert not proposer.is_behind(history)
        assert len(proposer.extend(law, history, (), 3)) == 3
        assert (model.widths, model.wrong) == ([10, 1, 1], [])

    def test_a_prompt_is_read_as_its_features_come(self, stream: Stream) -> None:
        model = ReadsFeatures(max_block=16)
        proposer = FeatureProposer(FeatureLane("draft", model, stream, capacity=128), FixedGamma(3))
        text = [index % 7 for index in range(60)]
        history = TokenHistory(text)
        proposer.begin(history)
        for start, stop in ((0, 0), (0, 24), (24, 48)):
            rows = [feature_of(text[: position + 1], TARGETS) for position in range(start, stop)]
            proposer.receive(Features(start=start, rows_NE=torch.tensor(rows).reshape(-1, FEATURE_SIZE)))
            proposer.catch_up(history)
        # Few tokens are not worth a call.
        assert (model.widths, model.wrong) == ([16, 16], [])

    def test_what_is_read_along_behind_a_chain_that_was_used_up_stays(self, stream: Stream) -> None:
        model = ReadsFeatures(max_block=64)
        lane = FeatureLane("draft", model, stream, capacity=128)
        proposer = FeatureProposer(lane, FixedGamma(3))
        law = SamplingLaw(SamplingSettings(), vocab_size=8)
        history = TokenHistory(TEXT)
        proposer.begin(history)
        proposer.receive(features(0, 9))
        text = [*TEXT, *proposer.extend(law, history, (), 3).token_ids]
        assert lane.num_held == 12 > lane.num_sure
        # Another source is heard from here on.
        text += [index % 7 for index in range(20)]
        rows = [feature_of(text[: position + 1], TARGETS) for position in range(9, 32)]
        proposer.receive(Features(start=9, rows_NE=torch.tensor(rows)))
        proposer.catch_up(TokenHistory(text))
        assert (lane.num_held, lane.num_sure, model.wrong) == (32, 32, [])

    @pytest.mark.parametrize("damage", [float("nan"), float("inf")])
    def test_damaged_weights_behind_a_cut_head_are_an_error(self, stream: Stream, damage: float) -> None:
        model = ReadsFeatures()
        model.tables = model.tables.clone()
        model.tables[..., :4] = float("-inf")
        model.tables[..., 5] = damage
        proposer = FeatureProposer(FeatureLane("draft", model, stream, capacity=64), FixedGamma(3))
        history = TokenHistory(TEXT)
        proposer.begin(history)
        proposer.receive(features(0, 9))
        with pytest.raises(NonFiniteLogitsError, match="the weights are damaged"):
            proposer.extend(SamplingLaw(SamplingSettings(), vocab_size=8), history, (), 3)


@pytest.mark.parametrize("new_loop", [SequentialLoop, PipelinedLoop])
class TestLoops:
    def test_a_target_that_keeps_no_features_is_refused(
        self, stream: Stream, new_loop: type[SequentialLoop] | type[PipelinedLoop]
    ) -> None:
        proposer = FeatureProposer(FeatureLane("draft", ReadsFeatures(), stream, capacity=8), FixedGamma(3))
        target = Lane("target", GivesFeatures(), stream, capacity=8)
        with pytest.raises(ValueError, match="features of width 3, the lane 'target' keeps none"):
            new_loop(target, stream, [proposer])

    def test_rounds_on_a_device_are_refused(
        self, stream: Stream, new_loop: type[SequentialLoop] | type[PipelinedLoop]
    ) -> None:
        proposer = FeatureProposer(FeatureLane("draft", ReadsFeatures(), stream, capacity=8), FixedGamma(3))
        target = Lane("target", GivesFeatures(), stream, capacity=8, keeps_features=True)
        with pytest.raises(ValueError, match="on a CPU, only so far"):
            new_loop(target, stream, [proposer], residency=DeviceResidency())
