"""A lane keeps its record of the cache true, whatever fails in between."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from models import UnsupportedModelError
from scheduler import Lane, MachinePace, ThreadStream, VirtualDevice
from tests.support.device_loops import new_model
from tests.support.table_model import TableModel


@pytest.fixture
def model() -> TableModel:
    return TableModel(vocab_size=20, max_block=4)


@pytest.fixture
def lane(model: TableModel) -> Iterator[Lane]:
    stream = ThreadStream("idle")
    yield Lane("target", model, stream, capacity=40)
    stream.close()


def cached_ids(lane: Lane) -> list[int]:
    """What the cache itself holds."""
    return lane._cache.token_ids[: lane._cache.length]


class TestFeed:
    @pytest.mark.parametrize("num_tokens", [1, 3, 4, 5, 8, 11])
    def test_reads_in_blocks_that_the_model_takes(self, lane: Lane, model: TableModel, num_tokens: int) -> None:
        ids = list(range(num_tokens))
        logits_RV = lane.feed(ids, num_logits=1)
        assert cached_ids(lane) == ids
        assert lane.num_held == num_tokens
        assert model.num_calls == -(-num_tokens // 4)
        assert torch.equal(logits_RV, model.logits_after(ids)[None])

    def test_returns_the_rows_asked_for(self, lane: Lane, model: TableModel) -> None:
        lane.feed([1, 2], num_logits=0)
        logits_RV = lane.feed([3, 4, 5], num_logits=2)
        wanted = [model.logits_after([1, 2, 3, 4]), model.logits_after([1, 2, 3, 4, 5])]
        assert torch.equal(logits_RV, torch.stack(wanted))

    @pytest.mark.parametrize("call", [1, 2, 3])
    def test_a_failing_call_leaves_the_blocks_before_it(self, lane: Lane, model: TableModel, call: int) -> None:
        model.fail_at_call = call
        with pytest.raises(RuntimeError, match="planted"):
            lane.feed(range(11), num_logits=1)
        assert cached_ids(lane) == list(range(4 * (call - 1)))
        assert lane.num_held == 4 * (call - 1)
        lane.feed([9], num_logits=1)
        assert cached_ids(lane) == [*range(4 * (call - 1)), 9]

    def test_a_call_that_fails_half_way_is_undone(
        self, lane: Lane, model: TableModel, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lane.feed([1, 2], num_logits=0)

        def fail(token_ids: list[int]) -> torch.Tensor:
            raise MemoryError("planted")

        with monkeypatch.context() as patch:
            patch.setattr(model, "logits_after", fail)
            with pytest.raises(MemoryError):
                lane.feed([3, 4], num_logits=1)
        assert cached_ids(lane) == [1, 2]
        assert lane.num_held == 2

    def test_a_full_cache_is_an_error_that_costs_nothing(self, lane: Lane) -> None:
        lane.feed(list(range(20)) * 2, num_logits=0)
        with pytest.raises(ValueError, match="full"):
            lane.feed([1], num_logits=1)
        assert lane.num_held == 40


class TestRollback:
    def test_forgets_what_lies_beyond(self, lane: Lane, model: TableModel) -> None:
        lane.feed(range(10), num_logits=0)
        lane.roll_back(6)
        assert lane.num_held == 6
        assert torch.equal(lane.feed([15], num_logits=1), model.logits_after([*range(6), 15])[None])

    @pytest.mark.parametrize("length", [10, 11, 1000])
    def test_of_nothing_is_nothing(self, lane: Lane, length: int) -> None:
        lane.feed(range(10), num_logits=0)
        lane.roll_back(length)
        assert lane.num_held == 10

    def test_to_the_very_start(self, lane: Lane, model: TableModel) -> None:
        lane.feed(range(10), num_logits=0)
        lane.roll_back(0)
        assert lane.num_held == 0
        assert torch.equal(lane.feed([7], num_logits=1), model.logits_after([7])[None])

    def test_moves_no_memory(self, lane: Lane) -> None:
        cache = lane._cache
        lane.feed(range(10), num_logits=0)
        lane.roll_back(3)
        lane.resume([0, 1])
        assert lane._cache is cache


class TestResume:
    @pytest.mark.parametrize(
        ("ids", "num_common"),
        [
            ([0, 1, 2, 3, 4], 5),
            ([0, 1, 2, 3, 4, 5, 6], 5),
            ([0, 1, 2], 3),
            ([0, 1, 9, 3, 4], 2),
            ([9, 1, 2, 3, 4], 0),
            ([], 0),
        ],
    )
    def test_keeps_the_longest_common_prefix(self, lane: Lane, ids: list[int], num_common: int) -> None:
        lane.feed(range(5), num_logits=0)
        assert lane.resume(ids) == num_common
        assert cached_ids(lane) == ids[:num_common]
        assert lane.num_held == num_common


class TestCosts:
    def test_are_measured_at_every_width_that_fits(self, lane: Lane) -> None:
        lane.measure_costs()
        assert list(lane.costs.as_dict()) == [1, 2, 3]
        assert lane.num_held == 0

    def test_start_from_an_empty_cache_however_full_it_was(self, lane: Lane) -> None:
        lane.feed(list(range(20)) * 2, num_logits=0)
        lane.measure_costs()
        assert list(lane.costs.as_dict()) == [1, 2, 3]
        assert lane.num_held == 0

    def test_are_measured_only_as_wide_as_the_cache(self, model: TableModel, lane: Lane) -> None:
        short = Lane("short", model, lane.stream, capacity=2)
        short.measure_costs()
        assert list(short.costs.as_dict()) == [1, 2]

    @pytest.fixture
    def cold(self, model: TableModel, monkeypatch: pytest.MonkeyPatch) -> None:
        """The model's first call takes 5 s, every other one 10 ms."""
        now_s = [0.0]
        forward = model.forward

        def timed_forward(*arguments: object, **options: object) -> torch.Tensor:
            logits_RV = forward(*arguments, **options)
            now_s[0] += 5.0 if model.num_calls == 1 else 0.01
            return logits_RV

        monkeypatch.setattr("time.perf_counter", lambda: now_s[0])
        monkeypatch.setattr(model, "forward", timed_forward)

    @pytest.mark.usefixtures("cold")
    def test_a_cold_first_run_does_not_count(self, lane: Lane) -> None:
        lane.measure_costs()
        assert list(lane.costs.as_dict().values()) == pytest.approx([10.0, 10.0, 10.0])

    @pytest.mark.usefixtures("cold")
    def test_measuring_says_nothing_of_the_machines_pace(self, lane: Lane, model: TableModel) -> None:
        """Or a cold first run of the draft would make all that was measured of the target before look too dear."""
        paced = Lane("draft", model, lane.stream, capacity=40, pace=MachinePace())
        for together in (False, True):
            paced.measure_costs(together=together)
        assert paced.pace is not None
        assert paced.pace.factor == 1.0
        assert list(paced.costs.as_dict().values()) == pytest.approx([10.0, 10.0, 10.0])
        paced.feed([1], num_logits=1)
        assert paced.pace.factor == pytest.approx(1.0)

    def test_policies_that_hold_the_costs_see_the_measured_ones(self, lane: Lane) -> None:
        costs = lane.costs
        lane.measure_costs()
        assert costs is lane.costs
        assert costs.estimate(1) is not None

    def test_are_refreshed_by_every_step(self, lane: Lane, monkeypatch: pytest.MonkeyPatch) -> None:
        lane.costs.calibrate({1: 1e9, 2: 1e9})
        lane.feed([1, 2], num_logits=1)
        assert lane.costs.as_dict()[2] < 1e9
        assert lane.costs.as_dict()[1] == 1e9

    def test_reading_a_prompt_is_no_step(self, lane: Lane) -> None:
        lane.feed(range(8), num_logits=0)
        assert lane.costs.as_dict() == {}


class TestUnknownTokens:
    """Blocks whose tokens the host does not know, as rounds on a device have them."""

    @staticmethod
    def lane() -> Lane:
        return Lane("target", new_model(1), VirtualDevice().stream("idle"), capacity=32)

    def test_rows_are_those_of_known_tokens(self) -> None:
        unknown, known = self.lane(), self.lane()
        rows_RV = unknown.feed_unknown(torch.tensor([3, 1, 4]), [3], num_logits=2)
        assert torch.equal(rows_RV, known.feed([3, 1, 4], num_logits=2))
        assert unknown.num_held == 3

    def test_nobody_resumes_behind_a_token_that_has_no_name(self) -> None:
        lane = self.lane()
        lane.feed_unknown(torch.tensor([3, 1, 4]), [3], num_logits=1)
        assert lane.resume([3, 1, 4, 1]) == 1

    def test_once_revealed_they_are_held_like_any_other(self) -> None:
        lane = self.lane()
        lane.feed_unknown(torch.tensor([3, 1, 4]), [3], num_logits=1)
        lane.roll_back(2)
        lane.reveal(1, [1])
        assert lane.resume([3, 1, 4, 1]) == 2

    def test_rows_written_at_positions_are_held_once_they_are_counted_in(self) -> None:
        lane, known = self.lane(), self.lane()
        lane.feed([3, 1], num_logits=0)
        lane.read_at(torch.tensor([4, 1]), torch.tensor([2, 3]), key_length=4, num_logits=1)
        assert lane.num_held == 2
        lane.count_in([4, 1])
        known.feed([3, 1, 4, 1], num_logits=1)
        assert torch.equal(lane.feed([5], num_logits=1), known.feed([5], num_logits=1))
        assert lane.resume([3, 1, 4, 1, 5, 9]) == 5

    def test_a_model_without_positions_is_named(self) -> None:
        lane = Lane("draft", TableModel(name="plain"), VirtualDevice().stream("idle"), capacity=8)
        with pytest.raises(UnsupportedModelError, match=r"'plain' \(TableModel\) cannot take positions"):
            lane.read_at(torch.tensor([1]), torch.tensor([0]), key_length=1, num_logits=1)
